"""The requests of a batch are filtered, searched and read one by one, while it runs and after its end."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import update

from batchyard.errors import NotFoundError
from results import problems
from results.filter import Filter
from results.opening import open_rows
from results.rows import Page
from store import files
from store.formats import plan
from store.formats import rows as rows_file
from store.records import Batch
from tasks import messages
from tasks.context import AppContext
from tasks.finishing import finalize
from tests.support.planned import answers, append, finish_segment, plan_batch, reload, started
from tests.support.rows_of_files import of_files

HERE = "here/1/task"
TEXTS = ["one", 'two "quoted" häuser', "three", "four\nlines", "five", "six"]


@pytest.fixture(autouse=True)
def _unsent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(messages, "finish", lambda *_: None)


def end(context: AppContext, batch: Batch) -> Batch:
    finalize.start_ready(context)
    assert finalize.merge(context, batch.id, HERE)
    finalize.end(context, batch.id, HERE)
    return reload(context.database, batch)


@pytest.fixture
def ended(context: AppContext, project: str) -> Batch:
    """A batch of six requests that has expired: the second and the fourth failed, the sixth was never run."""
    batch = plan_batch(context, project, TEXTS)
    seconds = [5.5, None, 1.5, 2.5, 4.5]
    lease = started(context.database, batch)
    append(context, lease, answers([5, 3, 1, 2, 4], failed={2: "too_long", 4: "timeout"}, seconds=seconds))
    with context.database.write() as session:
        session.execute(update(Batch).values(status="finalizing", outcome="expired"))
        lease.lease.release(session, state="pending")
    return end(context, batch)


@pytest.fixture
def running(context: AppContext, project: str) -> Batch:
    """A batch of six requests of which three were answered, and the second failed."""
    batch = plan_batch(context, project, TEXTS, segment_requests=4)
    for number in (0, 1):
        lease = started(context.database, batch, number)
        own = planned_lines(context, batch, number)[:2]
        append(context, lease, answers(own, failed={own[1]: "too_long"}, seconds=[0.25, None]))
    return reload(context.database, batch)


def planned_lines(context: AppContext, batch: Batch, row_group: int) -> list[int]:
    return plan.segment(context.artifacts, batch.plan_sha256 or "", row_group)["line"].to_pylist()


def listed(context: AppContext, batch: Batch, limit: int = 10, **chosen: Any) -> Page:
    at = {name: chosen.pop(name) for name in ("after", "before") if name in chosen}
    with open_rows(context, batch) as rows:
        return rows.page(Filter(**chosen), limit, **at)


def lines(page: Page) -> list[int]:
    return [entry.row.line for entry in page.entries]


def test_every_request_of_an_ended_batch_is_listed_with_its_state(context: AppContext, ended: Batch) -> None:
    page = listed(context, ended)
    assert [
        (entry.row.line, entry.row.custom_id, entry.state, entry.row.text, entry.row.seconds) for entry in page.entries
    ] == [
        (1, "r1", "succeeded", "to r1", 1.5),
        (2, "r2", "failed", None, 2.5),
        (3, "r3", "succeeded", "to r3", None),
        (4, "r4", "failed", None, 4.5),
        (5, "r5", "succeeded", "to r5", 5.5),
        (6, "r6", "expired", None, None),
    ]
    assert [entry.row.body["messages"][0]["content"] for entry in page.entries] == TEXTS
    with open_rows(context, ended) as rows:
        assert rows.counts() == {"succeeded": 3, "failed": 2, "expired": 1, "cancelled": 0, "waiting": 0}
        assert rows.codes() == [("batch_expired", 1), ("timeout", 1), ("too_long", 1)]


def test_a_filter_leaves_what_it_names(context: AppContext, ended: Batch) -> None:
    cases: list[tuple[dict[str, str], list[int]]] = [
        ({"state": "succeeded"}, [1, 3, 5]),
        ({"state": "failed"}, [2, 4]),
        ({"state": "unsuccessful"}, [2, 4, 6]),
        ({"state": "expired"}, [6]),
        ({"state": "waiting"}, []),
        ({"code": "timeout"}, [4]),
        ({"custom_id": "R5"}, [5]),
        ({"state": "failed", "code": "batch_expired"}, []),
        ({"text": "TWO"}, [2]),
        ({"text": 'two "quoted" häuser'}, [2]),
        ({"text": "four\nlines"}, [4]),
        ({"text": "to r"}, [1, 3, 5]),
        ({"text": "line 4 failed"}, [4]),
        ({"text": "custom_id"}, []),
        ({"text": "to r", "custom_id": "r3"}, [3]),
    ]
    for chosen, expected in cases:
        page = listed(context, ended, **chosen)
        assert lines(page) == expected, chosen
        assert page.number == (None if "text" in chosen else len(expected))
        assert page.stopped is None


@pytest.mark.parametrize("chosen", [{"state": "unsuccessful"}, {"text": "to r"}])
def test_pages_follow_each_other_both_ways(context: AppContext, ended: Batch, chosen: dict[str, str]) -> None:
    everything = lines(listed(context, ended, **chosen))
    assert len(everything) == 3
    first = listed(context, ended, 2, **chosen)
    second = listed(context, ended, 2, after=first.after, **chosen)
    assert (lines(first), lines(second)) == (everything[:2], everything[2:])
    assert (first.before, second.after) == (None, None)
    back = listed(context, ended, 2, before=second.before, **chosen)
    assert (lines(back), back.before, back.after) == (everything[:2], None, everything[1])


def test_the_neighbours_of_a_request_are_those_of_the_filter(context: AppContext, ended: Batch) -> None:
    with open_rows(context, ended) as rows:
        assert rows.beside(Filter(state="failed"), 4) == (2, None)
        assert rows.beside(Filter(), 1) == (None, 2)
        assert rows.beside(Filter(text="to r"), 3) == (1, 5)
        with pytest.raises(NotFoundError):
            rows.one(7)


def test_a_search_stops_at_its_limit_and_goes_on(
    context: AppContext, ended: Batch, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("results.rows.SEARCH_BYTES", 700)
    page = listed(context, ended, text="five")
    matches, turns = lines(page), 1
    while page.stopped is not None:
        assert page.after == page.stopped
        page = listed(context, ended, text="five", after=page.after)
        matches, turns = matches + lines(page), turns + 1
    assert matches == [5] and turns > 2


def test_the_requests_of_a_running_batch_come_in_the_order_of_their_answers(
    context: AppContext, running: Batch
) -> None:
    answered = [*planned_lines(context, running, 0)[:2], *planned_lines(context, running, 1)[:2]]
    page = listed(context, running)
    waiting = sorted({1, 2, 3, 4, 5, 6} - set(answered))
    assert lines(page) == answered + waiting
    assert [entry.row.body["messages"][0]["content"] for entry in page.entries] == [
        TEXTS[line - 1] for line in lines(page)
    ]
    assert [entry.row.text for entry in page.entries[:2]] == [f"to r{answered[0]}", None]
    assert [entry.row.seconds for entry in page.entries] == [0.25, None, 0.25, None, None, None]
    assert lines(listed(context, running, state="waiting")) == waiting
    assert lines(listed(context, running, code="too_long")) == answered[1::2]
    assert lines(listed(context, running, text=f"to r{answered[2]}")) == [answered[2]]
    assert lines(listed(context, running, 2, after=answered[1])) == answered[2:4]
    with open_rows(context, running) as rows:
        assert rows.counts() == {"succeeded": 2, "failed": 2, "expired": 0, "cancelled": 0, "waiting": 2}


def test_without_its_input_an_ended_batch_still_shows_its_answers(context: AppContext, ended: Batch) -> None:
    with context.database.write() as session:
        files.delete(session, ended.project_id, ended.input_file_id)
    page = listed(context, ended)
    assert [entry.row.body for entry in page.entries] == [{}] * 6
    assert page.entries[0].row.text == "to r1"
    with open_rows(context, ended) as rows:
        assert rows.missing == "The input file of this batch was deleted or has expired."


def test_answers_are_shown_while_the_batch_is_finished(context: AppContext, project: str) -> None:
    batch = plan_batch(context, project, ["one", "two"])
    finish_segment(context, batch, answers([2, 1]))
    finalize.start_ready(context)
    assert finalize.merge(context, batch.id, HERE)
    page = listed(context, reload(context.database, batch))
    assert [(entry.row.line, entry.row.text) for entry in page.entries] == [(2, "to r2"), (1, "to r1")]


def test_a_batch_whose_input_is_lost_ends_with_its_answers(context: AppContext, project: str) -> None:
    batch = plan_batch(context, project, ["one"])
    finish_segment(context, batch, answers([1]))
    Path(context.artifacts.path(batch.input_sha256)).unlink()
    lost = end(context, batch)
    assert (lost.status, lost.completed, lost.output_file_id is None) == ("completed", 1, False)
    with pytest.raises(NotFoundError, match="input file of this batch is missing"):
        listed(context, lost)


def test_blank_lines_of_an_input_count(context: AppContext) -> None:
    source = b'\n{"custom_id": "a"}\n  \n{"custom_id": "b"}'
    output, errors = b'{"custom_id": "b", "error": null}\n', b'{"custom_id": "a", "error": {"code": "x"}}\n'
    table = of_files(*map(io.BytesIO, (source, output, errors)))
    assert table.to_pylist() == [
        {"line": 2, "custom_id": "a", "ok": False, "code": "x", "source": 1, "answer": 0},
        {"line": 4, "custom_id": "b", "ok": True, "code": None, "source": 23, "answer": 0},
    ]
    assert rows_file.starts(io.BytesIO(source)).tolist() == [0, 1, 20, 23]


def test_failures_are_counted_by_code_with_examples(context: AppContext, ended: Batch, running: Batch) -> None:
    for batch, expected in (
        (ended, [("batch_expired", 1, [6]), ("timeout", 1, [4]), ("too_long", 1, [2])]),
        (running, [("too_long", 2, sorted(planned_lines(context, running, n)[1] for n in (0, 1)))]),
    ):
        with open_rows(context, batch) as rows:
            grouped = problems.of_rows(rows)
        assert [(group.code, group.count) for group in grouped.groups] == [(code, count) for code, count, _ in expected]
        for group, (_, _, failed) in zip(grouped.groups, expected, strict=True):
            assert sorted(example.line or 0 for example in group.examples) == failed
            assert all(example.message for example in group.examples)
