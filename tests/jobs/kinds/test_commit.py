"""What a tick of a composite decided stands in the records all at once, or not at all, and each child starts once."""

from __future__ import annotations

from typing import Any

import pytest
from sqlalchemy import select, update

from batchyard.errors import LeaseLost
from jobs.intake.drafts import JobDraft
from jobs.kinds.nested import Tick, recorded
from store.jobs import composites, lifecycle
from store.leases import Lease, acquire_job
from store.records import Job
from tasks.context import AppContext
from tests.support.jobs import MODELS, start_job
from tests.support.messages import SentMessages
from tests.support.webapps import on_sqlite

pytestmark = on_sqlite


def end(position: int, key: str, *, completed: bool = True, taken: bool = False) -> tuple[Any, ...]:
    error = None if completed else {"code": "job_failed", "message": "It failed."}
    return position, key, {"job_id": None, "taken": taken}, error, 1.0, 2.0


class Composite:
    """A composite of three children, whose ticks a test commits."""

    def __init__(self, context: AppContext, project: str) -> None:
        self.context, self.project = context, project
        with context.database.write() as session:
            self.job = start_job(session, project, recipe="experiment", total=3)
        self.lease = self.acquire()

    def acquire(self) -> Lease:
        with self.context.database.write() as session:
            lease = acquire_job(session, self.job.id, "here/1/task", 60)
        assert lease is not None
        return lease

    def draft(self, key: str, variant: str = "one") -> JobDraft:
        names = {"recipe": "rollout", "recipe_sha256": "a" * 64, "config_sha256": "c" * 64, "work_sha256": "d" * 64}
        child = Job(
            project_id=self.project, parent_id=self.job.id, child_key=key, variant=variant, completion_window="24h",
            options={}, models=MODELS, simulated=True, **names,
        )  # fmt: skip
        return JobDraft(child, None, (), ())

    def commit(self, *ends: tuple[Any, ...], drafts: tuple[str, ...] = (), **options: Any) -> Job:
        """Commit a tick that saw the job as it was at first. Return the job as it is then."""
        tick = Tick(self.context, self.lease, self.job)
        for ended in ends:
            tick.end(*ended)
        tick.drafts = [self.draft(key) for key in drafts]
        tick.commit(**options)
        return self.now()

    def now(self) -> Job:
        with self.context.database.read() as session:
            return session.get_one(Job, self.job.id)

    def change(self, **values: Any) -> None:
        with self.context.database.write() as session:
            session.execute(update(Job).where(Job.id == self.job.id).values(**values))

    def children(self) -> list[str]:
        with self.context.database.read() as session:
            return list(composites.children(session, self.job.id))


@pytest.fixture
def composite(context: AppContext, project: str, sent: SentMessages) -> Composite:
    return Composite(context, project)


def test_ends_counts_and_new_children_are_recorded_together_and_each_child_is_sent(
    composite: Composite, sent: SentMessages
) -> None:
    job = composite.commit(end(0, "a", taken=True), end(1, "b", completed=False), drafts=("c",))
    assert (job.status, job.completed, job.failed, job.admitted, job.counters) == ("in_progress", 1, 1, 3, {"taken": 1})
    assert {key: one.state for key, one in recorded(composite.context, job.id).items()} == {
        "a": "completed",
        "b": "failed",
    }
    with composite.context.database.read() as session:
        (child_id,) = session.scalars(select(Job.id).where(Job.parent_id == job.id))
    assert sent.ids("validate_job") == [child_id]
    assert composite.lease.held, "another tick is to follow"


def test_what_is_taken_over_is_counted_beside_what_was_before(composite: Composite) -> None:
    composite.commit(end(0, "a", taken=True))
    assert composite.commit(end(1, "b", taken=True)).counters == {"taken": 2}


def test_a_holder_whose_lease_is_lost_records_nothing_and_starts_nobody(
    composite: Composite, sent: SentMessages
) -> None:
    composite.change(lease_expires_at=0.0)
    composite.acquire()
    with pytest.raises(LeaseLost):
        composite.commit(end(0, "a"), drafts=("b",))
    assert (composite.now().completed, composite.children(), sent.calls) == (0, [], [])


def test_a_composite_that_was_cancelled_in_the_meantime_is_left_to_its_next_tick(
    composite: Composite, sent: SentMessages
) -> None:
    with composite.context.database.write() as session:
        lifecycle.cancel(session, composite.project, composite.job.id)
    job = composite.commit(end(0, "a"), drafts=("b",))
    assert (job.status, job.completed, composite.children()) == ("cancelling", 0, [])
    assert composite.lease.held and sent.ids("validate_job") == []


def test_a_composite_that_was_paused_in_the_meantime_records_ends_and_starts_nobody(
    composite: Composite, sent: SentMessages
) -> None:
    composite.change(paused_at=1)
    job = composite.commit(end(0, "a"), drafts=("b",))
    assert (job.completed, job.admitted, composite.children()) == (1, 1, [])
    assert sent.ids("validate_job") == []


@pytest.mark.parametrize("last", [{"completed": True}, {"completed": False}])
def test_with_the_last_end_it_is_finalizing_and_nobody_holds_it(composite: Composite, last: dict[str, bool]) -> None:
    composite.commit(end(0, "a"), end(1, "b"))
    job = composite.commit(end(2, "c", **last))
    assert (job.status, job.outcome, job.completed + job.failed) == ("finalizing", "completed", 3)
    assert not composite.lease.held


def test_one_that_ends_early_counts_what_has_not_ended(composite: Composite) -> None:
    composite.change(outcome="expired")
    composite.job = composite.now()
    job = composite.commit(end(0, "a"), ending=True)
    assert (job.status, job.outcome, job.completed, job.cancelled_items) == ("finalizing", "expired", 1, 2)
    assert not composite.lease.held


def test_a_cell_has_begun_once_however_many_jobs_it_has(composite: Composite) -> None:
    class OfCells(Tick):
        of_cells = True

    tick = OfCells(composite.context, composite.lease, composite.job)
    tick.drafts = [composite.draft(f"cell/{number}", "cell") for number in range(3)]
    tick.commit()
    assert composite.now().admitted == 1


def test_a_list_of_items_that_has_grown_is_the_jobs_from_then_on(composite: Composite) -> None:
    job = composite.commit(end(0, "a"), end(1, "b"), end(2, "c"), items=("f" * 64, 5))
    assert (job.items_sha256, job.total, job.status) == ("f" * 64, 5, "in_progress")
