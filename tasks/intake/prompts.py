"""Prompts in a list, text, table (CSV or Parquet) or JSON lines, as a batch's requests."""

import io
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from typing import IO, Any, TypedDict, Unpack

from batchyard import json_lines
from batchyard.endpoints.catalog import CHAT, ENDPOINTS
from batchyard.errors import RequestError, TooLargeError
from batchyard.request_lines.lines import REFUSED, LineError, parse
from batchyard.tables import cells, formats, images, reading
from batchyard.tables.cells import CellError
from batchyard.tables.columns import is_index
from batchyard.tables.formats import Format, Kind, TableError
from batchyard.tables.template import Template, TemplateError
from batchyard.wording import MAX_LIST, cut, quoted
from store.formats.results import ROW

_CONTENT = ("messages", "prompt")
MAX_TITLE = 60
"""Most characters of a title."""


class Reading(TypedDict, total=False):
    null_values: Collection[str]
    max_line_bytes: int
    max_bytes: int


@dataclass(frozen=True)
class InputPrompt:
    """The content of one request: a text, or chat messages.

    `number` is its line in the source, of Parquet its row. `refusal` says why its row makes no request. `row` has the
    cells that filled a template; answers are shown beside them.
    """

    number: int
    content: str | list[Any]
    custom_id: str | None = None
    refusal: LineError | None = None
    row: Mapping[str, Any] | None = None


@dataclass(frozen=True)
class RequestTemplate:
    """Model and parameters that all prompts of a batch share."""

    endpoint: str
    model: str
    system: str | None
    parameters: dict[str, Any]

    def request(self, prompt: InputPrompt) -> dict[str, Any]:
        """Return a prompt's request line, or one with its refusal. Raises RequestError for messages as a text."""
        custom_id = prompt.custom_id or f"prompt-{prompt.number}"
        if prompt.refusal is not None:
            return {"custom_id": custom_id, REFUSED: asdict(prompt.refusal)}
        entry, content = ENDPOINTS[self.endpoint], prompt.content
        body: dict[str, Any] = {"model": self.model}
        if isinstance(content, str) and entry.content[0] == "messages":
            content = [{"role": "user", "content": content}]
        if self.system and entry.system is not None:
            body[entry.system] = self.system
        elif self.system and entry is CHAT:
            content = [{"role": "system", "content": self.system}, *content]
        if isinstance(prompt.content, str) or entry is CHAT:
            body[entry.content[0]] = content
        else:
            message = (
                f"Line {prompt.number} has messages or images, which {self.endpoint} does not take; name "
                "/v1/chat/completions."
            )
            raise RequestError(message, code="invalid_value", param="file")
        return {
            "custom_id": custom_id,
            "method": "POST",
            "url": self.endpoint,
            "body": body | self.parameters,
            **({ROW: prompt.row} if prompt.row else {}),
        }


def kind_of(name: str) -> Kind:
    """Return what a file holds by its name. Raises RequestError if the name does not say."""
    kind = formats.kind_of(name)
    if kind is None:
        message = (
            f"Cannot tell from the name {quoted(name)} what the file holds; name it {formats.NAMES}, and text that is "
            f"compressed {formats.COMPRESSED}."
        )
        raise RequestError(message, code="invalid_value", param="file")
    return kind


def refused(error: TableError) -> RequestError:
    if error.code == "file_too_large":
        message = f"{error.message}; split it, or raise BATCHYARD_MAX_FILE_BYTES."
        return TooLargeError(message, code=error.code, param="file")
    return RequestError(f"{error.message}.", code=error.code, param="file")


def changed(lines: Iterable[bytes], changes: Mapping[str, Any], max_line_bytes: int) -> Iterator[bytes]:
    """Yield the lines of a batch file with `changes` in each valid body; None removes a parameter."""
    for number, raw in enumerate(lines, 1):
        try:
            request = parse(number, raw, max_line_bytes)
            body = request["body"] | changes
        except (LineError, TypeError, KeyError):
            yield raw
            continue
        request["body"] = {name: value for name, value in body.items() if value is not None or name not in changes}
        yield json_lines.line(request)


def title_of(text: str) -> str | None:
    """Return what a batch without a name is called after its first prompt; None for a blank text."""
    first = next((line for line in text.split("\n") if line.strip()), "")
    return cut(" ".join(first.split()), MAX_TITLE) or None


def none() -> RequestError:
    message = "There are no prompts: the input is empty, or has nothing but blank lines or names of columns."
    return RequestError(message, code="empty_file", param="prompts")


def of_list(prompts: list[str] | str) -> Iterator[InputPrompt]:
    """Yield a prompt for each text of a list, or line of a text, that is not blank."""
    # `str.splitlines` also ends a line at characters that are text, such as U+2028.
    lines = (line.rstrip("\n") for line in io.StringIO(prompts, newline=None)) if isinstance(prompts, str) else prompts
    for number, text in enumerate(lines, 1):
        if text.strip():
            yield InputPrompt(number, text)


def of_file(
    file: IO[bytes],
    kind: Format,
    template: Template | None,
    **limits: Unpack[Reading],
) -> Iterator[InputPrompt]:
    """Yield the prompts of a file while reading it.

    Each row is a prompt: the template filled with its columns, see `ordered`; its `messages` or `prompt`, with the
    images of its columns; or its only column. A column `custom_id` names the request. A row that makes no request has
    its refusal. `limits`: as `reading.rows` has them.

    Raises RequestError: the file or the template cannot be used; the message names the line.
    """
    if template is not None:
        _check_kind(template, kind)
    is_table = kind in formats.UNIFORM

    def pick(columns: list[str]) -> list[str]:
        if template is not None:
            _check_columns(template, columns)
        elif not set(columns) & set(_CONTENT):
            return columns
        wanted = (*_CONTENT, *images.COLUMNS, *images.OTHER_MEDIA) if template is None else columns
        return [name for name in dict.fromkeys([*wanted, "custom_id"]) if name in columns]

    word = "Row" if kind == "parquet" else "Line"
    checked = False
    try:
        for row in reading.rows(file, kind, **limits, pick=pick):
            if row.problem is not None:
                yield InputPrompt(row.line, "", refusal=LineError(row.code, f"{word} {row.line} {row.problem}."))
                continue
            if is_table and template is not None and not checked:
                _check_columns(template, row.values)
                checked = True
            custom_id = None
            try:
                custom_id = cells.optional(row.values.get("custom_id"), "custom_id")
                content = _filled(template, row.values) if template else _content(row.values, is_table=is_table)
            except CellError as error:
                refusal = LineError(error.code, f"{word} {row.line}: {error}.", error.column)
                yield InputPrompt(row.line, "", custom_id, refusal)
            else:
                kept = None if template is None else _kept(row.values, template)
                yield InputPrompt(row.line, content, custom_id, row=kept)
    except TableError as error:
        raise refused(error) from None


def _check_columns(template: Template, columns: Collection[str]) -> None:
    try:
        template.check(columns)
    except TemplateError as error:
        raise _of_template(error) from None


def _of_template(error: TemplateError) -> RequestError:
    return RequestError(f"The template has {error}.", code="invalid_value", param="template")


def template_of(text: str) -> Template:
    """Return the template of a text. Raises RequestError."""
    try:
        return Template(text)
    except TemplateError as error:
        raise _of_template(error) from None


def ordered(template: Template, file: IO[bytes], kind: Format, **limits: Unpack[Reading]) -> Template:
    """Return a template with all columns in the order that the rows decide. Raises as `of_file`."""
    if not template.is_open:
        return template
    _check_kind(template, kind)
    rows = reading.rows(file, kind, **limits)
    try:
        return template.ordered((row.values for row in rows if row.problem is None), uniform=kind in formats.UNIFORM)
    except TemplateError as error:
        raise _of_template(error) from None
    except TableError as error:
        raise refused(error) from None


def _check_kind(template: Template, kind: Format) -> None:
    if kind in ("txt", "prompts") or not (template.columns or template.has_all):
        message = "A template names the columns of a table or the fields of a jsonl file, such as 'Translate {text}'."
        raise RequestError(message, code="invalid_value", param="template")


def _kept(row: Mapping[str, Any], template: Template) -> dict[str, Any]:
    """Return the cells of a row that JSON has, without images, which are in its request."""
    kept = {}
    for name, cell in row.items():
        if name not in template.images:
            with suppress(CellError):
                kept[name] = cells.json_value(cell, name)
    return kept


def _filled(template: Template, row: Mapping[str, Any]) -> str | list[Any]:
    content = template.fill(row)
    return content if isinstance(content, str) else [{"role": "user", "content": content}]


def _content(row: Mapping[str, Any], *, is_table: bool) -> str | list[Any]:
    """Return the messages or the prompt of a row. Raises CellError; RequestError if no row can have one."""
    name = next((name for name in _CONTENT if row.get(name)), "prompt")
    others = [other for other in row if not is_index(other)]
    if name not in row and is_table and len(others) == 1:
        (name,) = others
    if name not in row:
        present = ", ".join(row)[:MAX_LIST]
        if is_table:
            message = (
                f"The table has no column 'prompt', but {present}; say how to use them with a template, such as "
                "'Translate {text}'."
            )
            raise RequestError(message, code="invalid_value", param="template")
        reason = f"is missing, and so is 'messages'; available: {present}. Name them in a template"
        raise CellError(reason, "missing_column", name)
    if not isinstance(row[name], list):
        text = cells.text(row[name], name)
        messages = images.attached([{"role": "user", "content": text}], row)
        return messages if isinstance(messages[0]["content"], list) else text
    messages = cells.json_value(row[name], name)
    return images.attached(messages, row) if all(isinstance(message, dict) for message in messages) else messages


def is_requests(file: IO[bytes], max_line_bytes: int = json_lines.MAX_LINE_BYTES) -> bool:
    """True if a JSON lines file begins with a whole request. Reads its first line."""
    first = next(reading.rows(file, "jsonl", max_line_bytes=max_line_bytes), None)
    return first is not None and "custom_id" in first.values and "body" in first.values
