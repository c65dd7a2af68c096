"""The tree that batchyard/errors.py draws is the tree of its classes, with their statuses."""

from __future__ import annotations

import re

import pytest

from batchyard import errors
from batchyard.errors import BatchyardError, value_code


def drawn() -> dict[str, tuple[str | None, int]]:
    """The parent and the status of each error of the drawing."""
    parents: list[str] = []
    tree: dict[str, tuple[str | None, int]] = {}
    for indent, name, status in re.findall(r"^([ │├└─]*)(\w+) +(\d{3})\b", errors.__doc__ or "", re.MULTILINE):
        depth = len(indent) // 4
        parents[depth:] = [name]
        tree[name] = (parents[depth - 1] if depth else None, int(status))
    return tree


def test_the_drawing_has_every_error_under_its_parent_with_its_status() -> None:
    classes = {
        name: value
        for name, value in vars(errors).items()
        if isinstance(value, type) and issubclass(value, BatchyardError)
    }
    assert drawn() == {
        name: (None if error is BatchyardError else error.__bases__[0].__name__, error.status)
        for name, error in classes.items()
    }


@pytest.mark.parametrize(
    ("kind", "value", "code"),
    [
        ("int_type", "x", "invalid_type"),
        ("int_from_float", 1.5, "invalid_type"),
        ("literal_error", 3, "invalid_type"),
        ("literal_error", "x", "invalid_value"),
        ("greater_than", 0, "invalid_value"),
    ],
)
def test_a_refused_value_has_openais_code(kind: str, value: object, code: str) -> None:
    assert value_code(kind, value) == code
