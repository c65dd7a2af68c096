"""Templates of prompts: a text with columns of a table in braces, such as `Translate {text} to {lang}`."""

from __future__ import annotations

import copy
import json
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Any

from batchyard.tables import cells, columns, images
from batchyard.tables.cells import CellError
from batchyard.tables.columns import Statistics, TooManyColumns
from batchyard.tables.images import Part
from batchyard.wording import quoted, suggestion

_TOKEN = re.compile(r"\{\{|\}\}|\{([^{}]*)\}|[{}]")
_BRACES = "Write literal braces twice: {{ and }}"
_IMAGE = ":image"
ALL = "*"
"""The name of all columns, in one order that the rows decide."""
ALL_BY_ROW = "*:per-row"
"""The same, each row in an order of its own."""


class TemplateError(ValueError):
    """A text that is no template, or not one of the table's columns. The message has the remedy."""


class Template:
    """A text with columns in braces. Doubled braces are braces, as in Python's format strings.

    What stands in braces is a column's name, which may have spaces, dots and colons. With `:image` behind it, the
    column's cell is sent as an image, in a chat. `{*}` is all columns that the template does not name, as lines; see
    `ordered` for their order. `{*["title", "text"]}` is these columns as lines, in this order.

    Attributes:
        text: the template as it is written.
        columns: the names of the columns that stand in braces by themselves, each once.
        images: those of them that are sent as images.
        has_all: True if lines of columns stand in it.
        by_row: True if each row's lines have an order of their own.
        order: the columns of the lines, if that is one for all rows and known.
    """

    def __init__(self, text: str) -> None:
        """Parse a template. Raises TemplateError for a brace that stands alone, and for lines that stand twice."""
        self.text = text
        self._literals, names = [""], list[str]()
        self._span = (0, 0)
        self._row_order: columns.Order | None = None
        self.has_all, self.by_row = False, False
        self.order: tuple[str, ...] | None = None
        end = 0
        for match in _TOKEN.finditer(text):
            self._literals[-1] += text[end : match.start()]
            end = match.end()
            token, name = match[0], match[1]
            if token in ("{{", "}}"):
                self._literals[-1] += token[0]
                continue
            if name is None:
                other, remedy = "'}'", "close it behind the column's name"
                if token == "}":
                    other, remedy = "'{'", "open it before the name"
                place = f"without {other} at character {match.start() + 1}"
                raise TemplateError(f"a {token!r} {place}; {remedy}, or write {2 * token} if it is text")
            order = _order(name)
            if name in (ALL, ALL_BY_ROW) or order is not None:
                if self.has_all:
                    raise TemplateError(f"a second {token}; name a column by itself")
                self.has_all, self.by_row, self.order, self._span = True, name == ALL_BY_ROW, order, match.span()
                name = ALL
            names.append(name)
            self._literals.append("")
        self._literals[-1] += text[end:]
        self._places = [(name.removesuffix(_IMAGE), name.endswith(_IMAGE)) for name in names]
        self.columns = tuple(dict.fromkeys(name for name, is_image in self._places if is_image or name != ALL))
        self.images = tuple(dict.fromkeys(name for name, is_image in self._places if is_image))

    @property
    def is_open(self) -> bool:
        """True if the rows of a table have yet to decide the order of its columns."""
        return self.has_all and self.order is None and self._row_order is None

    def needed(self, names: Iterable[str]) -> list[str]:
        if self.has_all and self.order is None:
            return list(names)
        return list(dict.fromkeys([*self.columns, *(self.order or ())]))

    def check(self, names: Iterable[str]) -> None:
        """Raise TemplateError for the first name that is none of these columns."""
        known = list(names)
        for name in (*self.columns, *(self.order or ())):
            if name not in known:
                if not known:
                    raise TemplateError(f"no column {quoted(name)}: the table is empty")
                remedy = suggestion(name, known)
                raise TemplateError(f"no column {quoted(name)}; {remedy}{'' if remedy[-1] == '?' else ';'} {_BRACES}")

    def ordered(
        self, rows: Iterable[Mapping[str, Any]], *, without: Collection[str] = (), uniform: bool = True
    ) -> Template:
        """Return the template with all columns in an order that the rows decide; itself if it is not open.

        The columns that it names stand where it names them only, so no cell is in a prompt twice. Neither the column
        that names the row nor an index of pandas is among them.

        Args:
            rows: those of the table; as many are read as decide the order.
            without: other columns that are no part of the lines.
            uniform: all rows have the same columns. Otherwise all are read, for their names.

        Raises TemplateError: there are too many columns.
        """
        if not self.is_open:
            return self
        statistics = Statistics({*self.columns, *without})
        try:
            for row in rows:
                statistics.add(row)
                if uniform and statistics.full:
                    break
        except TooManyColumns:
            message = f"{{*}}, and there are more than {columns.MAX_COLUMNS:,} columns; name those that matter"
            raise TemplateError(message) from None
        if not self.by_row:
            names = json.dumps(statistics.order(), ensure_ascii=False)
            names = names.replace("{", "\\u007b").replace("}", "\\u007d")
            start, end = self._span
            return Template(f"{self.text[:start]}{{{ALL}{names}}}{self.text[end:]}")
        ordered = copy.copy(self)
        ordered._row_order = statistics.order_by_row()
        return ordered

    def fill(self, row: Mapping[str, Any]) -> str | list[Part]:
        """Return the text with the cells of a row in place of their columns; content parts if some are images."""
        if missing := [name for name in self.columns if name not in row]:
            raise CellError(f"is missing; {suggestion(missing[0], row)}", "missing_column", missing[0])
        texts, parts = [self._literals[0]], list[Part]()
        for (name, is_image), literal in zip(self._places, self._literals[1:], strict=True):
            if is_image:
                parts += [*_text_part(texts), *images.parts(row[name], name)]
                texts = [literal]
            elif name == ALL:
                texts += [columns.lines(row, self._order_of(row)), literal]
            else:
                texts += [cells.text(row[name], name), literal]
        return [*parts, *_text_part(texts)] if self.images else "".join(texts)

    def _order_of(self, row: Mapping[str, Any]) -> Sequence[str]:
        """Return the columns of a row's lines: as its table decides, else as they stand in the row."""
        if self.order is not None:
            return self.order
        if self._row_order is not None:
            return self._row_order(row)
        apart = {*self.columns, columns.ROW_NAME}
        return [name for name in row if name not in apart and not columns.is_index(name)]


def _order(name: str) -> tuple[str, ...] | None:
    """Return the columns of `*["title", "text"]`; None for any other name."""
    try:
        names = json.loads(name.removeprefix(ALL)) if name.startswith(f"{ALL}[") else None
    except ValueError:
        return None
    if not isinstance(names, list) or not all(isinstance(each, str) for each in names):
        return None
    return tuple(dict.fromkeys(names))


def _text_part(texts: list[str]) -> list[Part]:
    text = "".join(texts)
    return [{"type": "text", "text": text}] if text else []


@lru_cache(64)
def parsed(text: str) -> Template:
    """Return the template of a text; the same object for the same text. Raises TemplateError."""
    return Template(text)
