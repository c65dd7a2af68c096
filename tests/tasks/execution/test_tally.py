"""Totals add up by model, and can be lost without harm."""

from __future__ import annotations

import pytest
import redis

from tasks.context import AppContext
from tasks.execution import tally


def test_totals_add_up_by_model(connected: AppContext) -> None:
    for _ in range(2):
        tally.count(connected, "a model", {"completed": 2, "error:too_long": 1})
    tally.count(connected, "echo", {"completed": 5})
    assert tally.read(connected) == {
        ("completed", "a model"): 4,
        ("error:too_long", "a model"): 2,
        ("completed", "echo"): 5,
    }


def test_a_redis_that_is_away_stops_no_work(context: AppContext) -> None:
    tally.count(context, "echo", {"completed": 1})
    with pytest.raises(redis.RedisError):
        tally.read(context)
