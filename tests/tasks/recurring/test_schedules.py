"""A schedule runs each of its times once, whatever ticks, and makes up for missed ones as its `catch_up` says."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import pytest
import redis
from hypothesis import given, settings
from hypothesis import strategies as st
from sqlalchemy import select, text, update

from batchyard import cron
from batchyard.errors import ConflictError
from batchyard.settings import Settings
from store import batches, schedules, segments, speeds
from store.keys import Principal
from store.records import Batch, File, ResultChunk, Schedule, ScheduleRun, now
from tasks.context import AppContext
from tasks.recurring import definitions
from tasks.recurring import schedules as tasks
from tasks.recurring.schedules import LATE_SECONDS, MAX_CAUGHT_UP, PATIENCE_SECONDS, scheduled_time
from tests.support.planned import plan_batch, reload, started
from tests.support.rows import until
from tests.support.stacks import a_chat

BERLIN = ZoneInfo("Europe/Berlin")
EVERY_MINUTE = cron.parse("* * * * *", "UTC")
START = int(datetime(2026, 11, 21, 6, 30, tzinfo=BERLIN).timestamp())
ENDPOINT = "/v1/chat/completions"
TEMPLATE = json.dumps(a_chat("{{date}}", "It is {{ datetime }}, {{scheduled_at}}. Keep {{this}}.")) + "\n"

NewSchedule = Callable[..., Schedule]


@pytest.fixture
def new_schedule(new_schedule: NewSchedule) -> NewSchedule:
    """Makes a schedule that is due at START."""
    return partial(new_schedule, due=START)


@pytest.fixture
def uploaded(upload: Callable[[bytes], File]) -> File:
    return upload((json.dumps(a_chat("one", "hello")) + "\n").encode())


def runs(context: AppContext, schedule: Schedule) -> list[ScheduleRun]:
    """Oldest first."""
    with context.database.read() as session:
        query = select(ScheduleRun).where(ScheduleRun.schedule_id == schedule.id).order_by(ScheduleRun.id)
        return list(session.scalars(query))


def reread(context: AppContext, schedule: Schedule) -> Schedule:
    with context.database.read() as session:
        return session.get_one(Schedule, schedule.id)


def batch_of(context: AppContext, run: ScheduleRun) -> Batch:
    with context.database.read() as session:
        return session.get_one(Batch, run.batch_id)


def test_a_due_schedule_makes_a_batch_of_its_time_and_goes_on_at_the_next(
    context: AppContext, new_schedule: NewSchedule, validate_messages: list[str]
) -> None:
    schedule = new_schedule(input={"template": TEMPLATE}, batch={"metadata": {"day": "{{date}}"}})
    tasks.run_due(context, START + 1)
    (run,) = runs(context, schedule)
    assert (run.state, run.scheduled_at, run.missed_from, run.reason) == ("created", START, None, None)
    assert reread(context, schedule).next_run_at == START + 60
    batch = batch_of(context, run)
    assert validate_messages == [batch.id]
    assert (batch.project_id, batch.endpoint, batch.completion_window) == (schedule.project_id, ENDPOINT, "24h")
    assert (batch.request_metadata, batch.name) == ({"day": "2026-11-21"}, f"{schedule.name} 2026-11-21 06:30")
    request = json.loads(context.artifacts.read(batch.input_sha256))
    assert request["custom_id"] == "2026-11-21"
    assert request["body"]["messages"][0]["content"] == (
        f"It is 2026-11-21T06:30:00+01:00, {START}. Keep {{{{this}}}}."
    )


def test_what_is_not_due_is_not_run(context: AppContext, new_schedule: NewSchedule) -> None:
    schedule = new_schedule()
    tasks.run_due(context, START - 1)
    assert runs(context, schedule) == []


@pytest.mark.races
def test_two_tickers_at_once_run_each_time_once(context: AppContext, new_schedule: NewSchedule) -> None:
    due = [new_schedule() for _ in range(5)]
    together = threading.Barrier(4)

    def ticker(_: int) -> None:
        together.wait()
        for minute in range(3):
            tasks.run_due(context, START + 60 * minute + 1)

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(ticker, range(4)))
    for schedule in due:
        times = [run.scheduled_at for run in runs(context, schedule)]
        assert sorted(times) == [START, START + 60, START + 120]


def test_the_ticker_that_comes_late_changes_nothing(
    context: AppContext, new_schedule: NewSchedule, validate_messages: list[str]
) -> None:
    schedule = new_schedule()
    tasks.run_due(context, START + 1)
    tasks.run_one(context, schedule, START + 1)
    assert len(runs(context, schedule)) == len(validate_messages) == 1


def test_a_schedule_that_was_changed_after_the_tick_read_it_runs_at_the_next_tick(
    context: AppContext, new_schedule: NewSchedule
) -> None:
    schedule = new_schedule()
    with context.database.write() as session:
        schedules.change(session, schedule, name="renamed")
    tasks.run_one(context, schedule, START + 1)
    assert runs(context, schedule) == []
    tasks.run_due(context, START + 3)
    assert len(runs(context, schedule)) == 1


def test_a_time_that_was_run_is_not_run_again_where_the_clock_was_set_back(
    context: AppContext, new_schedule: NewSchedule, validate_messages: list[str]
) -> None:
    schedule = new_schedule()
    tasks.run_due(context, START + 1)
    with context.database.write() as session:
        session.execute(update(Schedule).values(next_run_at=START))
    tasks.run_due(context, START + 1)
    assert len(runs(context, schedule)) == len(validate_messages) == 1
    assert reread(context, schedule).next_run_at == START + 60


class Killed(BaseException):
    """The end of a process, as a transaction sees it."""


def killed(*_: Any, **__: Any) -> None:
    raise Killed


def test_a_tick_that_is_killed_before_its_commit_leaves_the_time_due(
    context: AppContext, new_schedule: NewSchedule, monkeypatch: pytest.MonkeyPatch
) -> None:
    schedule = new_schedule()
    with monkeypatch.context() as patched, pytest.raises(Killed):
        patched.setattr(schedules, "add_run", killed)
        tasks.run_due(context, START + 1)
    with context.database.read() as session:
        assert session.scalars(select(Batch)).all() == []
    tasks.run_due(context, START + 3)
    assert [run.scheduled_at for run in runs(context, schedule)] == [START]


@settings(max_examples=20)
@given(
    catch_up=st.sampled_from(["latest", "none", "all"]),
    ticks=st.lists(st.tuples(st.integers(0, 200), st.booleans()), min_size=1, max_size=6),
)
@pytest.mark.long
def test_whatever_the_order_of_ticks_and_kills_each_time_has_one_run_at_most_and_all_loses_none(
    context: AppContext, new_schedule: NewSchedule, uploaded: File, catch_up: str, ticks: list[tuple[int, bool]]
) -> None:
    schedule = new_schedule(catch_up=catch_up, input={"file_id": uploaded.id})
    at = START
    for pause, dies in ticks:
        at += pause
        with pytest.MonkeyPatch.context() as patched, suppress(Killed):
            if dies:
                patched.setattr(schedules, "add_run", killed)
            tasks.run_due(context, at)
    while (reread(context, schedule).next_run_at or 0) <= at:
        tasks.run_due(context, at)
    spans = [(run.scheduled_at or 0, run.missed_from) for run in runs(context, schedule)]
    times = [scheduled_at for scheduled_at, _ in spans]
    due = EVERY_MINUTE.last(START, at, 10**6)
    assert times == sorted(set(times))
    assert times == due or catch_up != "all"
    # What has no run of its own, a later run says that it was missed.
    recorded = {time for last, first in spans for time in range(last if first is None else first, last + 1, 60)}
    assert recorded == set(due)
    with context.database.write() as session:
        schedules.delete(session, schedule.project_id, schedule.id)


DAY = 86400


@pytest.mark.parametrize(
    ("catch_up", "late", "time", "following", "missed_from", "missed"),
    [
        ("latest", 5, START, START + 60, None, False),
        ("latest", 605, START + 600, START + 660, START, False),
        ("none", 5, START, START + 60, None, False),
        ("none", 605, START + 600, START + 660, START, False),  # the last of them has only just come
        ("all", 605, START, START + 60, None, False),
        ("all", DAY, START + DAY - 99 * 60, START + DAY - 98 * 60, START, False),
    ],
)
def test_what_is_made_up_for_every_minute(
    catch_up: Any, late: int, time: int, following: int, missed_from: int | None, missed: bool
) -> None:
    assert scheduled_time(EVERY_MINUTE, catch_up, START, START + late) == tasks.ScheduledTime(
        time, following, missed_from, missed
    )


@pytest.mark.parametrize(("late", "missed"), [(LATE_SECONDS, False), (LATE_SECONDS + 1, True)])
def test_without_catching_up_a_time_is_missed_after_a_minute(late: int, missed: bool) -> None:
    daily = cron.parse("30 6 * * *", "Europe/Berlin")
    assert scheduled_time(daily, "none", START, START + late).missed == missed
    assert not scheduled_time(daily, "latest", START, START + late).missed


def test_a_long_outage_is_made_up_for_with_one_run_the_last_hundred_or_none(
    context: AppContext, new_schedule: NewSchedule, uploaded: File
) -> None:
    by_catch_up = {
        catch_up: new_schedule(catch_up=catch_up, input={"file_id": uploaded.id}, cron="*/5 * * * *")
        for catch_up in ("latest", "none", "all")
    }
    at = START + 30 * DAY + 200
    for _ in range(3):
        tasks.run_due(context, at)
    last = START + 30 * DAY
    (latest,), (none,), every = (runs(context, schedule) for schedule in by_catch_up.values())
    assert (latest.state, latest.scheduled_at, latest.missed_from) == ("created", last, START)
    assert (none.state, none.scheduled_at, none.missed_from) == ("skipped", last, START)
    assert none.batch_id is None and "catch_up is 'none'" in (none.reason or "")
    first = last - 300 * (MAX_CAUGHT_UP - 1)
    assert [run.scheduled_at for run in every] == [first, first + 300, first + 600]
    assert [run.missed_from for run in every] == [START, None, None]


@pytest.mark.parametrize(("overlap", "states"), [("skip", ["created", "skipped"]), ("allow", ["created", "created"])])
def test_a_batch_that_has_not_ended_holds_up_the_next_run_unless_that_is_allowed(
    context: AppContext, new_schedule: NewSchedule, overlap: str, states: list[str]
) -> None:
    schedule = new_schedule(overlap=overlap)
    tasks.run_due(context, START)
    tasks.run_due(context, START + 60)
    first, second = runs(context, schedule)
    assert [first.state, second.state] == states
    if overlap == "skip":
        assert str(first.batch_id) in (second.reason or "")
    with context.database.write() as session:
        batches.reject(session, first.batch_id or "", [])
    tasks.run_due(context, START + 120)
    assert runs(context, schedule)[2].state == "created"


def test_a_run_may_cancel_the_batch_before_it(context: AppContext, new_schedule: NewSchedule) -> None:
    schedule = new_schedule(overlap="cancel_previous")
    for minute in range(3):
        tasks.run_due(context, START + 60 * minute)
    statuses = [batch_of(context, run).status for run in runs(context, schedule)]
    assert statuses == ["cancelling", "cancelling", "validating"]


@pytest.mark.races
@pytest.mark.parametrize("database_url", ["postgresql"], indirect=True)
def test_a_run_that_cancels_a_batch_waits_for_its_answers_and_never_locks_them_out(
    context: AppContext, project: str, new_schedule: NewSchedule
) -> None:
    schedule, batch = new_schedule(overlap="cancel_previous"), plan_batch(context, project, ["one", "two"])
    with context.database.write() as session:
        schedules.add_run(session, schedule, "created", scheduled_at=START - 60, missed_from=None, batch_id=batch.id)
    segment = started(context.database, batch)
    chunk = ResultChunk(
        batch_id=batch.id, segment_id=segment.lease.id, sha256="1" * 64, completed=1, failed=0, created_at=1.0
    )
    activity = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"

    def waits() -> bool:
        with context.database.read() as session:
            return bool(session.scalar(text(activity)))

    with ThreadPoolExecutor() as pool, context.database.write() as session:
        segments.append(session, segment, chunk)
        run = pool.submit(tasks.run_one, context, schedule, START)
        until(waits)
        speeds.add_usage(session, project, 1.0)
    run.result()
    (_, second) = runs(context, schedule)
    assert (second.state, reload(context.database, batch).status) == ("created", "cancelling")


def test_a_run_that_fails_cancels_nothing(context: AppContext, new_schedule: NewSchedule) -> None:
    schedule = new_schedule(overlap="cancel_previous")
    tasks.run_due(context, START)
    full = replace(context, settings=Settings(max_bytes_in_flight=1))
    tasks.run_due(full, START + 60)
    first, second = runs(context, schedule)
    assert (batch_of(context, first).status, second.state) == ("validating", "failed")


def test_a_project_without_room_has_a_failed_run_and_holds_up_no_other_schedule(
    context: AppContext, new_schedule: NewSchedule
) -> None:
    full = replace(context, settings=Settings(max_bytes_in_flight=1000))
    first, second = new_schedule(input={"template": TEMPLATE * 10}), new_schedule(due=START + 1)
    tasks.run_due(full, START + 2)
    (failed,), (created,) = runs(context, first), runs(context, second)
    assert (failed.state, failed.batch_id, created.state) == ("failed", None, "created")
    assert "unfinished batches" in (failed.reason or "")
    assert reread(context, first).next_run_at == START + 60
    with context.database.read() as session:  # the failed run left nothing behind
        assert len(session.scalars(select(File)).all()) == 1


def test_a_run_waits_for_an_artifact_store_that_is_away_and_fails_in_the_end(
    context: AppContext, new_schedule: NewSchedule, uploaded: File
) -> None:
    lost, other = new_schedule(), new_schedule(due=START + 1, input={"file_id": uploaded.id})
    Path(context.artifacts.path(lost.input_sha256)).unlink()
    tasks.run_due(context, START + 2)
    assert (runs(context, lost), reread(context, lost).next_run_at) == ([], START)
    assert len(runs(context, other)) == 1
    tasks.run_due(context, START + PATIENCE_SECONDS - 1)
    assert runs(context, lost) == []
    tasks.run_due(context, START + PATIENCE_SECONDS)  # though the last of its times has only just come
    (run,) = runs(context, lost)
    assert run.state == "failed"
    assert "is missing" in (run.reason or "")
    assert reread(context, lost).next_run_at == START + PATIENCE_SECONDS + 60


def test_a_schedule_that_nobody_can_read_any_more_holds_up_no_other(
    context: AppContext, new_schedule: NewSchedule, caplog: pytest.LogCaptureFixture
) -> None:
    broken, other = new_schedule(), new_schedule(due=START + 1)
    with context.database.write() as session:
        session.execute(update(Schedule).where(Schedule.id == broken.id).values(timezone="Europe/Atlantis"))
    tasks.run_due(context, START + 2)
    assert (len(runs(context, broken)), len(runs(context, other))) == (0, 1)
    assert broken.id in [getattr(record, "schedule_id", None) for record in caplog.records]
    tasks.run_due(context, START + PATIENCE_SECONDS)
    (run,) = runs(context, broken)
    assert (run.state, "housekeeper's log" in (run.reason or "")) == ("failed", True)


def test_a_batch_that_the_deployment_allows_no_more_is_a_failed_run(
    context: AppContext, new_schedule: NewSchedule, tmp_path: Path
) -> None:
    url = f"file://{tmp_path}/out/"
    allowed = replace(context, settings=context.settings.model_copy(update={"output_prefixes": url}))
    step = {"step": "export", "url": url, "format": "jsonl", "partition": 10}
    schedule = new_schedule()
    with context.database.write() as session:
        session.execute(update(Schedule).values(batch=schedule.batch | {"post_process": [step]}))
    tasks.run_due(allowed, START)
    tasks.run_due(context, START + 60)
    first, second = runs(context, schedule)
    assert (first.state, second.state, "none is allowed" in (second.reason or "")) == ("created", "failed", True)


def test_one_process_at_a_time_reads_buckets_and_others_run_what_needs_none(
    context: AppContext, new_schedule: NewSchedule, broker: str
) -> None:
    busy = replace(context, redis=redis.Redis.from_url(broker))
    plain, of_bucket = new_schedule(), new_schedule(due=START + 1)
    with context.database.write() as session:
        from_url = {"kind": "url", "bytes": 0, "file_id": None, "artifact": None, "url": "s3://elsewhere/in/"}
        session.execute(update(Schedule).where(Schedule.id == of_bucket.id).values(input=from_url))
    busy.redis.set(tasks.BUCKETS, 1)
    tasks.run_due(busy, START + 2)
    assert (len(runs(context, plain)), len(runs(context, of_bucket))) == (1, 0)
    busy.redis.delete(tasks.BUCKETS)
    tasks.run_due(busy, START + 3)
    (run,) = runs(context, of_bucket)
    assert (run.state, busy.redis.exists(tasks.BUCKETS)) == ("failed", 0)


def test_a_run_by_hand_touches_no_time_and_goes_through_overlap(context: AppContext, new_schedule: NewSchedule) -> None:
    schedule = new_schedule(overlap="skip", due=None, paused=True)
    runs_now = [tasks.run_now(context, schedule.project_id, schedule.id) for _ in range(2)]
    assert [run.state for run in runs_now] == ["created", "skipped"]
    assert [run.scheduled_at for run in runs_now] == [None, None]
    after = reread(context, schedule)
    assert (after.next_run_at, after.paused) == (None, True)


@pytest.mark.races
def test_runs_by_hand_and_by_the_clock_at_once_never_overlap(context: AppContext, new_schedule: NewSchedule) -> None:
    schedule = new_schedule(overlap="skip")
    together = threading.Barrier(6)

    def run(number: int) -> None:
        together.wait()
        with suppress(ConflictError):
            if number % 2:
                tasks.run_now(context, schedule.project_id, schedule.id)
            else:
                tasks.run_due(context, START + 1)

    with ThreadPoolExecutor(6) as pool:
        list(pool.map(run, range(6)))
    tasks.run_due(context, START + 1)
    states = [run.state for run in runs(context, schedule)]
    assert states.count("created") == 1
    assert [run.scheduled_at for run in runs(context, schedule)].count(START) == 1


def test_pausing_forgets_the_due_time_and_resuming_goes_on_at_the_next(
    context: AppContext, new_schedule: NewSchedule
) -> None:
    schedule = new_schedule()

    def set_paused(paused: bool) -> Schedule:
        by = Principal(schedule.project_id, False, "key", "mine")
        return definitions.set_paused(context, by, schedule.id, paused=paused)

    assert set_paused(True).next_run_at is None
    assert set_paused(True).paused
    tasks.run_due(context, now())
    assert runs(context, schedule) == []
    at = now()
    resumed = set_paused(False)
    assert at < (resumed.next_run_at or 0) <= now() + 60
    with context.database.write() as session:
        session.execute(update(Schedule).values(next_run_at=START))
    assert set_paused(False).next_run_at == START  # it was not paused: what is due stays due
