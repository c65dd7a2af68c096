"""Templates of messages: a text with columns of a table in braces, such as `Translate {text} to {lang}`."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from typing import Any

from batchyard.errors import ConfigurationError
from batchyard.wording import MAX_LIST, cut, nearest, quoted

_TOKEN = re.compile(r"\{\{|\}\}|\{([^{}]*)\}|[{}]")


class Template:
    """A text with columns in braces. Doubled braces are braces, as in Python's format strings.

    What stands in braces is a column's name and nothing else, so a name may have spaces, dots and colons.
    """

    def __init__(self, text: str, columns: Iterable[str], what: str = "template") -> None:
        """Parse a template for a table with these columns; `what` names it in errors.

        Raises:
            ConfigurationError: a brace stands alone, or the table has no such column.
        """
        known = list(columns)
        self.columns: tuple[str, ...] = ()
        self._literals, self._names = [""], list[str]()
        end = 0
        for match in _TOKEN.finditer(text):
            self._literals[-1] += text[end : match.start()]
            end = match.end()
            token, name = match[0], match[1]
            if token in ("{{", "}}"):
                self._literals[-1] += token[0]
                continue
            if name is None:
                raise ConfigurationError(f"{what}: a single {token!r} at character {match.start() + 1}; double it")
            if name not in known:
                raise ConfigurationError(f"{what}: {_unknown(name, known)}")
            self._names.append(name)
            self._literals.append("")
        self._literals[-1] += text[end:]
        self.columns = tuple(dict.fromkeys(self._names))

    def fill(self, cells: Mapping[str, Any]) -> str:
        """Return the text with the cells of one row in place of their columns."""
        texts = [as_text(cells[name]) for name in self._names]
        return "".join(part for pair in zip(self._literals, [*texts, ""], strict=True) for part in pair)


def as_text(cell: Any) -> str:
    """Return a cell as a prompt has it: lists and mappings as JSON, all else as Python writes it."""
    if hasattr(cell, "tolist"):  # NumPy's arrays and numbers
        cell = cell.tolist()
    return json.dumps(cell, ensure_ascii=False, default=str) if isinstance(cell, list | dict | tuple) else str(cell)


def _unknown(name: str, columns: list[str]) -> str:
    close = nearest(name, columns, 0.6)
    remedy = f"did you mean {close!r}?" if close else f"there are {cut(', '.join(columns), MAX_LIST) or 'none'};"
    return f"no column {quoted(name)}; {remedy} Braces that are text are doubled: {{{{ and }}}}"
