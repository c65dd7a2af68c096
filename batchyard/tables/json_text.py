"""Says why a text is not JSON, with the place in it."""

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from batchyard.tables.cells import HALF
from batchyard.wording import quoted

_HALF = re.compile("[\ud800-\udfff]")


@dataclass(frozen=True)
class _NotANumber:
    """NaN, Infinity or -Infinity, which Python writes as JSON and others do not read."""

    name: str


def not_a_number(raw: bytes | str) -> str | None:
    """Return where a line, else JSON, has NaN or an infinity; None otherwise."""
    try:
        value = json.loads(raw, parse_constant=_NotANumber, parse_int=float)
        path, constant = next(_not_numbers(value, ""))
    except (ValueError, RecursionError, StopIteration):
        return None
    return f"{constant.name} at {quoted(path)}. {constant.name} is not JSON; write null or leave it out"


def half_character(raw: bytes | str) -> str | None:
    """Return which field of an object, else JSON, has half of a surrogate pair."""
    try:
        value = json.loads(raw)
        fields = value.items() if isinstance(value, dict) else [("prompt", value)]
        name = next(name for name, field in fields if _HALF.search(f"{name}{json.dumps(field, ensure_ascii=False)}"))
    except (ValueError, RecursionError, StopIteration):
        return None
    return f"column {quoted(name)[1:-1]} {HALF}"


def _not_numbers(value: Any, path: str) -> Iterator[tuple[str, _NotANumber]]:
    if isinstance(value, _NotANumber):
        yield path, value
    elif isinstance(value, dict):
        for name, child in value.items():
            yield from _not_numbers(child, f"{path}.{name}".removeprefix("."))
    elif isinstance(value, list):
        for index, child in enumerate(value):
            yield from _not_numbers(child, f"{path}[{index}]")
