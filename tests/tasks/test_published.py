"""Published hashes are copies: without them a reader goes on with nothing."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any
from unittest import mock

import pytest
import redis

from tasks import published


def context_with(**behaviour: Any) -> Any:
    return SimpleNamespace(redis=mock.Mock(spec=redis.Redis, hmget=mock.Mock(**behaviour)))


def test_fields_that_are_not_there_are_left_out() -> None:
    context = context_with(return_value=["1", None, ""])
    assert published.read(context, "key", ["a", "b", "c"], "speeds") == {"a": "1"}


def test_nothing_is_asked_of_redis_for_no_fields() -> None:
    context = context_with(side_effect=AssertionError)
    assert published.read(context, "key", [], "speeds") == {}


def test_redis_that_is_away_is_logged_and_nothing_is_read(caplog: pytest.LogCaptureFixture) -> None:
    context = context_with(side_effect=redis.ConnectionError("refused"))
    assert published.read(context, "key", ["a"], "speeds") == {}
    assert "speeds not read: refused" in caplog.text


def test_a_hash_is_replaced_whole_and_an_empty_one_is_deleted() -> None:
    pipeline = mock.Mock()
    published.replace(pipeline, "key", {"a": "1"})
    published.replace(pipeline, "key", {})
    assert pipeline.mock_calls == [
        mock.call.delete("key"),
        mock.call.hset("key", mapping={"a": "1"}),
        mock.call.delete("key"),
    ]
