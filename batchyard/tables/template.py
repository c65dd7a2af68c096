"""Templates of prompts: a text with columns of a table in braces, such as `Translate {text} to {lang}`."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import Any

from batchyard.tables import cells, images
from batchyard.tables.cells import CellError
from batchyard.tables.images import Part
from batchyard.wording import MAX_LIST, cut, nearest, quoted

_TOKEN = re.compile(r"\{\{|\}\}|\{([^{}]*)\}|[{}]")
_BRACES = "Braces that are text are doubled: {{ and }}"
_IMAGE = ":image"


class TemplateError(ValueError):
    """A text that is no template, or not one of the table's columns. The message has the remedy."""


class Template:
    """A text with columns in braces. Doubled braces are braces, as in Python's format strings.

    What stands in braces is a column's name, which may have spaces, dots and colons. With `:image` behind it, the
    column's cell is sent as an image, in a chat.

    Attributes:
        columns: the names of the columns, each once.
        images: those of them that are sent as images.
    """

    def __init__(self, text: str) -> None:
        """Parse a template. Raises TemplateError for a brace that stands alone."""
        self._literals, names = [""], list[str]()
        end = 0
        for match in _TOKEN.finditer(text):
            self._literals[-1] += text[end : match.start()]
            end = match.end()
            token, name = match[0], match[1]
            if token in ("{{", "}}"):
                self._literals[-1] += token[0]
            elif name is None:
                raise TemplateError(f"a single {token!r} at character {match.start() + 1}; double it")
            else:
                names.append(name)
                self._literals.append("")
        self._literals[-1] += text[end:]
        self._places = [(name.removesuffix(_IMAGE), name.endswith(_IMAGE)) for name in names]
        self.columns = tuple(dict.fromkeys(name for name, _ in self._places))
        self.images = tuple(dict.fromkeys(name for name, is_image in self._places if is_image))

    def check(self, columns: Iterable[str]) -> None:
        """Raise TemplateError for the first name that is none of these columns."""
        known = list(columns)
        for name in self.columns:
            if name not in known:
                hint = _hint(name, known)
                raise TemplateError(f"no column {quoted(name)}; {hint}{'' if hint[-1] == '?' else ';'} {_BRACES}")

    def fill(self, row: Mapping[str, Any]) -> str | list[Part]:
        """Return the text with the cells of a row in place of their columns; content parts if some are images.

        Raises:
            CellError: the row has no such column, or what stands there cannot be part of a prompt.
        """
        if missing := [name for name in self.columns if name not in row]:
            raise CellError(f"is missing; {_hint(missing[0], list(row))}", "missing_column", missing[0])
        texts, parts = [self._literals[0]], list[Part]()
        for (name, is_image), literal in zip(self._places, self._literals[1:], strict=True):
            if is_image:
                parts += [*_text_part(texts), *images.parts(row[name], name)]
                texts = [literal]
            else:
                texts += [cells.text(row[name], name), literal]
        return [*parts, *_text_part(texts)] if self.images else "".join(texts)


def _text_part(texts: list[str]) -> list[Part]:
    text = "".join(texts)
    return [{"type": "text", "text": text}] if text else []


@lru_cache(64)
def parsed(text: str) -> Template:
    """Return the template of a text; the same object for the same text. Raises TemplateError."""
    return Template(text)


def _hint(name: str, columns: list[str]) -> str:
    close = nearest(name, columns, 0.6)
    return f"did you mean {close!r}?" if close else f"there are {cut(', '.join(columns), MAX_LIST) or 'none'}"
