"""Templates of prompts: a text with columns of a table in braces, such as `Translate {text} to {lang}`."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import Any

from batchyard.tables import cells
from batchyard.tables.cells import CellError
from batchyard.wording import MAX_LIST, cut, nearest, quoted

_TOKEN = re.compile(r"\{\{|\}\}|\{([^{}]*)\}|[{}]")
_BRACES = "Braces that are text are doubled: {{ and }}"


class TemplateError(ValueError):
    """A text that is no template, or not one of the table's columns. The message has the remedy."""


class Template:
    """A text with columns in braces. Doubled braces are braces, as in Python's format strings.

    What stands in braces is a column's name and nothing else, so a name may have spaces, dots and colons.

    Attributes:
        columns: the names of the columns, each once.
    """

    def __init__(self, text: str) -> None:
        """Parse a template. Raises TemplateError for a brace that stands alone."""
        self._literals, self._names = [""], list[str]()
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
                self._names.append(name)
                self._literals.append("")
        self._literals[-1] += text[end:]
        self.columns = tuple(dict.fromkeys(self._names))

    def check(self, columns: Iterable[str]) -> None:
        """Raise TemplateError for the first name that is none of these columns."""
        known = list(columns)
        for name in self.columns:
            if name not in known:
                hint = _hint(name, known)
                raise TemplateError(f"no column {quoted(name)}; {hint}{'' if hint[-1] == '?' else ';'} {_BRACES}")

    def fill(self, row: Mapping[str, Any]) -> str:
        """Return the text with the cells of a row in place of their columns.

        Raises:
            CellError: the row has no such column, or what stands there cannot be part of a prompt.
        """
        texts = {name: cells.text(row[name], name) for name in self.columns if name in row}
        if missing := [name for name in self.columns if name not in texts]:
            raise CellError(f"is missing; {_hint(missing[0], list(row))}", "missing_column", missing[0])
        values = [*(texts[name] for name in self._names), ""]
        return "".join(part for pair in zip(self._literals, values, strict=True) for part in pair)


@lru_cache(64)
def parsed(text: str) -> Template:
    """Return the template of a text; the same object for the same text. Raises TemplateError."""
    return Template(text)


def _hint(name: str, columns: list[str]) -> str:
    close = nearest(name, columns, 0.6)
    return f"did you mean {close!r}?" if close else f"there are {cut(', '.join(columns), MAX_LIST) or 'none'}"
