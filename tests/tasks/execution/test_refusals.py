"""Requests that no engine will answer get the reason as their answer."""

from __future__ import annotations

import json
from typing import Any, cast

import pyarrow as pa
import pytest

from store import holds
from store.leases import Lease
from store.segments import SegmentLease
from tasks.context import AppContext
from tasks.execution import answering


def a_segment(**fields: Any) -> SegmentLease:
    ids = {
        "lease": cast(Lease, None),
        "batch_id": "batch_1",
        "job_id": None,
        "traceparent": None,
        "project_id": "default",
    }
    work = {"endpoint": "/v1/completions", "plan_sha256": "", "row_group": 0, "number": 0, "requests": 1, "bytes": 1}
    state = {"request_class": "chat", "due_at": 0, "model": {"name": "echo"}, "attempts": 0, "error": None}
    hold = {"cache_bytes": None, "chunks": (), "held": None, "last_chance": False}
    return SegmentLease(**{**ids, **work, **state, **hold, **fields})


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({}, None),
        ({"held": "no GPU"}, None),
        ({"held": "no GPU", "last_chance": True}, "engine_unavailable"),
        ({"attempts": 99, "error": "it died"}, "engine_unavailable"),
        ({"held": holds.UNSERVED, "last_chance": True}, None),
        ({"held": holds.UNSERVED, "last_chance": True, "model": {"name": "gone"}}, "model_not_found"),
    ],
)
def test_requests_are_refused_once_no_engine_will_answer_them(
    context: AppContext, fields: dict[str, Any], code: str | None
) -> None:
    reason = answering.refusal_of(context, a_segment(**fields))
    assert (reason and reason[0]) == code
    if reason is not None and "error" in fields:
        assert "it died" in reason[1]


def test_each_refused_request_has_an_error_line_of_its_own() -> None:
    rows = pa.table({"line": [3, 5], "custom_id": ["a", "b"]})
    lines = answering._engine_error(rows, "engine_unavailable", "it died").to_pylist()
    assert [(line["line"], json.loads(line["answer"])["custom_id"]) for line in lines] == [(3, "a"), (5, "b")]
    assert {json.loads(line["answer"])["error"]["code"] for line in lines} == {"engine_unavailable"}
    assert all(not line["ok"] and line["output_tokens"] == 0 and line["seconds"] is None for line in lines)
