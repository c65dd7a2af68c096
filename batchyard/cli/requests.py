"""Request files and request options of the command line."""

import json
import os
import shutil
import tempfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import click

from batchyard import durations
from batchyard.cli import view
from batchyard.cli.options import add_options
from batchyard.cli.output import note
from batchyard.client import output_files
from batchyard.client.api import ApiClient, uploaded
from batchyard.endpoints.catalog import CHAT, ENDPOINTS
from batchyard.errors import ConfigurationError
from batchyard.statuses import PRIORITIES
from batchyard.tables import formats
from batchyard.wording import MAX_LIST, cut

WINDOW = "24h"
endpoint_option = click.option(
    "--endpoint", type=click.Choice(ENDPOINTS), help="Endpoint of the requests [`url` of the first line]."
)


class Window(click.ParamType[str]):
    """A duration such as `24h`, as the server takes it."""

    name = "window"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        try:
            durations.seconds(value)
        except ValueError as error:
            self.fail(str(error), param, ctx)
        return str(value)


window_option = click.option(
    "--window", default=WINDOW, show_default=True, type=Window(), help="Time to the deadline, such as 90m, 24h or 7d."
)
post_process_option = click.option(
    "--post-process",
    multiple=True,
    metavar="STEP[:KEY=VALUE,…]",
    help="Step that runs on the answers, such as `score:method=numeric`; repeatable.",
)


on_invalid_option = click.option(
    "--on-invalid",
    type=click.Choice(("fail", "skip")),
    default="fail",
    show_default=True,
    help="What an invalid line does: fail the batch before it runs, or become an error line.",
)
priority_option = click.option(
    "--priority",
    type=click.Choice(tuple(PRIORITIES)),
    default="normal",
    show_default=True,
    help="Priority among the project's batches; background uses only idle capacity.",
)
stop_when_option = click.option(
    "--stop-when",
    multiple=True,
    metavar="LIMIT=VALUE",
    help="Pause above a share of failed, length (cut off), empty, invalid or looped answers, a cost, or tokens: "
    "failed=0.2.",
)
guard_option = click.option(
    "--guard", type=click.Choice(("repetition",)), help="End answers that repeat themselves, on engines that can."
)
callback_option = click.option(
    "--callback-url", metavar="URL", help="URL that gets the event of the end, signed with the project's secret."
)
batch_options = add_options(
    *(endpoint_option, window_option, post_process_option, on_invalid_option, priority_option, stop_when_option),
    *(callback_option, guard_option),
)


class LocalPath(click.Path):
    """A path; a URL is refused with a hint. What exists and can be read only once is copied to a file first."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if isinstance(value, str) and value.startswith(("http://", "https://")):
            self.fail("URLs are not taken: name a local file, and fetch or send it with curl", param, ctx)
        path = super().convert(value, param, ctx)
        return _copied(path, ctx) if self.exists and ctx is not None and isinstance(path, Path) else path


INPUT_FILE = LocalPath(path_type=Path, exists=True, dir_okay=False)
OUTPUT_FILE = LocalPath(path_type=Path, dir_okay=False)


class Source(LocalPath):
    """A file here as a path, or the URL of a bucket that the server may read as a text."""

    def __init__(self) -> None:
        super().__init__(path_type=Path, exists=True, dir_okay=False)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if isinstance(value, str) and "://" in value:
            return value
        return super().convert(value, param, ctx)


def _copied(path: Path, context: click.Context) -> Path:
    """Return a file with the content of a pipe or a device, for the time of the command; any other path as it is."""
    is_stdin = output_files.is_open_as(path, 0)
    if path.is_dir() or (path.is_file() and not is_stdin):
        return path
    folder = context.with_resource(tempfile.TemporaryDirectory(prefix="batchyard-"))
    copy = Path(folder) / path.name
    with os.fdopen(os.dup(0), "rb") if is_stdin else path.open("rb") as source, copy.open("wb") as target:
        shutil.copyfileobj(source, target)
    return copy


_NULL_VALUE: dict[str, Any] = {
    "multiple": True,
    "metavar": "TEXT",
    "help": "Text of a csv cell that counts as empty, such as NA; repeatable.",
}
null_values_option = click.option("--null-value", "null_values", **_NULL_VALUE)
prompt_options = add_options(
    click.option(
        "-t",
        "--template",
        help="Prompt of each row: 'Translate {text}', or all columns: {*}. Write {{ and }} for braces.",
    ),
    click.option(
        "--null-value",
        "null_values",
        callback=lambda _context, _option, texts: json.dumps(texts) if texts else None,
        **_NULL_VALUE,
    ),
    click.option("--system", help="System message for prompts."),
    click.option("--temperature", type=float, help="Temperature for prompts; 0 gives the likeliest answer."),
    click.option("--max-tokens", type=click.IntRange(1), help="Maximum tokens of an answer, for prompts."),
    click.option(
        "--sampling", metavar="JSON", help="Other request parameters for prompts, such as max_completion_tokens."
    ),
    click.option("--response-format", metavar="JSON", help="OpenAI's response_format, for prompts."),
)
"""The options of a command that takes prompts or requests."""


def becomes_requests(file: Path, options: Mapping[str, Any]) -> bool:
    """True if the server has to make requests of a file: it holds prompts, or is compressed.

    Raises click.UsageError for options of prompts if it holds none, and for a file that holds neither.
    """
    kind = formats.kind_of(file.name)
    if formats.compression_of(file.name) or (kind is not None and kind.format != "jsonl"):
        return True
    with file.open("rb") as stream:
        line = next((line for line in stream if line.strip()), b"")
    first = _first_value(line)
    if kind is None and line and not isinstance(first, dict | str):
        raise click.UsageError(
            f"{file}: its name tells no format, and its first line is no request; requests are JSON, one a line, and "
            f"files of prompts are named {formats.NAMES}"
        )
    fields = first.keys() if isinstance(first, dict) else set()
    is_prompt = not fields & {"body", "url"} and (
        options.get("template") is not None or fields & {"prompt", "messages"}
    )
    if isinstance(first, str) or (fields and is_prompt):
        return True
    if named := [name for name, value in options.items() if value is not None]:
        option = "--" + named[0].replace("_", "-")
        if fields & {"body", "url"}:
            reason = "holds whole requests, which say themselves how they are run"
        elif fields:
            reason = f"has no field prompt; say with --template how to use {cut(', '.join(fields), MAX_LIST)}"
        else:
            reason = "does not begin with a JSON object" if line else "is empty"
        raise click.UsageError(f"{option}: {file} {reason}")
    return False


def batch_fields(options: dict[str, Any], file: Path | None) -> dict[str, Any]:
    """Take what describes a batch of `file` out of a command's options, and return it as POST /v1/batches has it."""
    endpoint, metadata = options.pop("endpoint"), options.pop("metadata", ())
    return {
        "endpoint": endpoint or (CHAT.path if file is None else endpoint_of(file)),
        "completion_window": options.pop("window", WINDOW),
        "metadata": pairs(metadata, "--metadata") or None,
        "post_process": steps(options.pop("post_process")),
        "on_invalid": options.pop("on_invalid"),
        "priority": options.pop("priority", None),
        "stop_when": limits(options.pop("stop_when", ())),
        "callback_url": options.pop("callback_url", None),
        "guard": options.pop("guard", None),
    }


def start_form(fields: Mapping[str, Any], prompt_options: Mapping[str, Any]) -> dict[str, str]:
    """Return the fields of POST /start, those of `batch_fields` and the options of prompts."""
    form = {**fields, **prompt_options}
    return {
        name: json.dumps(value) if isinstance(value, dict | list) else str(value)
        for name, value in form.items()
        if value is not None
    }


def check_writable(*files: Path | None) -> None:
    """Raise ConfigurationError if a file cannot be written: before the work, not after it."""
    for file in files:
        if file is not None and not os.access(file if file.exists() else file.parent, os.W_OK):
            raise ConfigurationError(f"{file} cannot be written; name a file in a folder that exists and is yours")


def check_kind(output: Path | None, artifact: str | None) -> None:
    """Raise ConfigurationError if a file's name says another kind than an artifact that cannot be converted to it."""
    kinds = (".parquet", ".jsonl", ".csv", ".tsv", ".json", ".md", ".txt")
    if output is None or artifact is None or output.suffix not in {*kinds} - {Path(artifact).suffix}:
        return
    if not is_converted(output, artifact):
        named = output.with_suffix(Path(artifact).suffix)
        raise ConfigurationError(f"{output} would hold {artifact} as it is: name it {named.name}")


def is_converted(output: Path, artifact: str) -> bool:
    """True if a file's name says that it holds the table of an artifact in another format or compression."""
    from batchyard.client import tables
    from batchyard.tables import formats

    named, made = formats.kind_of(output.name), formats.kind_of(artifact)
    if named is None or made is None or not {named.format, made.format} <= {*tables.WRITTEN}:
        return False
    return (named.format, named.compression) != (made.format, made.compression)


def make_folder(folder: Path | None) -> None:
    """Make a folder for files, unless it is None. Raises ConfigurationError if that cannot be."""
    if folder is not None:
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise ConfigurationError(f"{folder}: {error.strerror}; name a folder that is yours") from error


def pairs(texts: Iterable[str], option: str) -> dict[str, str]:
    """Return `key=value` texts as a dict. Raises click.UsageError for one without a key or `=`."""
    values = {}
    for text in texts:
        key, separator, value = text.partition("=")
        if not key or not separator:
            raise click.UsageError(f"{option} {key}{separator}: write KEY=VALUE")  # the value may be secret
        values[key] = value
    return values


def limits(texts: Iterable[str]) -> dict[str, float] | None:
    """Return `failed=0.2` as {"failed": 0.2}; None without any."""
    try:
        return {name: float(value) for name, value in pairs(texts, "--stop-when").items()} or None
    except ValueError as error:
        raise click.UsageError(f"--stop-when: {error}") from None


def steps(texts: Iterable[str]) -> list[dict[str, str]]:
    """Return `score:method=numeric` as `{"step": "score", "method": "numeric"}`."""
    parsed = []
    for text in texts:
        name, _, options = text.partition(":")
        parsed.append({"step": name, **pairs(options.split(",") if options else [], "--post-process")})
    return parsed


def endpoint_of(file: Path) -> str:
    """Return the `url` of a file's first line; chat completions if it has none."""
    with file.open("rb") as stream:
        first = _first_value(next((line for line in stream if line.strip()), b""))
    url = first.get("url") if isinstance(first, dict) else None
    return url if url in ENDPOINTS else CHAT.path


def _first_value(line: bytes) -> object:
    """Return the JSON value of a line; None for one that has none, which validation reports."""
    try:
        return json.loads(line)
    except (ValueError, RecursionError):
        return None


def with_model(source: Path, model: str, target: Path) -> None:
    """Copy a request file and set every `body.model`. Lines that are no requests stay as they are."""
    from batchyard import json_lines  # imports orjson
    from batchyard.request_lines.lines import LineError, parse

    with source.open("rb") as original, target.open("wb") as copy:
        for line in original:
            try:
                request = parse(0, line, len(line))
            except LineError:
                request = {}
            body = request.get("body")
            if isinstance(body, dict):
                line = json_lines.line({**request, "body": {**body, "model": model}})
            copy.write(line)


def started(server: ApiClient, file: Path, form: Mapping[str, str]) -> dict[str, Any]:
    """Create a batch of prompts, say in which order its prompts have all columns if they do, and return it."""
    answer = server.start(file, form)
    if text := view.order(answer):
        note(text)
    return server.batch(answer["batch_id"])


def created(server: ApiClient, file: Path, fields: Mapping[str, Any], model: str | None = None) -> dict[str, Any]:
    """Upload a file of requests, all of `model` if it is named, and create a batch of it.

    `fields`: those of `batch_fields`.
    """
    with tempfile.TemporaryDirectory(prefix="batchyard-") as folder:
        if model is not None:
            copy = Path(folder) / file.name
            with_model(file, model, copy)
            file = copy
        with uploaded(server, server.upload(file)) as file_id:
            return server.create(file_id, **fields)


def save(server: ApiClient, file_id: str | None, to: Path) -> None:
    """Write a result file; an empty one if the batch has none."""
    try:
        server.download(file_id, to)
    except OSError as error:
        raise ConfigurationError(f"{to}: {error.strerror}; name a file that can be written") from error
