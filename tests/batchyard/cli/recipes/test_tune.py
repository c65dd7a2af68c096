"""Dimensions of a tune are written as KEY=VALUE,VALUE."""

from __future__ import annotations

from typing import Any

import pytest

from batchyard.cli.recipes.tune import _cells, _dimension
from batchyard.errors import ConfigurationError


@pytest.mark.parametrize(
    ("text", "key", "values"),
    [
        ("replicas=1,2", "replicas", [1, 2]),
        ("engine_args.dtype=half, 'a,b'", "engine_args.dtype", ["half", "a,b"]),
        ("engine_args.flag=true,null,0.5", "engine_args.flag", [True, None, 0.5]),
        ("key=a=b", "key", ["a=b"]),
    ],
)
def test_values_are_read_as_yaml(text: str, key: str, values: list[Any]) -> None:
    assert _dimension(text) == (key, values)


@pytest.mark.parametrize(
    ("text", "says"),
    [("replicas", "write KEY=VALUE,VALUE"), ("replicas= ", "write KEY=VALUE,VALUE"), ("a=[1", "put texts in quotes")],
)
def test_what_cannot_be_read_is_refused_with_the_remedy(text: str, says: str) -> None:
    with pytest.raises(ConfigurationError, match=f"^--set .*{says}"):
        _dimension(text)


def test_the_cells_of_a_dry_run_are_a_table_with_its_warnings() -> None:
    cell = {"name": "mini-8x2", "model": "mini", "concurrency": 2, "overrides": {"replicas": 1, "dtype": "half"}}
    shown = _cells({"cells": [cell], "warnings": [{"message": "It is long."}]})
    assert shown.splitlines()[-1] == "Warning: It is long."
    assert "replicas=1, dtype=half" in shown and "side by side" in shown
