"""A reward returns a finite number."""

from __future__ import annotations

from typing import Any

import pytest

from batchyard.recipes import scored


@pytest.mark.parametrize("value", [float("nan"), float("inf"), None, "1", {"acc": 1}, [1]])
def test_what_is_no_finite_number_is_no_score(value: Any) -> None:
    with pytest.raises(TypeError, match="a reward returns a number"):
        scored(value)
