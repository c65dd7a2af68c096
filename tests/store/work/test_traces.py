"""A batch that has ended has a span: from its creation to its end, once its end is committed."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest

from store import batches
from store.database import Database
from store.records import Batch
from store.work import traces
from tests.support.jobs import open_stage, start_job
from tests.support.planned import reload
from tests.support.traces import hex_ids, record_spans

NewBatch = Callable[..., Batch]
CLIENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


def test_the_span_of_a_batch_is_written_with_its_end(
    database: Database, new_batch: NewBatch, monkeypatch: pytest.MonkeyPatch
) -> None:
    recorder, began = record_spans(monkeypatch), time.time_ns()
    batch = new_batch(1, traceparent=CLIENT)
    before = time.time_ns()
    with database.write() as session:
        batches.transition(session, batch.id, "in_progress", "finalizing", outcome="completed")
        batches.transition(session, batch.id, "finalizing", "completed")
        assert recorder.spans == [], "it may be rolled back"
    [span] = recorder.spans
    assert (span.name, span.parent, span.error) == ("batch", "b7ad6b7169203331", False)
    assert (span.trace, span.id) == hex_ids(traces.place(reload(database, batch)))
    assert began - 1000 <= span.start <= before <= span.end, "ids have microseconds"
    expected = {"batchyard.batch.id": batch.id, "batchyard.status": "completed", "batchyard.total": 1}
    assert expected.items() <= span.attributes.items()


def test_an_end_that_is_rolled_back_writes_nothing(
    database: Database, new_batch: NewBatch, monkeypatch: pytest.MonkeyPatch
) -> None:
    recorder, batch = record_spans(monkeypatch), new_batch(1)
    with pytest.raises(RuntimeError), database.write() as session:
        batches.transition(session, batch.id, "in_progress", "finalizing", outcome="completed")
        batches.transition(session, batch.id, "finalizing", "completed")
        raise RuntimeError
    assert recorder.spans == []
    assert reload(database, batch).status == "in_progress"


def test_the_batches_of_a_job_are_below_it(database: Database, project: str) -> None:
    with database.write() as session:
        job = start_job(session, project)
        batch = open_stage(session, job)
    assert traces.place(batch).trace_id == traces.place(job).trace_id
    assert batch.traceparent == str(traces.place(job))
