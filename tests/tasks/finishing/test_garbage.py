"""Content is deleted once no record refers to it, and never before."""

from __future__ import annotations

import hashlib
import os
import random
import threading
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import func, select, update

from store import batches, files
from store.artifacts import INCOMING, SHARDS
from store.records import Batch, File, ResultChunk, Segment
from tasks.context import AppContext
from tasks.finishing import garbage
from tests.support.batches import create_batch
from tests.support.stacks import RunningStack

HOUR = 3600
DAY = 86400
Upload = Callable[[bytes], File]


@pytest.fixture
def context(new_context: Callable[..., AppContext]) -> AppContext:
    return new_context(garbage_grace_seconds=HOUR, results_seconds=DAY)


def everything(context: AppContext) -> None:
    for shard in SHARDS:
        garbage.shard(context, shard)


def let_time_pass(context: AppContext, seconds: int) -> None:
    """Shift the times of content, expiry and completion into the past."""
    for path in (path for path in Path(context.artifacts.url.removeprefix("file://")).rglob("*") if path.is_file()):
        changed = path.stat().st_mtime - seconds
        os.utime(path, (changed, changed))
    with context.database.write() as session:
        session.execute(update(File).values(expires_at=File.expires_at - seconds))
        session.execute(update(Batch).values(completed_at=Batch.completed_at - seconds))


def is_there(context: AppContext, sha256: str) -> bool:
    return sha256 in context.artifacts.names(sha256[:2])


def delete(context: AppContext, file: File) -> None:
    with context.database.write() as session:
        files.delete(session, file.project_id, file.id)


def a_running_batch(context: AppContext, source: File) -> Batch:
    """A batch of one segment with one result chunk, all stored."""
    with context.database.write() as session:
        batch = create_batch(session, source)
        batches.plan(
            session,
            batch,
            plan_sha256=context.artifacts.put(b"plan"),
            segments=[Segment(model="echo", requests=1)],
            models={"echo": {"name": "echo", "engine": "echo"}},
            simulated=True,
        )
        numbers: dict[str, Any] = dict.fromkeys(("input_tokens", "cached_tokens", "output_tokens"), 0)
        segment_id = session.scalars(select(Segment.id).where(Segment.batch_id == batch.id)).one()
        chunk = context.artifacts.put(b"part")
        values = {"batch_id": batch.id, "segment_id": segment_id, "sha256": chunk, "created_at": time.time()}
        session.add(ResultChunk(**values, completed=1, failed=0, **numbers))
    return batch


def end(context: AppContext, batch: Batch) -> str:
    """Complete a batch. Return the SHA-256 of its output."""
    output = context.artifacts.put(b"output")
    with context.database.write() as session:
        batches.add_artifact(session, batch, "output.jsonl", output, len(b"output"), 1)
        batches.transition(session, batch.id, "in_progress", "finalizing", outcome="completed")
        batches.transition(session, batch.id, "finalizing", "completed")
    return output


def chunks(context: AppContext) -> int:
    with context.database.read() as session:
        return session.scalar(select(func.count()).select_from(ResultChunk)) or 0


def test_content_that_two_files_share_lives_until_both_are_gone(context: AppContext, upload: Upload) -> None:
    one, two = upload(b"shared"), upload(b"shared")
    delete(context, one)
    let_time_pass(context, 2 * HOUR)
    everything(context)
    assert is_there(context, one.sha256)
    delete(context, two)
    let_time_pass(context, 2 * HOUR)
    everything(context)
    assert not is_there(context, one.sha256)


def test_the_deleted_input_of_a_running_batch_stays_until_the_batch_has_ended(
    context: AppContext, upload: Upload
) -> None:
    source = upload(b"input")
    batch = a_running_batch(context, source)
    delete(context, source)
    let_time_pass(context, 2 * HOUR)
    everything(context)
    with context.database.read() as session:
        plan = session.get_one(Batch, batch.id).plan_sha256 or ""
    assert is_there(context, source.sha256)
    assert is_there(context, plan)
    end(context, batch)
    everything(context)
    assert not is_there(context, source.sha256)
    assert not is_there(context, plan)


def test_seconds_and_rows_of_an_ended_batch_stay_as_long_as_its_record(context: AppContext, upload: Upload) -> None:
    batch = a_running_batch(context, upload(b"input"))
    seconds, rows = context.artifacts.put(b"seconds"), context.artifacts.put(b"rows")
    with context.database.write() as session:
        values = {"seconds_sha256": seconds, "rows_sha256": rows}
        session.execute(update(Batch).where(Batch.id == batch.id).values(values))
    end(context, batch)
    let_time_pass(context, 2 * DAY)
    everything(context)
    assert chunks(context) == 0
    assert is_there(context, seconds) and is_there(context, rows)
    with context.database.write() as session:
        session.execute(update(Batch).where(Batch.id == batch.id).values(seconds_sha256=None, rows_sha256=None))
    everything(context)
    assert not is_there(context, seconds)


def test_parts_go_when_their_batch_ended_long_ago_and_its_output_stays(context: AppContext, upload: Upload) -> None:
    running, ended = (a_running_batch(context, upload(b"input")) for _ in range(2))
    with context.database.read() as session:
        chunk = session.scalars(select(ResultChunk.sha256)).first() or ""
    output = end(context, ended)
    let_time_pass(context, 23 * HOUR)
    everything(context)
    assert chunks(context) == 2
    let_time_pass(context, 2 * HOUR)
    everything(context)
    assert chunks(context) == 1
    assert is_there(context, chunk)  # the same part, of the batch that runs
    end(context, running)
    let_time_pass(context, 2 * DAY)
    everything(context)
    assert chunks(context) == 0
    assert not is_there(context, chunk)
    assert is_there(context, output)


def test_what_a_crashed_upload_left_goes_once_it_is_old(context: AppContext) -> None:
    crashed = context.artifacts.create()
    crashed.write(b"half")
    crashed._file.close()
    everything(context)
    assert len(context.artifacts.names(INCOMING)) == 1
    let_time_pass(context, 2 * HOUR)
    everything(context)
    assert context.artifacts.names(INCOMING) == []


def test_young_content_stays_without_any_record(context: AppContext) -> None:
    sha256 = context.artifacts.put(b"about to be named")
    everything(context)
    assert is_there(context, sha256)


def test_content_of_a_file_that_is_just_gone_stays_for_who_reads_it(context: AppContext, upload: Upload) -> None:
    file = upload(b"being read")
    let_time_pass(context, 2 * HOUR)
    delete(context, file)
    everything(context)
    assert is_there(context, file.sha256)


def test_everything_that_beat_sends_is_a_task() -> None:
    import celeryconfig
    from tasks.app import app

    assert {entry["task"] for entry in celeryconfig.beat_schedule.values()} <= app.tasks.keys()


def test_each_shard_has_its_turn_by_the_clock(context: AppContext, monkeypatch: pytest.MonkeyPatch) -> None:
    collected: list[str] = []
    monkeypatch.setattr(garbage, "shard", lambda _context, name: collected.append(name))
    for turn in range(len(SHARDS)):
        monkeypatch.setattr(time, "time", lambda turn=turn: 1.7e9 + turn * 10)
        garbage.tick(context, 10)
    assert sorted(collected) == sorted(SHARDS)


def test_a_running_stack_collects_by_itself(stack: RunningStack) -> None:
    nobodys = [stack.data / "artifacts" / shard / (shard + "0" * 62) for shard in SHARDS if shard != INCOMING]
    for path in nobodys:
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(b"nobody's")
        os.utime(path, (0, 0))
    deadline = time.monotonic() + 360
    while all(path.exists() for path in nobodys):
        assert time.monotonic() < deadline
        time.sleep(0.2)
    for path in nobodys:
        path.unlink(missing_ok=True)


@pytest.mark.long
@pytest.mark.races
def test_no_content_is_lost_while_files_come_and_go_and_garbage_is_collected(
    context: AppContext, upload: Upload
) -> None:
    contents = [b"content %d" % number for number in range(4)]
    unnamed: Counter[bytes] = Counter()  # stored, or about to be, by somebody who has not written the record yet
    guard = threading.Lock()
    # Content becomes old between two rounds of a collector only: a round takes far less than the grace period.
    looking = (threading.Lock(), threading.Lock())
    everyone_is_done = threading.Event()

    def come(content: bytes) -> tuple[bytes, File]:
        with guard:
            unnamed[content] += 1
        file = upload(content)
        with guard:
            unnamed[content] -= 1
        return content, file

    def go(content: bytes, file: File) -> None:
        """Expire a file, and make its content old unless a writer is about to name it."""
        long_ago = time.time() - 2 * HOUR
        with looking[0], looking[1], guard, suppress(FileNotFoundError):
            if not unnamed[content]:
                os.utime(context.artifacts.path(file.sha256), (long_ago, long_ago))
        with context.database.write() as session:
            session.execute(update(File).where(File.id == file.id).values(expires_at=int(long_ago)))

    def come_and_go(seed: int) -> list[tuple[bytes, File]]:
        chance = random.Random(seed)
        kept = [come(chance.choice(contents))]
        for _ in range(60):
            if kept and chance.random() < 0.6:
                go(*kept.pop(chance.randrange(len(kept))))
            else:
                kept.append(come(chance.choice(contents)))
            for _content, file in kept:
                assert is_there(context, file.sha256)
        return kept

    def collect_all_the_time(looks: threading.Lock) -> None:
        shards = sorted({hashlib.sha256(content).hexdigest()[:2] for content in contents})
        while not everyone_is_done.is_set():
            for shard in shards:
                with looks:
                    garbage.shard(context, shard)
                time.sleep(0.002)  # or nobody else would get the lock

    with ThreadPoolExecutor(6) as pool:
        collectors = [pool.submit(collect_all_the_time, looks) for looks in looking]
        try:
            kept = [each for own in pool.map(come_and_go, range(4)) for each in own]
        finally:
            everyone_is_done.set()
        for collector in collectors:
            collector.result()
    for content, file in kept:
        assert context.artifacts.read(file.sha256) == content
