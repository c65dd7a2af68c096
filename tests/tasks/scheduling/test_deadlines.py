"""The whole queue is forecast and published; a batch that cannot end in time is at risk, or refused."""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable
from dataclasses import replace

import pytest
from sqlalchemy import select, update

from batchyard.errors import RateLimitError
from batchyard.settings import Settings
from store import batches, events, segments, speeds
from store.jobs import stages
from store.records import Batch, File, Segment
from store.speeds import Measurement
from tasks import metrics
from tasks.context import AppContext
from tasks.intake import submission
from tasks.scheduling import deadlines
from tasks.scheduling.states import Engines
from tests.support.batches import open_batch
from tests.support.jobs import open_stage, planned, start_job
from tests.support.stacks import a_chat

NewBatch = Callable[..., Batch]
Upload = Callable[[bytes], File]


pytestmark = pytest.mark.usefixtures("frozen_time")


@pytest.fixture
def context(connected: AppContext) -> AppContext:
    return connected


def measure(context: AppContext, requests_per_second: int) -> None:
    """Record that model echo was measured for ten minutes; each request has 100 bytes and 9 tokens."""
    config = context.models["echo"].config_sha256
    number = 60 * requests_per_second
    measurement = Measurement(
        seconds=60.0, requests=number, bytes=100.0 * number, tokens=9 * number, squares=0.0, in_flight=256
    )
    with context.database.write() as session:
        for _ in range(10):
            speeds.measure(speeds.locked(session, "echo", config, "decode"), measurement)


def event_types(context: AppContext, batch: Batch) -> list[str]:
    with context.database.read() as session:
        page, _ = events.page(session, batch, after=None, limit=10)
    return [event.type for event in page]


def test_every_batch_has_an_eta_once_its_model_was_measured(context: AppContext, new_batch: NewBatch) -> None:
    first, second = new_batch(1000, window="1h"), new_batch(2000, window="24h")
    deadlines.tick(context)
    assert deadlines.read(context, [first.id, second.id]) == {}
    measure(context, 10)
    deadlines.tick(context)
    forecasts = deadlines.read(context, [first.id, second.id, "batch_unknown"])
    seconds = {batch_id: entry.at - time.time() for batch_id, entry in forecasts.items()}
    # Both have a slot, and the first has the engine until it is done.
    assert seconds == {first.id: pytest.approx(100, abs=3), second.id: pytest.approx(300, abs=3)}
    assert deadlines.work_due(context, "echo") == [
        (first.due_at, pytest.approx(100, abs=3)),
        (second.due_at, pytest.approx(300, abs=3)),
    ]
    assert deadlines.work_due(context, "another") == []


def test_what_is_answered_already_is_left_out(context: AppContext, new_batch: NewBatch) -> None:
    measure(context, 10)
    batch = new_batch(1000)
    with context.database.write() as session:
        session.execute(update(Segment).values(state="running", answered=900, epoch=1))
        session.execute(update(Batch).values(completed=900, input_tokens=8100))
    deadlines.tick(context)
    assert deadlines.read(context, [batch.id])[batch.id].at - time.time() == pytest.approx(10, abs=2)


def test_an_engines_start_and_finishing_are_in_the_eta(context: AppContext, new_batch: NewBatch) -> None:
    measure(context, 10)
    batch, now = new_batch(1000), time.time()

    def seconds(engines: Engines) -> float:
        deadlines.tick(context, engines)
        return deadlines.read(context, [batch.id])[batch.id].at - now

    here, cold, starting = Engines({"echo"}, {}), Engines(set(), {}), Engines(set(), {"echo": now - 30})
    assert seconds(cold) == pytest.approx(100, abs=2), "a start that was never measured is no number"
    with context.database.write() as session:
        speeds.measure_duration(session, "start", "echo", context.models["echo"].config_sha256, 40.0)
        speeds.measure_duration(session, "finish", "", "", 5.0, 1000)
    assert seconds(here) == pytest.approx(105, abs=2)
    assert seconds(cold) == pytest.approx(145, abs=2)
    assert seconds(starting) == pytest.approx(115, abs=2), "30 s of the start are over"


def test_a_batch_that_is_finishing_still_has_an_eta(context: AppContext, new_batch: NewBatch) -> None:
    batch = new_batch(1000)
    now = int(time.time())
    with context.database.write() as session:
        speeds.measure_duration(session, "finish", "", "", 60.0, 1000)
        session.execute(update(Batch).values(status="finalizing", finalizing_at=now - 20))
    deadlines.tick(context)
    assert deadlines.read(context, [batch.id])[batch.id].at == pytest.approx(now + 40, abs=2)


def test_a_batch_at_risk_is_told_of_once(
    context: AppContext, new_batch: NewBatch, caplog: pytest.LogCaptureFixture
) -> None:
    measure(context, 1)
    batch = new_batch(1000, window="10m")
    with caplog.at_level(logging.WARNING):
        deadlines.tick(context)
        deadlines.tick(context)
    assert event_types(context, batch) == ["batch.at_risk"]
    (record,) = [record for record in caplog.records if getattr(record, "sla", None) == "at_risk"]
    assert record.batch_id == batch.id
    with context.database.read() as session:
        record = session.get_one(Batch, batch.id)
        assert (record.sla, record.infeasible) == ("at_risk", False)  # 1,000 s is too long, though it may go faster


def test_what_cannot_be_done_in_time_goes_behind_what_can(context: AppContext, new_batch: NewBatch) -> None:
    measure(context, 1)
    hopeless, modest = new_batch(100_000, window="10m"), new_batch(100, window="1h")
    deadlines.tick(context)
    with context.database.read() as session:
        assert [entry.batch_id for entry in sorted(segments.waiting(session, 5))] == [modest.id, hopeless.id]
    measure(context, 10_000)
    measure(context, 10_000)
    deadlines.tick(context)
    with context.database.read() as session:
        assert [entry.batch_id for entry in sorted(segments.waiting(session, 5))] == [hopeless.id, modest.id]


def test_a_batch_is_late_once_its_deadline_has_passed(context: AppContext, new_batch: NewBatch) -> None:
    batch = new_batch(10)
    with context.database.write() as session:
        session.execute(update(Batch).values(due_at=int(time.time()) - 1))
    deadlines.tick(context)
    assert event_types(context, batch) == ["batch.late"]


def test_a_batch_ends_as_late_or_in_time_whatever_was_expected_of_it(context: AppContext, new_batch: NewBatch) -> None:
    measure(context, 1)
    early, late = new_batch(1000, window="10m"), new_batch(10)
    deadlines.tick(context)
    with context.database.write() as session:
        session.execute(update(Batch).where(Batch.id == late.id).values(due_at=int(time.time()) - 1))
    for batch in (early, late):
        with context.database.write() as session:
            deadlines.finalize_sla(session, session.get_one(Batch, batch.id))
    assert event_types(context, early) == ["batch.at_risk", "batch.on_track"]
    assert event_types(context, late) == ["batch.late"]


def test_nothing_is_said_of_the_deadline_of_a_batch_that_has_ended_meanwhile(
    context: AppContext, new_batch: NewBatch
) -> None:
    batch = new_batch(10)
    with context.database.write() as session:
        batches.transition(session, batch.id, "in_progress", "finalizing", outcome="completed")
        batches.transition(session, batch.id, "finalizing", "completed")
    with context.database.write() as session:
        deadlines.warn(session, batch, "at_risk", time.time())  # by a tick that had read it before
    assert event_types(context, batch) == ["batch.completed"]
    with context.database.read() as session:
        assert session.get_one(Batch, batch.id).sla == "on_track"


def test_without_redis_the_states_are_set_all_the_same(
    new_context: Callable[..., AppContext], new_batch: NewBatch
) -> None:
    context = new_context()
    measure(context, 1)
    batch = new_batch(1000, window="10m")
    deadlines.tick(context)
    assert deadlines.read(context, [batch.id]) == {}
    assert event_types(context, batch) == ["batch.at_risk"]
    assert metrics.collect(context).engines is None


def submit(context: AppContext, upload: Upload, requests: int) -> Batch:
    """Submit a file of this size in requests of 100 bytes; its last line may be cut off."""
    line = json.dumps(a_chat("id", "x" * 10)).encode() + b"\n"
    source = upload((line * requests)[: 100 * requests])
    batch = Batch(
        project_id=source.project_id, endpoint="/v1/chat/completions", completion_window="1h", post_process=[]
    )
    draft = submission.draft(context, batch, source)
    with context.database.write() as session:
        batch = submission.submit(context, session, draft)
    submission.estimate_completion(context, batch, draft.outlook)
    return batch


def test_a_new_batch_says_at_once_when_it_will_be_done(
    context: AppContext, upload: Upload, new_batch: NewBatch
) -> None:
    new_batch(1000, window="30m")
    measure(context, 10)
    deadlines.tick(context)
    batch = submit(context, upload, 500)
    assert deadlines.read(context, [batch.id])[batch.id].at - time.time() == pytest.approx(150, abs=3)
    assert event_types(context, batch) == []
    deadlines.tick(context)
    assert batch.id in deadlines.read(context, [batch.id])  # until its requests are known


def test_a_new_batch_that_cannot_be_done_in_time_is_accepted_and_says_so(context: AppContext, upload: Upload) -> None:
    measure(context, 1)
    batch = submit(context, upload, 100_000)
    assert batch.status == "validating"
    assert event_types(context, batch) == ["batch.at_risk"]


def test_or_it_is_refused_with_the_time_to_wait(context: AppContext, upload: Upload, project: str) -> None:
    context = replace(context, settings=Settings(admission="refuse"))
    measure(context, 1)
    with pytest.raises(RateLimitError, match=r"longer completion_window, or try again in 1 d 2 h") as caught:
        submit(context, upload, 100_000)
    assert caught.value.retry_after == pytest.approx(100_000 - 3600, rel=0.02)
    assert caught.value.code == "deadline_out_of_reach"
    with context.database.read() as session:
        assert batches.page(session, project, after=None, limit=5)[0] == []


def test_nothing_is_refused_for_what_was_never_measured(context: AppContext, upload: Upload) -> None:
    context = replace(context, settings=Settings(admission="refuse"))
    assert submit(context, upload, 100_000).status == "validating"


def test_a_stage_of_a_job_is_forecast_as_any_batch_and_one_without_requests_yet_stops_nothing(
    context: AppContext, project: str, new_batch: NewBatch
) -> None:
    measure(context, 10)
    with context.database.write() as session:
        job = start_job(session, project, completion_window="1h")
        stage, empty = open_stage(session, job), open_stage(session, job, 1, "judge")
        stages.extend(session, stage.id, [planned(1000)])
    other = new_batch(1000, window="2h")
    deadlines.tick(context)
    forecasts = deadlines.read(context, [stage.id, empty.id, other.id])
    assert forecasts.keys() == {stage.id, other.id}
    assert forecasts[stage.id].at - time.time() == pytest.approx(100, rel=0.3)
    with context.database.write() as session:
        session.execute(update(Batch).values(due_at=int(time.time()) - 1))
    deadlines.tick(context)
    with context.database.read() as session:
        assert {batch.sla for batch in session.scalars(select(Batch))} == {"late"}
    assert (event_types(context, stage), event_types(context, other)) == ([], ["batch.late"])


def test_an_open_batch_with_nothing_to_answer_is_never_late(context: AppContext, project: str) -> None:
    with context.database.write() as session:
        batch = open_batch(session, project)
        session.execute(update(Batch).values(created_at=1, due_at=int(time.time()) - 1))
    deadlines.tick(context)
    with context.database.read() as session:
        assert session.get_one(Batch, batch.id).sla == "on_track"
    assert event_types(context, batch) == []
