"""The whole queue is forecast and told of; a batch that cannot be done in time is said to be at risk, or refused."""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable
from dataclasses import replace

import pytest
from sqlalchemy import update

from batchyard.errors import RateLimitError
from batchyard.settings import Settings
from store import batches, events, segments, speeds
from store.records import Batch, File, Segment
from store.speeds import Measured
from tasks import metrics
from tasks.context import House
from tasks.intake import submission
from tasks.scheduling import deadlines
from tests.support.stacks import a_chat

NewBatch = Callable[..., Batch]
Upload = Callable[[bytes], File]


@pytest.fixture
def house(new_house: Callable[..., House], broker: str) -> House:
    made = new_house(redis_url=broker)
    made.redis.flushall()
    return made


def measure(house: House, requests_per_second: int) -> None:
    """Record that model echo was measured for ten minutes; each request has 100 bytes and 9 tokens."""
    config = house.models["echo"].config_sha256
    number = 60 * requests_per_second
    measured = Measured(seconds=60.0, requests=number, bytes=100.0 * number, tokens=9 * number)
    with house.database.write() as session:
        for _ in range(10):
            speeds.measure(session, "echo", config, "decode", measured)


def told(house: House, batch: Batch) -> list[str]:
    with house.database.read() as session:
        found, _ = events.page(session, batch, after=None, limit=10)
    return [event.type for event in found]


def test_every_batch_has_an_eta_once_its_model_was_measured(house: House, new_batch: NewBatch) -> None:
    first, second = new_batch(1000, window="1h"), new_batch(2000, window="24h")
    deadlines.tick(house)
    assert deadlines.read(house, [first.id, second.id]) == {}
    measure(house, 10)
    deadlines.tick(house)
    found = deadlines.read(house, [first.id, second.id, "batch_unknown"])
    left = {batch_id: entry.at - time.time() for batch_id, entry in found.items()}
    # Both have a slot, and the first has the engine until it is done.
    assert left == {first.id: pytest.approx(100, abs=3), second.id: pytest.approx(300, abs=3)}
    assert deadlines.backlog(house, "echo", second.due_at) == pytest.approx(300, abs=3)
    assert deadlines.backlog(house, "echo", first.due_at) == pytest.approx(100, abs=3)
    assert deadlines.backlog(house, "echo", 0) == 0


def test_what_is_answered_already_is_left_out(house: House, new_batch: NewBatch) -> None:
    measure(house, 10)
    batch = new_batch(1000)
    with house.database.write() as session:
        session.execute(update(Segment).values(state="running", answered=900, epoch=1))
        session.execute(update(Batch).values(completed=900, input_tokens=8100))
    deadlines.tick(house)
    assert deadlines.read(house, [batch.id])[batch.id].at - time.time() == pytest.approx(10, abs=2)


def test_a_batch_at_risk_is_told_of_once(house: House, new_batch: NewBatch, caplog: pytest.LogCaptureFixture) -> None:
    measure(house, 1)
    batch = new_batch(1000, window="10m")
    with caplog.at_level(logging.WARNING):
        deadlines.tick(house)
        deadlines.tick(house)
    assert told(house, batch) == ["batch.at_risk"]
    (record,) = [record for record in caplog.records if getattr(record, "sla", None) == "at_risk"]
    assert record.batch_id == batch.id
    with house.database.read() as session:
        found = session.get_one(Batch, batch.id)
        assert (found.sla, found.out_of_reach) == ("at_risk", False)  # 1,000 s is too long, though it may go faster


def test_what_cannot_be_done_in_time_goes_behind_what_can(house: House, new_batch: NewBatch) -> None:
    measure(house, 1)
    hopeless, modest = new_batch(100_000, window="10m"), new_batch(100, window="1h")
    deadlines.tick(house)
    with house.database.read() as session:
        assert [entry.batch_id for entry in sorted(segments.waiting(session, 5))] == [modest.id, hopeless.id]
    measure(house, 10_000)
    measure(house, 10_000)
    deadlines.tick(house)
    with house.database.read() as session:
        assert [entry.batch_id for entry in sorted(segments.waiting(session, 5))] == [hopeless.id, modest.id]


def test_a_batch_is_late_once_its_deadline_has_passed(house: House, new_batch: NewBatch) -> None:
    batch = new_batch(10)
    with house.database.write() as session:
        session.execute(update(Batch).values(due_at=int(time.time()) - 1))
    deadlines.tick(house)
    assert told(house, batch) == ["batch.late"]


def test_a_batch_ends_as_late_or_in_time_whatever_was_expected_of_it(house: House, new_batch: NewBatch) -> None:
    measure(house, 1)
    early, late = new_batch(1000, window="10m"), new_batch(10)
    deadlines.tick(house)
    with house.database.write() as session:
        session.execute(update(Batch).where(Batch.id == late.id).values(due_at=int(time.time()) - 1))
    for batch in (early, late):
        with house.database.write() as session:
            deadlines.settle(session, session.get_one(Batch, batch.id))
    assert told(house, early) == ["batch.at_risk", "batch.on_track"]
    assert told(house, late) == ["batch.late"]


def test_without_redis_the_states_are_set_all_the_same(new_house: Callable[..., House], new_batch: NewBatch) -> None:
    house = new_house()
    measure(house, 1)
    batch = new_batch(1000, window="10m")
    deadlines.tick(house)
    assert deadlines.read(house, [batch.id]) == {}
    assert told(house, batch) == ["batch.at_risk"]
    assert metrics.look(house).engines is None


def submit(house: House, upload: Upload, requests: int) -> Batch:
    """Submit a file of so many requests of 100 bytes: those of the last that are too long for that are cut off."""
    line = json.dumps(a_chat("id", "x" * 10)).encode() + b"\n"
    source = upload((line * requests)[: 100 * requests])
    with house.database.write() as session:
        batch = submission.submit(
            house,
            session,
            source.project_id,
            input_file=source,
            endpoint="/v1/chat/completions",
            completion_window="1h",
            metadata=None,
            post_process=[],
            output_expires_after=None,
        )
    submission.forewarn(house, batch)
    return batch


def test_a_new_batch_says_at_once_when_it_will_be_done(house: House, upload: Upload, new_batch: NewBatch) -> None:
    new_batch(1000, window="30m")
    measure(house, 10)
    deadlines.tick(house)
    batch = submit(house, upload, 500)
    assert deadlines.read(house, [batch.id])[batch.id].at - time.time() == pytest.approx(150, abs=3)
    assert told(house, batch) == []
    deadlines.tick(house)
    assert batch.id in deadlines.read(house, [batch.id])  # until its requests are known


def test_a_new_batch_that_cannot_be_done_in_time_is_accepted_and_says_so(house: House, upload: Upload) -> None:
    measure(house, 1)
    batch = submit(house, upload, 100_000)
    assert batch.status == "validating"
    assert told(house, batch) == ["batch.at_risk"]


def test_or_it_is_refused_with_the_time_to_wait(house: House, upload: Upload, project: str) -> None:
    house = replace(house, settings=Settings(admission="refuse"))
    measure(house, 1)
    with pytest.raises(RateLimitError, match=r"longer completion_window, or try again in 1 d 2 h") as caught:
        submit(house, upload, 100_000)
    assert caught.value.retry_after == pytest.approx(100_000 - 3600, rel=0.02)
    assert caught.value.code == "deadline_out_of_reach"
    with house.database.read() as session:
        assert batches.page(session, project, after=None, limit=5)[0] == []


def test_nothing_is_refused_for_what_was_never_measured(house: House, upload: Upload) -> None:
    house = replace(house, settings=Settings(admission="refuse"))
    assert submit(house, upload, 100_000).status == "validating"
