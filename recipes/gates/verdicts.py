"""Gate external: someone else decides, a CI or a person. Recipe refine waits for the verdict; no process can."""

from __future__ import annotations

from typing import Any

from batchyard.recipes import Failure, Item, gate

MAX_NAME = 100
"""Characters of the name of an external gate."""


def name(value: Any) -> str:
    """Return the name of an external gate. Raises ValueError if the value is none."""
    if not isinstance(value, str) or not value.strip() or len(value) > MAX_NAME:
        raise ValueError(f"needs the name of what gives the verdict, as in external:ci, not {value!r}")
    return value.strip()


@gate("external", name)
def external(text: str, item: Item, value: Any) -> Failure | None:
    """Refuse to decide."""
    raise ValueError(f"only a Wait gets the verdict of {value!r}")
