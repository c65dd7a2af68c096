"""The first requests of an input as people read them, before anything runs."""

import contextlib
import io
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import islice
from typing import IO, Any

from batchyard.tables import formats, reading
from batchyard.tables.formats import TableError
from batchyard.wording import cut
from webapp.pages import answers
from webapp.pages.answers import Passage

MAX_CHARACTERS = 2000
MAX_COLUMNS = 50
SHOWN = 3


@dataclass(frozen=True)
class ShownRequest:
    """A request before it is sent, named by its custom_id, or by the stage that it belongs to."""

    name: str
    model: str
    passages: list[Passage]
    parameters: Mapping[str, str]
    json: str


def columns(file: IO[bytes], name: str) -> list[str]:
    """Return the columns of a table, or the fields of the first line of JSON; none of what cannot be read."""
    kind = formats.kind_of(name)
    if kind is None or kind.format in ("txt", "prompts"):
        return []
    try:
        first = next(reading.rows(formats.decompressed(file, kind.compression), kind.format), None)
    except TableError:
        return []  # the preview says why
    return [] if first is None else list(first.values)[:MAX_COLUMNS]


def whole_rows(content: bytes, name: str) -> bytes:
    """Return the beginning of a table without its last row, which may end in the middle of a cell."""
    kind = formats.kind_of(name)
    if kind is None or kind.format not in ("csv", "tsv"):
        return content
    before, last = 1, 1  # the lines on which the last two rows end
    with contextlib.suppress(TableError):
        for row in reading.rows(io.BytesIO(content), kind.format):
            before, last = last, row.line
    return b"".join(islice(io.BytesIO(content), before))


def of_lines(lines: Iterable[Mapping[str, Any]]) -> list[ShownRequest]:
    return [_shown(str(line.get("custom_id", "")), line.get("body"), line) for line in islice(lines, SHOWN)]


def of_bodies(named: Iterable[tuple[str, Any]]) -> list[ShownRequest]:
    return [_shown(name, body, body) for name, body in islice(named, SHOWN)]


def _shown(name: str, body: Any, document: Any) -> ShownRequest:
    fields = body if isinstance(body, dict) else {}
    return ShownRequest(
        name=name,
        model=str(fields.get("model") or ""),
        passages=[
            passage._replace(text=cut(passage.text, MAX_CHARACTERS)) for passage in answers.prompt(fields, listed=True)
        ],
        parameters={key: cut(value, 200) for key, value in answers.parameters(fields).items()},
        json=cut(json.dumps(document, ensure_ascii=False, indent=2), MAX_CHARACTERS),
    )
