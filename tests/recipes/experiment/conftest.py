"""Fewer draws, so that comparisons take milliseconds. tests/recipes/measures has those of all draws."""

from __future__ import annotations

import pytest

from recipes.measures import intervals


@pytest.fixture(autouse=True)
def few_draws(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(intervals, "DRAWS", 1000)
