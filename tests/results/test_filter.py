"""A filter leaves the rows that it says, and each row has one state and one grade."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from results.filter import GRADES, NEVER_RUN_STATES, STATES, Filter, grade_of, select, state_of

CODES = [*NEVER_RUN_STATES, "invalid_request", "request_timeout", None]
ROWS = st.lists(
    st.fixed_dictionaries(
        {
            "ok": st.sampled_from([True, False, None]),
            "code": st.sampled_from(CODES),
            "custom_id": st.text("aÄ.%", max_size=4),
            "correct": st.sampled_from([True, False, None]),
            "task": st.sampled_from(["sum", "sort", None]),
        }
    ),
    min_size=1,
    max_size=20,
)
SCHEMA = pa.schema(
    [
        ("ok", pa.bool_()),
        ("code", pa.string()),
        ("custom_id", pa.string()),
        ("correct", pa.bool_()),
        ("task", pa.string()),
    ]
)
FILTERS = st.builds(
    Filter,
    state=st.sampled_from(["", *STATES, "unsuccessful"]),
    grade=st.sampled_from(["", *GRADES]),
    task=st.sampled_from(["", "sum"]),
    code=st.sampled_from(["", "expired", *filter(None, CODES)]),
    custom_id=st.text("aÄ.%", max_size=2),
)


def is_left(row: dict[str, Any], chosen: Filter) -> bool:
    """What a filter says in words, of one row."""
    state = state_of(row["ok"], row["code"])
    states = ("failed", "expired", "cancelled") if chosen.state == "unsuccessful" else (chosen.state or state,)
    return (
        state in states
        and chosen.grade in ("", grade_of(row["correct"]))
        and chosen.task in ("", row["task"])
        and chosen.code in ("", row["code"])
        and chosen.custom_id.lower() in row["custom_id"].lower()
    )


def answered(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The rows as batches have them: a good answer and one that is to come have no code of an error."""
    return [row if row["ok"] is False else row | {"code": None} for row in rows]


@given(ROWS, FILTERS)
def test_a_filter_leaves_the_rows_that_it_names_in_their_order(rows: list[dict[str, Any]], chosen: Filter) -> None:
    rows = answered(rows)
    left = select(pa.Table.from_pylist(rows, SCHEMA), chosen).tolist()
    assert left == [number for number, row in enumerate(rows) if is_left(row, chosen)]


@given(ROWS, FILTERS)
def test_each_row_has_one_state_and_one_grade(rows: list[dict[str, Any]], chosen: Filter) -> None:
    table = pa.Table.from_pylist(answered(rows), SCHEMA)
    for field, values in (("state", STATES), ("grade", GRADES)):
        parts = [row for value in values for row in select(table, replace(chosen, **{field: value})).tolist()]
        assert sorted(parts) == select(table, replace(chosen, **{field: ""})).tolist()


@pytest.mark.parametrize("chosen", [Filter(grade="right"), Filter(task="sum")])
def test_of_a_batch_without_scores_grades_and_tasks_leave_nothing(chosen: Filter) -> None:
    table = pa.Table.from_pylist([{"ok": True, "code": None, "custom_id": "a"}], SCHEMA).select(
        ["ok", "code", "custom_id"]
    )
    assert select(table, chosen).tolist() == []
    assert select(table, Filter(state="succeeded")).tolist() == [0]
