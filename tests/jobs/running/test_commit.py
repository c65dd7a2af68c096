"""A tick's commit: all that it decided stands in the records, or nothing does."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from sqlalchemy import update

from batchyard.errors import LeaseLost
from jobs.kinds.flow import FLOW
from jobs.running import rebuild
from jobs.running.commit import JobEnding, commit
from jobs.running.memory import LiveJob
from jobs.running.programs import Programs
from jobs.running.rebuild import item_of, size_of
from store.jobs import chunk_records
from store.leases import Lease, acquire_job
from store.records import Batch, Job
from tasks.context import AppContext
from tests.support.running_jobs import Running
from tests.support.webapps import on_sqlite

pytestmark = [pytest.mark.usefixtures("alone"), on_sqlite]

TWO = """
@recipe("two", Options, stages=("draft",))
def two(item: Item, options: Options) -> Flow:
    if item.columns["prompt"] == "short":
        return Result("short", counters={"short": 1})
    (draft,) = yield [Ask("draft", item.chat(), model="echo")]
    return Result(text=draft.text)
"""


class Ticking:
    """A job of three items, one of which ends at once, with a lease and its state in memory."""

    def __init__(self, context: AppContext, project: str) -> None:
        self.context = context
        self.running = Running(context, project, ["a", "short", "b"])
        self.lease = self.acquire()
        self.live: LiveJob = rebuild.rebuilt(context, self.running.job, Programs.watch, FLOW.jobs.tools(context))
        for row in self.live.reader.read(0, 3):
            self.live.items.begin(row.position, item_of(self.live.job, self.live.options, row), size_of(row))
        self.live.admitted = 3

    def acquire(self) -> Lease:
        with self.context.database.write() as session:
            lease = acquire_job(session, self.running.id, "here/1/task", 60)
        assert lease is not None
        return lease

    def commit(self, *, done: bool = False) -> bool:
        cuts = self.live.cutter.all(self.live.items.requests, self.live.lines)
        return commit(self.context, self.lease, self.live, cuts, done=done)

    def chunks(self) -> list[str]:
        with self.context.database.read() as session:
            return [chunk.kind for chunk in chunk_records.of_job(session, self.running.id)]


@pytest.fixture
def ticking(deployed: Callable[[str], AppContext], project: str) -> Ticking:
    return Ticking(deployed(TWO), project)


def test_segments_ends_and_counts_are_recorded_together(ticking: Ticking) -> None:
    assert not ticking.commit()
    job = ticking.running.job
    assert (job.admitted, job.completed, job.failed, job.counters) == (3, 1, 0, {"short": 1})
    assert ticking.running.issued() == {"draft": ["item-0/draft.1.0", "item-2/draft.1.0"]}
    assert list(ticking.running.ends()) == ["item-1"]
    assert ticking.chunks() == ["result"], "there is no empty chunk of judgements"


def test_a_holder_whose_lease_is_lost_records_nothing(ticking: Ticking) -> None:
    with ticking.context.database.write() as session:
        session.execute(update(Job).values(lease_expires_at=0.0))
    ticking.acquire()
    with pytest.raises(LeaseLost):
        ticking.commit()
    assert (ticking.chunks(), ticking.running.job.admitted) == ([], 0)


def test_nothing_is_recorded_of_a_job_that_was_cancelled_in_the_meantime(ticking: Ticking) -> None:
    with ticking.context.database.write() as session:
        session.execute(update(Job).values(outcome="cancelled"))
    with pytest.raises(JobEnding):
        ticking.commit()
    assert (ticking.chunks(), ticking.running.issued()) == ([], {})


def test_with_its_last_item_the_job_is_finalizing_and_its_batches_get_no_more(ticking: Ticking) -> None:
    ticking.commit()
    assert ticking.commit(done=True)
    job = ticking.running.job
    assert (job.status, job.outcome) == ("finalizing", "completed")
    with ticking.context.database.read() as session:
        (stage,) = ticking.running.stages()
        assert not session.get_one(Batch, stage.batch_id).open
