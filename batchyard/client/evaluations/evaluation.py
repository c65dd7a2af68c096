"""An evaluation as a file describes it, and what the readers of all formats need."""

import tempfile
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from batchyard.errors import ConfigurationError


@dataclass
class Evaluation:
    """Options of recipe `evaluate`, the file with the rows, and what of the document has no counterpart here."""

    options: dict[str, Any]
    source: Path
    name: str | None = None  # what the file calls itself; None if it does not
    ignored: list[str] = field(default_factory=list)  # keys of the document that change nothing, for a note


def wrong(place: object, reason: str) -> ConfigurationError:
    """Return the error about a place of a document."""
    return ConfigurationError(f"{place}: {reason}")


def written(rows: Iterable[Mapping[str, Any]], folder: Path) -> Path:
    """Write rows as lines of JSON to a new file in the folder, and return it."""
    from batchyard import json_lines

    with tempfile.NamedTemporaryFile(dir=folder, suffix=".jsonl", delete=False) as lines:
        lines.writelines(json_lines.line(row, str) for row in rows)
    return Path(lines.name)


class Templates:
    """Jinja templates of a file on this machine. They are filled here: a server gets texts only.

    They reach the values alone: the sandbox knows no files, and no attributes that lead to code.
    """

    def __init__(self) -> None:
        from jinja2 import StrictUndefined
        from jinja2.sandbox import SandboxedEnvironment

        self._environment = SandboxedEnvironment(undefined=StrictUndefined, keep_trailing_newline=True)

    def fill(self, text: str, values: Mapping[str, Any], place: str) -> str:
        """Return the filled text. Raises ConfigurationError, with the place, for a name that has no value."""
        from jinja2 import TemplateError

        try:
            return self._environment.from_string(text).render(values)
        except TemplateError as error:
            raise wrong(place, f"the template cannot be filled: {error}") from None
        except (TypeError, ValueError, ArithmeticError, LookupError) as error:
            raise wrong(place, f"the template cannot be filled: {type(error).__name__}: {error}") from None


def as_list(value: Any) -> list[Any]:
    """Return a list as it is, and any other value as a list of one; of None an empty one."""
    if value is None:
        return []
    return list(value) if isinstance(value, list) else [value]


def unread(document: Mapping[str, Any], known: Iterable[str]) -> list[str]:
    """Return the keys of a document that no reader looks at."""
    names = set(known)
    return [str(key) for key in document if key not in names]
