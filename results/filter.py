"""Filters: which requests of a batch are shown, decided without reading a request or an answer."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from batchyard.endpoints.output_lines import NEVER_RUN

STATES = ("succeeded", "failed", "expired", "cancelled", "waiting")
"""What becomes of a request; `waiting` is not answered yet."""
GRADES = ("right", "wrong", "unscored")
"""How a request of a scored batch was answered; `unscored` has no expected answer."""
NEVER_RUN_STATES = {reason[0]: outcome for outcome, reason in NEVER_RUN.items() if reason is not None}

Numbers = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Filter:
    """Requests to show; an empty field excludes none. `custom_id` and `text` are contained, in any case.

    `state` is one of STATES, or `unsuccessful`: failed, expired or cancelled. `grade` is one of GRADES, and `task` the
    group in which a request was scored; of a batch without scores they leave nothing.
    """

    state: str = ""
    grade: str = ""
    task: str = ""
    code: str = ""
    custom_id: str = ""
    text: str = ""


def state_of(ok: bool | None, code: str | None) -> str:
    return "waiting" if ok is None else "succeeded" if ok else NEVER_RUN_STATES.get(code or "", "failed")


def select(table: pa.Table, chosen: Filter) -> Numbers:
    """Return the rows that a filter leaves, whatever its `text` is."""
    if (chosen.grade or chosen.task) and "correct" not in table.column_names:
        return np.zeros(0, np.int64)
    ok, code = table["ok"], table["code"]
    outcomes = {outcome: code for code, outcome in NEVER_RUN_STATES.items()}
    masks = []
    if chosen.state == "waiting":
        masks.append(pc.is_null(ok))
    elif chosen.state == "succeeded":
        masks.append(ok)
    elif chosen.state == "failed":
        masks += [pc.invert(ok), pc.invert(pc.is_in(code, value_set=pa.array(list(NEVER_RUN_STATES))))]
    elif chosen.state == "unsuccessful":
        masks.append(pc.invert(ok))
    elif chosen.state in outcomes:
        masks.append(pc.equal(code, outcomes[chosen.state]))
    if chosen.grade:
        correct = table["correct"]
        by_grade = {"right": correct, "wrong": pc.invert(correct), "unscored": pc.is_null(correct)}
        masks.append(by_grade[chosen.grade])
    if chosen.task:
        masks.append(pc.equal(table["task"], chosen.task))
    if chosen.code:
        masks.append(pc.equal(code, chosen.code))
    if chosen.custom_id:
        masks.append(pc.match_substring(table["custom_id"], chosen.custom_id, ignore_case=True))
    left = np.ones(table.num_rows, np.bool_)
    for mask in masks:
        left &= pc.fill_null(mask, False).to_numpy()
    return np.flatnonzero(left)


def grade_of(correct: bool | None) -> str:
    return "unscored" if correct is None else "right" if correct else "wrong"
