"""The states of all items of a job, while it runs and after its end."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from sqlalchemy import delete

from batchyard.errors import ConflictError
from jobs.items import states
from store.database import Database
from store.records import JobChunk
from tests.support.webapps import on_sqlite
from tests.support.written_jobs import NUMBERS, TOTAL, Written


def test_the_newest_line_of_an_item_counts(written: Written) -> None:
    written.end((0, "stuck"), (1, "stuck"))
    written.end((0, "completed"), life=2)
    by_number = {item.number: item for item in written.listed()[0]}
    assert (by_number[3].state, by_number[3].life) == ("completed", 2)
    assert (by_number[0].state, by_number[0].life) == ("stuck", 1)
    assert written.item(0).result == {"text": "since 0", "life": 2}


def test_items_that_had_not_ended_have_the_end_of_their_job(written: Written) -> None:
    written.end((0, "completed"))
    written.finished("expired")
    assert [item.state for item in written.listed()[0]] == [*["expired"] * 3, "completed", "expired", "expired"]


def test_long_after_its_end_a_job_refers_to_its_artifacts(written: Written, database: Database) -> None:
    written.end(*((position, "completed") for position in range(TOTAL)))
    written.finished("completed")
    assert len(written.results()) == TOTAL
    with database.write() as session:
        session.execute(delete(JobChunk))
    reads: list[Callable[[], object]] = [written.results, written.listed, lambda: written.item(0)]
    for read in reads:
        with pytest.raises(ConflictError) as refused:
            read()
        assert refused.value.code == "results_in_files"


@on_sqlite
def test_items_of_an_ended_job_are_selected_by_the_states_that_they_have_now(written: Written) -> None:
    written.end((0, "stuck"), (1, "failed"), (2, "completed"))
    written.end((0, "completed"), life=2)
    written.finished("expired")
    reader, positions = states.select(written.context, written.job, ["failed", "expired"])
    assert (reader.total, positions.tolist()) == (TOTAL, [1, 3, 4, 5])


@on_sqlite
def test_an_item_says_for_what_it_waits_and_why_it_failed(written: Written) -> None:
    written.end((0, "waiting_for_verdict"), gate="house")
    written.end((1, "failed"), error={"code": "no_answer", "message": None})
    written.end((2, "completed"), gate="house")
    by_number = {item.number: item for item in written.listed()[0]}
    reasons = [by_number[NUMBERS[position]].reason for position in range(3)]
    assert reasons == ["house", "no_answer", None]
