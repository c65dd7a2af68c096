"""Prompts from a list, a text file, a CSV table or JSON lines, as the requests of a batch."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import IO, Any, Literal

import orjson

from batchyard.errors import RequestError
from batchyard.wording import MAX_LIST, MAX_NAME, PLACE, fill
from store.artifacts import Artifacts, Writer
from tasks.intake.lines import not_a_number

Format = Literal["txt", "csv", "jsonl"]
FORMATS: dict[str, Format] = {".txt": "txt", ".csv": "csv", ".jsonl": "jsonl", ".ndjson": "jsonl"}
MAX_FIELD = 16 * 1024 * 1024


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
    csv: each row is a prompt, from the template filled with its columns, the column `prompt`, or the only column.
    jsonl: each line is a string, an object with `messages` or `prompt`, or an object with the template's fields.
    A column or field `custom_id` names the request.

    Raises:
        RequestError: a line is invalid; the message names it.
    """
    if template is not None and (kind == "txt" or not PLACE.search(template)):
        raise RequestError(
            "A template names the columns of a csv file or the fields of a jsonl file, such as 'Translate {text}'.",
            code="invalid_value",
            param="template",
        )
    text = io.TextIOWrapper(file, encoding="utf-8-sig", newline="" if kind == "csv" else None)
    try:
        yield from _READERS[kind](text, template)
    except UnicodeDecodeError as error:
        raise RequestError(f"The file is not UTF-8: {error.reason}.", code="invalid_value", param="file") from None


def is_requests(file: IO[bytes]) -> bool:
    """True if the first line of a JSON lines file is a whole request, as in a batch's input."""
    first = next((raw for raw in file if raw.strip()), b"")
    file.seek(0)
    try:
        request = orjson.loads(first)
    except orjson.JSONDecodeError:
        return False
    return isinstance(request, dict) and "custom_id" in request and "body" in request


def _lines(text: io.TextIOWrapper, _template: str | None) -> Iterator[Prompt]:
    for number, line in enumerate(text, 1):
        if line.strip():
            yield Prompt(number, line.rstrip("\n"))


def _rows(text: io.TextIOWrapper, template: str | None) -> Iterator[Prompt]:
    csv.field_size_limit(MAX_FIELD)
    reader = csv.DictReader(text, strict=True)
    try:
        columns = list(reader.fieldnames or [])
        if not columns:
            return
        if template is None and "prompt" not in columns and len(columns) != 1:
            raise RequestError(
                f"The table has no column 'prompt', but {', '.join(columns)[:MAX_LIST]}; "
                "say how to use them with a template, such as 'Translate {text}'.",
                code="invalid_value",
                param="template",
            )
        column = "prompt" if "prompt" in columns else columns[0]
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
