"""What a batch does now: a cold start, a queue, work and a hold can be told apart."""

from __future__ import annotations

from typing import Any

import pytest

from batchyard.statuses import BACKGROUND
from store.queue import BacklogEntry
from tasks.context import AppContext
from tasks.scheduling import states
from tasks.scheduling.states import BatchActivity, Engines, of_queue, state

HERE = Engines({"m", "n"}, {})
NO_ENGINE = Engines(set(), {})


def entry(
    batch: str,
    *,
    active: bool = False,
    answered: int = 0,
    model: str = "m",
    project: str = "mine",
    due: int = 1000,
    kind: str = "decode",
    priority: int = 0,
) -> BacklogEntry:
    counts = (1, 100, 10_000, answered, priority)
    return BacklogEntry(batch, project, False, due, model, kind, active, *counts)  # type: ignore[arg-type]


def test_a_batch_with_answers_runs() -> None:
    assert of_queue([entry("a", active=True, answered=1)], {"a"}, NO_ENGINE, {}) == {"a": BatchActivity("running")}


def test_a_segment_that_waits_for_a_cold_engine_starts_it_and_says_how_long_that_takes() -> None:
    entries = [entry("a", active=True)]
    assert of_queue(entries, set(), NO_ENGINE, {"m": 42.0}) == {
        "a": BatchActivity("starting_engine", usual_seconds=42.0)
    }
    assert of_queue(entries, set(), NO_ENGINE, {}) == {"a": BatchActivity("starting_engine")}, "never measured"
    assert of_queue(entries, set(), HERE, {"m": 42.0}) == {"a": BatchActivity("running")}, (
        "only the first answer is missing"
    )


def test_an_engine_that_starts_again_is_said_to_start_also_for_a_batch_with_answers() -> None:
    entries = [entry("a", active=True)]
    assert of_queue(entries, {"a"}, Engines(set(), {"m": 1.0}), {})["a"].name == "starting_engine"
    assert of_queue(entries, {"a"}, NO_ENGINE, {})["a"].name == "running", "its status may only not be published yet"
    goes_on = [entry("a", active=True, answered=7)]
    assert of_queue(goes_on, {"a"}, Engines(set(), {"m": 1.0}), {"m": 42.0})["a"] == BatchActivity(
        "starting_engine", usual_seconds=42.0
    )
    assert of_queue(goes_on, {"a"}, Engines({"m"}, {"m": 1.0}), {})["a"].name == "running", "another one is there"
    both = [*goes_on, entry("a", active=True, model="n", answered=1)]
    assert of_queue(both, {"a"}, Engines({"n"}, {"m": 1.0}), {})["a"].name == "running", "its other model answers"


def test_a_batch_waits_behind_those_that_run_and_those_that_are_due_before_it() -> None:
    entries = [
        entry("late", due=3000),
        entry("soon", due=1000),
        entry("runs", active=True, answered=5, due=9000),
        entry("mine", due=2000),
        entry("other model", model="n", due=1),
    ]
    outcome = of_queue(entries, {"runs"}, HERE, {})
    line: dict[str, Any] = {"running": 1, "model": "m", "next_id": "soon"}
    assert outcome["mine"] == BatchActivity("waiting", behind=2, behind_ids=("runs", "soon"), **line)
    assert outcome["soon"] == BatchActivity("waiting", behind=1, behind_ids=("runs",), **line)
    assert outcome["late"].behind == 3


def test_a_priority_moves_a_batch_before_those_of_its_project_and_before_no_others() -> None:
    entries = [
        entry("soon", due=1000),
        entry("theirs", due=2000, project="other"),
        entry("urgent", due=3000, priority=1),
        entry("whenever", due=500, priority=-1),
    ]
    outcome = of_queue(entries, set(), HERE, {})
    assert [outcome[batch].behind for batch in ("theirs", "urgent", "soon", "whenever")] == [0, 1, 2, 3]
    assert outcome["soon"].behind_ids == ("urgent",)


def test_a_paused_batch_says_so_whatever_it_waits_for() -> None:
    for status in ("validating", "in_progress"):
        assert state(status, 3, "no GPU", BatchActivity("running"), paused=True) == BatchActivity("paused")
    assert state("completed", 3, None, None, paused=True) is None


def test_batches_of_another_project_are_counted_and_never_named() -> None:
    entries = [
        entry("theirs", active=True, project="other"),
        *(entry(f"mine{number}", due=number) for number in range(1, 6)),
    ]
    last = of_queue(entries, set(), HERE, {})["mine5"]
    line: dict[str, Any] = {"running": 1, "model": "m"}
    three = ("mine1", "mine2", "mine3")
    assert last == BatchActivity("waiting", behind=5, behind_ids=three, next_id="mine1", **line), (
        "three at most are named"
    )
    both = [entry("theirs", active=True, project="other"), entry("mine")]
    assert of_queue(both, set(), HERE, {})["mine"] == BatchActivity("waiting", behind=1, next_id="mine", **line)
    both.append(entry("theirs, too", project="other", due=1))
    assert of_queue(both, set(), HERE, {})["mine"] == BatchActivity("waiting", behind=2, next_id=None, **line)


def test_behind_another_model_a_batch_waits_only_for_what_runs() -> None:
    entries = [entry("runs", active=True, model="n"), entry("waits", model="n"), entry("mine")]
    assert of_queue(entries, set(), HERE, {})["mine"] == BatchActivity(
        "waiting", behind=1, behind_ids=("runs",), running=1, next_id="mine"
    )
    assert of_queue([entry("mine")], set(), HERE, {})["mine"].behind == 0


def test_a_batch_of_two_models_or_classes_never_waits_behind_itself() -> None:
    entries = [entry("mine"), entry("mine", kind="prefill"), entry("soon", model="n", due=1), entry("mine", model="n")]
    assert of_queue(entries, set(), HERE, {})["mine"].behind == 0


@pytest.mark.parametrize(
    ("status", "answered", "held", "in_queue", "name"),
    [
        ("validating", 0, None, None, "validating"),
        ("validating", 0, "the store is away", None, "held"),
        ("in_progress", 0, None, None, "waiting"),
        ("in_progress", 5, None, None, "running"),
        ("in_progress", 0, None, BatchActivity("starting_engine"), "starting_engine"),
        ("in_progress", 0, "no weights", None, "held"),
        ("in_progress", 5, "no weights", BatchActivity("running"), "running"),
        ("finalizing", 5, None, BatchActivity("running"), "finishing"),
        ("cancelling", 5, None, None, "finishing"),
        ("completed", 5, None, BatchActivity("running"), None),
    ],
)
def test_the_state_of_a_batch(
    status: str, answered: int, held: str | None, in_queue: BatchActivity | None, name: str | None
) -> None:
    outcome = state(status, answered, held, in_queue)
    assert (outcome and outcome.name) == name
    assert (outcome and outcome.reason) == (held if name == "held" else None)


def test_an_open_batch_with_nothing_to_answer_waits_for_requests() -> None:
    for answered in (0, 2):
        outcome = state("in_progress", answered, None, None, idle=True)
        assert outcome is not None and outcome.name == "open"
    assert state("in_progress", 2, None, BatchActivity("running"), idle=False) == BatchActivity("running")
    assert state("finalizing", 2, None, None, idle=True) == BatchActivity("finishing")


def test_states_are_published_and_read(connected: AppContext) -> None:
    waiting = BatchActivity("waiting", behind=2, behind_ids=("x",))
    states.publish(connected, {"a": waiting, "b": BatchActivity("running")})
    assert states.read(connected, ["a", "b", "c"]) == {"a": waiting, "b": BatchActivity("running")}
    states.publish(connected, {})
    assert states.read(connected, ["a"]) == {}


def test_without_redis_no_state_is_known(context: AppContext) -> None:
    states.publish(context, {"a": BatchActivity("running")})
    assert states.read(context, ["a"]) == {}


def test_the_background_waits_behind_all_others_of_its_model() -> None:
    entries = [
        entry("spare", due=1, priority=BACKGROUND, project="theirs"),
        entry("runs", active=True, answered=5),
        entry("mine", due=9000, priority=-1),
    ]
    states = of_queue(entries, {"runs"}, HERE, {})
    assert (states["mine"].behind, states["spare"].behind) == (1, 2)
