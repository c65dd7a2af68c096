"""Prompts from a list, a text file, a table (CSV or Parquet) or JSON lines, as the requests of a batch."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import IO, Any, Literal

import orjson
import pyarrow as pa
import pyarrow.parquet as pq

from batchyard.errors import RequestError, TooLargeError
from batchyard.wording import MAX_LIST, MAX_NAME, PLACE, fill
from store.artifacts import Artifacts, Writer
from tasks.intake.lines import not_a_number

Format = Literal["txt", "prompts", "csv", "jsonl", "parquet"]
FORMATS: dict[str, Format] = {
    ".txt": "txt",
    ".prompts": "prompts",
    ".csv": "csv",
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".parquet": "parquet",
}
COMPRESSIONS = {".gz": "gzip", ".zst": "zstd"}
MAX_FIELD = 16 * 1024 * 1024
RULE = "---"
"""The line between two prompts of several lines."""
_PARQUET_ROWS = 64
"""Rows in memory at once: a value that many rows share is small in the file."""


@dataclass(frozen=True)
class Prompt:
    """The content of one request: a text, or chat messages. `number` is its line in the source."""

    number: int
    content: str | list[Any]
    custom_id: str | None = None


@dataclass(frozen=True)
class RequestTemplate:
    """Model and parameters that all prompts of a batch share."""

    endpoint: str
    model: str
    system: str | None
    parameters: dict[str, Any]

    def request(self, prompt: Prompt) -> dict[str, Any]:
        """Return the request line for a prompt. Raises RequestError for messages if the endpoint takes a text."""
        body: dict[str, Any] = {"model": self.model}
        if self.endpoint == "/v1/chat/completions":
            messages = [{"role": "system", "content": self.system}] if self.system else []
            if isinstance(prompt.content, str):
                messages.append({"role": "user", "content": prompt.content})
            else:
                messages += prompt.content
            body["messages"] = messages
        elif isinstance(prompt.content, str):
            body["prompt" if self.endpoint == "/v1/completions" else "input"] = prompt.content
        else:
            raise _invalid(prompt.number, f"has messages, which {self.endpoint} does not take")
        return {
            "custom_id": prompt.custom_id or f"prompt-{prompt.number}",
            "method": "POST",
            "url": self.endpoint,
            "body": body | self.parameters,
        }


def write(
    artifacts: Artifacts,
    prompts: Iterable[Prompt],
    request_template: RequestTemplate,
    check: Callable[[dict[str, Any]], object],
    limit: int,
) -> Writer:
    """Store one request per prompt. `check` gets the first one and may raise RequestError.

    Raises:
        RequestError: a prompt is invalid, there are no prompts, or more than `limit`.
    """
    count = 0
    with artifacts.create() as target:
        for prompt in prompts:
            request = request_template.request(prompt)
            if count == 0:
                check(request)
            count += 1
            if count > limit:
                raise RequestError(
                    f"There are more than {limit} prompts; split them, or raise BATCHYARD_MAX_REQUESTS.",
                    code="too_many_tasks",
                )
            target.write(orjson.dumps(request) + b"\n")
        if count == 0:
            raise none()
    return target


def format_of(name: str) -> Format:
    """Return the format of a file by its name, which may end in .gz or .zst. Raises RequestError if unknown."""
    path = PurePosixPath(name)
    compressed = path.suffix.lower() in COMPRESSIONS
    kind = FORMATS.get((path.with_suffix("") if compressed else path).suffix.lower())
    if kind is None or (compressed and kind == "parquet"):
        raise RequestError(
            f"Cannot tell from the name '{name}' what the file holds; name it {', '.join(FORMATS)}, and text that is "
            "compressed .csv.gz or .csv.zst.",
            code="invalid_value",
            param="file",
        )
    return kind


def is_compressed(name: str) -> bool:
    return PurePosixPath(name).suffix.lower() in COMPRESSIONS


def decompressed(file: IO[bytes], name: str, limit: int) -> IO[bytes]:
    """Return the content of a file that is compressed by its name; of any other the file itself.

    Reading it raises RequestError for content that is not so compressed, or has more than `limit` bytes.
    """
    if not is_compressed(name):
        return file
    compression = COMPRESSIONS[PurePosixPath(name).suffix.lower()]
    return io.BufferedReader(_Decompressed(pa.CompressedInputStream(file, compression), limit))


class _Decompressed(io.RawIOBase):
    def __init__(self, stream: Any, limit: int) -> None:
        self._stream, self._left, self._limit = stream, limit, limit

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        try:
            content = self._stream.read(len(buffer))
        except (OSError, pa.ArrowException):
            raise RequestError("The file cannot be decompressed.", code="invalid_value", param="file") from None
        self._left -= len(content)
        if self._left < 0:
            raise TooLargeError(
                f"The file has more than {self._limit} bytes when it is decompressed; split it, or raise "
                "BATCHYARD_MAX_FILE_BYTES.",
                code="file_too_large",
                param="file",
            )
        buffer[: len(content)] = content
        return len(content)


def changed(lines: Iterable[bytes], changes: Mapping[str, Any]) -> Iterator[bytes]:
    """Yield the lines of a batch file with `changes` made in the body of each request; None removes a parameter.

    A line that is no request stays as it is: validation reports it.
    """
    for raw in lines:
        try:
            request = orjson.loads(raw)
            body = request["body"] | changes
        except (orjson.JSONDecodeError, TypeError, KeyError):
            yield raw
            continue
        request["body"] = {name: value for name, value in body.items() if value is not None or name not in changes}
        yield orjson.dumps(request) + b"\n"


def none() -> RequestError:
    """Return the refusal of an input without prompts."""
    return RequestError("There are no prompts: nothing but blank lines.", code="empty_file", param="prompts")


def of_list(prompts: list[str] | str) -> Iterator[Prompt]:
    """Yield a prompt for each text of a list, or each line of a text. Blank ones are skipped."""
    # `str.splitlines` also ends a line at characters that are text, such as U+2028.
    lines = (line.rstrip("\n") for line in io.StringIO(prompts, newline=None)) if isinstance(prompts, str) else prompts
    for number, text in enumerate(lines, 1):
        if text.strip():
            yield Prompt(number, text)


def of_file(file: IO[bytes], kind: Format, template: str | None) -> Iterator[Prompt]:
    """Yield the prompts of a file while reading it.

    txt: each line is a prompt.
    prompts: what stands between two lines `---` is a prompt, of any number of lines.
    csv, parquet: each row is a prompt: the template filled with its columns, the column `prompt`, or the only column.
    jsonl: each line is a string, an object with `messages` or `prompt`, or an object with the template's fields.
    A column or field `custom_id` names the request.

    Raises:
        RequestError: a line is invalid; the message names it.
    """
    if template is not None and (kind in ("txt", "prompts") or not PLACE.search(template)):
        raise RequestError(
            "A template names the columns of a table or the fields of a jsonl file, such as 'Translate {text}'.",
            code="invalid_value",
            param="template",
        )
    if kind == "parquet":
        yield from _parquet(file, template)
        return
    text = io.TextIOWrapper(file, encoding="utf-8-sig", newline="" if kind == "csv" else None)
    try:
        yield from _READERS[kind](text, template)
    except UnicodeDecodeError as error:
        raise RequestError(f"The file is not UTF-8: {error.reason}.", code="invalid_value", param="file") from None


def is_requests(file: IO[bytes]) -> bool:
    """True if the first line of a JSON lines file is a whole request, as in a batch's input. Reads that line."""
    first = next((raw for raw in file if raw.strip()), b"")
    try:
        request = orjson.loads(first)
    except orjson.JSONDecodeError:
        return False
    return isinstance(request, dict) and "custom_id" in request and "body" in request


def read_back(lines: Iterable[bytes]) -> tuple[RequestTemplate, Format, str] | None:
    """Return what these requests were made of: a template, and the text of which `of_file` reads their prompts.

    None if that would make others, since they differ in more than their prompts, or came from somewhere else.
    """
    common: RequestTemplate | None = None
    contents: list[str] = []
    for raw in lines:
        try:
            request = orjson.loads(raw)
            own, content = _taken_apart(request)
            number = int(request["custom_id"].removeprefix("prompt-"))
        except (orjson.JSONDecodeError, TypeError, KeyError, ValueError, AttributeError):
            return None
        common = common or own
        if own != common or common.request(Prompt(number, content)) != request:
            return None
        contents.append(content)
    if common is None:
        return None
    kind: Format = "prompts" if any("\n" in content for content in contents) else "txt"
    text = (f"\n{RULE}\n" if kind == "prompts" else "\n").join(contents)
    again = [prompt.content for prompt in of_file(io.BytesIO(text.encode()), kind, None)]
    return (common, kind, text) if again == contents else None


def _taken_apart(request: dict[str, Any]) -> tuple[RequestTemplate, str]:
    """Return template and prompt of a request. Raises KeyError, ValueError and the like for one that has none."""
    body = dict(request["body"])
    model, system = body.pop("model"), None
    if "messages" in body:
        *others, user = body.pop("messages")
        content = user["content"]
        if others:
            (first,) = others
            system = first["content"]
    else:
        content = body.pop("prompt" if request["url"] == "/v1/completions" else "input")
    if not isinstance(content, str):
        raise ValueError("a prompt is a text")
    return RequestTemplate(request["url"], model, system, body), content


def _lines(text: io.TextIOWrapper, _template: str | None) -> Iterator[Prompt]:
    for number, line in enumerate(text, 1):
        if line.strip():
            yield Prompt(number, line.rstrip("\n"))


def _blocks(text: io.TextIOWrapper, _template: str | None) -> Iterator[Prompt]:
    block, first = list[str](), 1
    for number, line in enumerate(text, 1):
        if line.rstrip() != RULE:
            block.append(line)
            continue
        if content := "".join(block).strip("\n"):
            yield Prompt(first, content)
        block, first = [], number + 1
    if content := "".join(block).strip("\n"):
        yield Prompt(first, content)


def _column(columns: list[str], template: str | None) -> str:
    """Return the column of a table that holds the prompts, unless a template says so."""
    if template is None and "prompt" not in columns and len(columns) != 1:
        raise RequestError(
            f"The table has no column 'prompt', but {', '.join(columns)[:MAX_LIST]}; "
            "say how to use them with a template, such as 'Translate {text}'.",
            code="invalid_value",
            param="template",
        )
    return "prompt" if "prompt" in columns else columns[0]


def _parquet(file: IO[bytes], template: str | None) -> Iterator[Prompt]:
    try:
        source = pq.ParquetFile(file)
        columns = source.schema_arrow.names
        column = _column(columns, template)
        names = PLACE.findall(template) if template is not None else [column]
        needed = [name for name in dict.fromkeys([*names, "custom_id"]) if name in columns]
        number = 0
        for batch in source.iter_batches(_PARQUET_ROWS, columns=needed):
            for row in batch.to_pylist():
                number += 1
                empty = [name for name in names if name in row and row[name] is None]
                if empty:
                    raise _invalid(number, f"has nothing in column {empty[0]!r}")
                content = row[column] if template is None else _fill(template, row, number)
                custom_id = row.get("custom_id")
                yield Prompt(
                    number,
                    content if isinstance(content, list) else str(content),
                    None if custom_id is None else str(custom_id),
                )
    except (pa.ArrowException, OSError) as error:
        raise RequestError(f"The file is not Parquet: {error}", code="invalid_value", param="file") from None


def _rows(text: io.TextIOWrapper, template: str | None) -> Iterator[Prompt]:
    csv.field_size_limit(MAX_FIELD)
    reader = csv.DictReader(text, strict=True)
    try:
        columns = list(reader.fieldnames or [])
        if not columns:
            return
        column = _column(columns, template)
        for row in reader:
            if None in row or None in row.values():
                raise _invalid(reader.line_num, f"has not {len(columns)} columns as the first line has")
            content = row[column] if template is None else _fill(template, row, reader.line_num)
            yield Prompt(reader.line_num, content, row.get("custom_id"))
    except csv.Error as error:
        raise RequestError(
            f"The table is not valid CSV after line {reader.line_num}: {error}.", code="invalid_value", param="file"
        ) from None


def _objects(text: io.TextIOWrapper, template: str | None) -> Iterator[Prompt]:
    for number, line in enumerate(text, 1):
        if not line.strip():
            continue
        try:
            row = orjson.loads(line)
        except orjson.JSONDecodeError as error:
            constant = not_a_number(line)
            raise _invalid(number, f"has {constant}" if constant else f"is not valid JSON: {error.msg}") from None
        if isinstance(row, str):
            row = {"prompt": row}
        if not isinstance(row, dict):
            raise _invalid(number, "is neither a string nor an object")
        if template is not None:
            content: Any = _fill(template, row, number)
        else:
            content = row.get("messages") or row.get("prompt")
        custom_id = row.get("custom_id")
        if not isinstance(content, str | list) or not isinstance(custom_id, str | None):
            raise _invalid(
                number, "needs 'messages' (a list) or 'prompt' (a string), and 'custom_id' as a string if any"
            )
        yield Prompt(number, content, custom_id)


_READERS: dict[Format, Callable[[io.TextIOWrapper, str | None], Iterator[Prompt]]] = {
    "txt": _lines,
    "prompts": _blocks,
    "csv": _rows,
    "jsonl": _objects,
}


def _fill(template: str, values: dict[str, Any], number: int) -> str:
    try:
        return fill(template, values)
    except KeyError as error:
        name = str(error.args[0])[:MAX_NAME]
        present = ", ".join(values)[:MAX_LIST]
        raise _invalid(number, f"has no {name!r}, which the template names; it has {present}") from None


def _invalid(number: int, problem: str) -> RequestError:
    return RequestError(f"Line {number} {problem}.", code="invalid_value", param="file")
