"""What a gate does, and what its twin does."""

from __future__ import annotations

import re
from typing import Any

import pytest

from batchyard.recipes import Item
from recipes.gates import BUILT_IN

ITEM = Item(0, "a", {"answer": "3.5", "extra": {"word": "a.b"}})
NAME = {"type": "object", "properties": {"name": {"type": "string", "pattern": "^[a-z]+$"}}, "required": ["name"]}
"""A schema."""


def check_both(gate: str, value: Any, passing: list[str], failing: list[str]) -> None:
    """Check that the gate and its twin take the value, and that each text passes one of them."""
    plain, twin = BUILT_IN[gate], BUILT_IN[f"not-{gate}"]
    for check in (plain.check, twin.check):
        assert check is not None
        check(value)
    for texts, passed, failed in ((passing, plain, twin), (failing, twin, plain)):
        for text in texts:
            assert passed(text, ITEM, value) is None, text
            failure = failed(text, ITEM, value)
            assert failure is not None and failure.category == failed.name and failure.message.endswith(".")


def check_refused(gate: str, value: Any, reason: str) -> None:
    """Check that the twin of a gate does not take the value, for this reason."""
    check = BUILT_IN[f"not-{gate}"].check
    assert check is not None
    with pytest.raises(ValueError, match=re.escape(reason)):
        check(value)
