"""Inputs: what a client sends, prompts or whole requests, becomes a stored file of whole requests."""

from collections.abc import Collection, Iterable, Iterator, Mapping, Set
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import IO, Any

from batchyard import json_lines
from batchyard.errors import RequestError
from batchyard.models import served_by_name
from batchyard.request_lines.lines import LineError
from batchyard.tables import formats
from batchyard.tables.formats import Format, TableError
from batchyard.tables.template import Template
from batchyard.wording import MAX_MESSAGE, cut
from store.artifacts import ArtifactWriter
from store.formats.results import ROW
from store.records import File
from tasks.context import AppContext
from tasks.intake import prompts
from tasks.intake.prompts import InputPrompt, Reading, RequestTemplate
from tasks.intake.requests import RequestChecker
from tasks.steps import registry as steps

_COPY_BYTES = 1 << 20


@dataclass(frozen=True)
class InputOptions:
    """What prompts become requests with.

    `template` is the prompt with columns of a file; None for its column of prompts. `sampling` are parameters that the
    API does not name. `explicit` names the options that the client has set and that do not suit whole requests.
    """

    endpoint: str
    model: str | None
    system: str | None
    template: Template | None
    null_values: Collection[str]
    parameters: Mapping[str, Any]
    sampling: Mapping[str, Any]
    post_process: list[dict[str, Any]]
    skip_invalid: bool
    explicit: Set[str]


def of_prompts(context: AppContext, options: InputOptions, inputs: Iterable[InputPrompt]) -> ArtifactWriter:
    """Store a request for each prompt. Those that it skips have a line that says why, for an error line.

    Raises RequestError for no prompts, too many, an unusable one or first request; TooLargeError.
    """
    common, settings = request_template(context, options), context.settings
    limit, max_bytes, max_line_bytes = settings.max_requests, settings.max_file_bytes, settings.max_line_bytes
    count, checked = 0, False
    with context.artifacts.create() as target:
        for prompt in inputs:
            if prompt.refusal is not None and not options.skip_invalid:
                raise RequestError(prompt.refusal.message, code="invalid_value", param="file")
            request = common.request(prompt)
            if prompt.refusal is None and not checked:
                _check(context, options, request)
                checked = True
            count += 1
            if count > limit:
                message = f"There are more than {limit} prompts; split them, or raise BATCHYARD_MAX_REQUESTS."
                raise RequestError(message, code="too_many_tasks")
            line = json_lines.line(request)
            if len(line) > max_line_bytes and request.pop(ROW, None) is not None:
                line = json_lines.line(request)  # its prompt goes before the columns that downloads show beside it
            if len(line) > max_line_bytes:
                message = f"Line {prompt.number} makes a request of more than {max_line_bytes} bytes."
                if not options.skip_invalid:
                    raise RequestError(message, code="line_too_long", param="file")
                refusal = LineError("line_too_long", message)
                line = json_lines.line(common.request(replace(prompt, content="", refusal=refusal)))
            target.write(line)
            if target.size > max_bytes:
                message = f"The requests have more than {max_bytes} bytes"
                raise prompts.refused(TableError(message, "file_too_large"))
        if count == 0:
            raise prompts.none()
    return target


def _check(context: AppContext, options: InputOptions, request: dict[str, Any]) -> None:
    checker = RequestChecker(context.models, steps.checks(options.post_process), context.settings.models)
    try:
        checker.check(options.endpoint, request)
    except LineError as error:
        param = (error.param or "").removeprefix("body.") or None
        raise RequestError(cut(error.message, MAX_MESSAGE), code=error.code, param=param) from None


def of_file(context: AppContext, options: InputOptions, upload: ArtifactWriter, name: str) -> ArtifactWriter:
    """Return a file of whole requests; make them of any other. Raises RequestError, UnavailableError."""
    kind = prompts.kind_of(name).format
    if kind == "jsonl":
        with opened(context, upload, name) as file:
            holds_requests = prompts.is_requests(file, context.settings.max_line_bytes)
        if holds_requests:
            if options.explicit:
                message = "The file holds whole requests, which say themselves how they are run; leave this out."
                raise RequestError(message, code="invalid_value", param=min(options.explicit))
            return decompressed(context, upload, name)
    with opened(context, upload, name) as file:
        return of_prompts(context, options, read_prompts(context, options, file, kind))


def ordered(context: AppContext, options: InputOptions, upload: ArtifactWriter | File, name: str) -> InputOptions:
    """Return the options with all columns of the template in the order of the rows. Raises RequestError."""
    if options.template is None or not options.template.is_open:
        return options
    with opened(context, upload, name) as file:
        kind = prompts.kind_of(name).format
        return replace(options, template=prompts.ordered(options.template, file, kind, **_reading(context, options)))


def read_prompts(context: AppContext, options: InputOptions, file: IO[bytes], kind: Format) -> Iterator[InputPrompt]:
    """Yield the prompts of a file while reading it. Raises RequestError."""
    return prompts.of_file(file, kind, options.template, **_reading(context, options))


def _reading(context: AppContext, options: InputOptions) -> Reading:
    max_line_bytes, max_bytes = context.settings.max_line_bytes, context.settings.max_file_bytes
    return {"null_values": options.null_values, "max_line_bytes": max_line_bytes, "max_bytes": max_bytes}


def request_template(context: AppContext, options: InputOptions) -> RequestTemplate:
    if options.model is None:
        models = ", ".join(sorted(served_by_name(context.models)))
        message = f"Missing required parameter: 'model'; served here: {models}."
        raise RequestError(message, code="missing_required_parameter", param="model")
    duplicates = options.parameters.keys() & options.sampling.keys()
    if duplicates:
        name = min(duplicates)
        raise RequestError(f"'{name}' is given twice, by itself and in 'sampling'.", code="invalid_value", param=name)
    parameters = {**options.parameters, **options.sampling}
    return RequestTemplate(options.endpoint, options.model, options.system, parameters)


@contextmanager
def opened(context: AppContext, upload: ArtifactWriter | File, name: str) -> Iterator[IO[bytes]]:
    """Open a file, decompressed if its name says so. Raises RequestError if unreadable."""
    with context.artifacts.open(upload.sha256) as file:
        try:
            yield formats.decompressed(file, formats.compression_of(name), context.settings.max_file_bytes)
        except TableError as error:
            raise prompts.refused(error) from None


def decompressed(context: AppContext, upload: ArtifactWriter, name: str) -> ArtifactWriter:
    """Store a compressed file anew as what it holds; return any other as it is."""
    if formats.compression_of(name) is None:
        return upload
    with opened(context, upload, name) as file, context.artifacts.create() as target:
        while content := file.read(_COPY_BYTES):
            target.write(content)
    return target
