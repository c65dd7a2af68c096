"""Preview: the first requests of an input and the errors in its beginning, before it runs."""

import io
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import islice
from typing import IO, Any

from batchyard import json_lines
from batchyard.errors import RequestError
from batchyard.request_lines.lines import REFUSED, LineError, parse
from store.formats.lines import numbered_lines
from tasks.context import AppContext
from tasks.intake.estimate import Part, parts
from tasks.intake.prompts import InputPrompt, RequestTemplate, none
from tasks.intake.validation import ValidationReport, Validator

HEAD_BYTES = 256 * 1024
"""Only this much of a large file is previewed."""
SHOWN = 3


@dataclass(frozen=True)
class Preview:
    """The beginning of an input: the first SHOWN of its `count` requests, and the errors as in a batch's `errors.data`.

    `parts` are what it asks of each model; `first_line` is the first request as a line of a batch file.
    """

    requests: list[dict[str, Any]]
    count: int
    whole: bool
    errors: list[dict[str, Any]]
    parts: Mapping[str, Part]
    first_line: bytes = b""
    size: int = 0


def head(source: IO[bytes]) -> tuple[bytes, bool]:
    """Return the complete lines of a source's first HEAD_BYTES, and True if there are no others."""
    content = source.read(HEAD_BYTES + 1)
    if len(content) <= HEAD_BYTES:
        return content, True
    return content[: content.rfind(b"\n", 0, HEAD_BYTES) + 1], False


def of_requests(context: AppContext, endpoint: str, content: bytes, *, whole: bool) -> Preview:
    if not content and not whole:  # the first line is longer than HEAD_BYTES
        return Preview([], 0, whole, [], {})
    report, settings = ValidationReport(), context.settings
    Validator(context.models, endpoint, settings).run(io.BytesIO(content), None, report)
    lines = list(numbered_lines(io.BytesIO(content), settings.max_line_bytes))
    requests = []
    for number, raw in islice(lines, SHOWN):
        try:
            request = parse(number, raw, settings.max_line_bytes)
        except LineError:
            continue  # the report has it
        if REFUSED not in request:
            requests.append(request)
    by_model = parts(endpoint, (raw for _, raw in lines))
    first_line = next((raw for _, raw in lines if by_model), b"")
    return Preview(requests, len(lines), whole, report.errors, by_model, first_line, sum(len(raw) for _, raw in lines))


def of_prompts(
    context: AppContext, request_template: RequestTemplate, prompts: Iterable[InputPrompt], *, whole: bool
) -> Preview:
    """Preview the requests of prompts. Raises RequestError for a line that makes no request."""
    content, count, line = bytearray(), 0, 1
    try:
        for prompt in prompts:
            # Blank lines put each request on the line of its prompt, so that errors name the line of the source.
            content += b"\n" * (prompt.number - line) + json_lines.dumps(request_template.request(prompt)) + b"\n"
            count, line = count + 1, prompt.number + 1
    except RequestError:  # of the whole file
        if whole or count < SHOWN:
            raise  # otherwise the row may continue beyond the head; submitting reads it all
    if whole and not count:
        raise none()
    return of_requests(context, request_template.endpoint, bytes(content), whole=whole)
