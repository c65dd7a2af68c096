"""The built-in gates: whether a text passes, decided without a model. Their names are promptfoo's.

Each has a twin `not-<name>`, which fails what the other passes. In texts, and in lists of them, `{{column}}` stands for
a column of the item: `equals:{{answer}}`. Gates import neither Celery, Ray nor the store.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from batchyard.recipes import Failure, Gate, Item
from tasks.gates import json_texts, texts


def parse(text: str) -> tuple[str, str | None]:
    """Return name and value of `name` or `name:value`. The value is all that follows the first colon."""
    name, colon, value = text.partition(":")
    return name.strip(), value if colon else None


def _negated(gate: Gate) -> Gate:
    name = f"not-{gate.name}"

    def function(text: str, item: Item, value: Any) -> Failure | None:
        if gate(text, item, value) is not None:
            return None
        shown = "" if value is None else f" {value!r}"
        return Failure(name, f"The answer must not pass {gate.name}{shown}.")

    return replace(gate, name=name, function=function)


_GATES = (*texts.GATES, *json_texts.GATES)
BUILT_IN: dict[str, Gate] = {gate.name: gate for plain in _GATES for gate in (plain, _negated(plain))}
"""All of them by name."""
LINEAR = frozenset(
    f"{prefix}{gate.name}" for gate in texts.GATES if gate is not texts.levenshtein for prefix in ("", "not-")
)
"""Those whose time grows with the text's length alone, so that they need no process of their own."""
