"""Validation and finishing take turns by project: a burst of one makes another wait for one piece of work at most."""

from __future__ import annotations

import json
import random
from collections import deque
from collections.abc import Callable, Iterable
from functools import partial

import pytest

from batchyard.errors import LeaseLost, RateLimitError
from store import files, keys
from store.database import Database
from store.leases import acquire_batch
from store.records import Batch, File, Project
from tasks import advance
from tasks.context import AppContext
from tasks.finishing import finalize
from tasks.intake import submission
from tasks.scheduling import dispatch
from tests.support.batches import create_batch
from tests.support.messages import SentMessages
from tests.support.planned import answers, finish_segment, plan_batch, reload
from tests.support.stacks import a_chat

HOLDER = "here/1/task"
BURST = 6
SEEDS = [*range(2), *(pytest.param(seed, marks=pytest.mark.exhaustive) for seed in range(2, 6))]

pytestmark = pytest.mark.usefixtures("sent")


@pytest.fixture
def context(new_context: Callable[..., AppContext], broker: str) -> AppContext:
    made = new_context(redis_url=broker)
    made.redis.flushall()
    return made


@pytest.fixture
def other(context: AppContext) -> str:
    """The id of another project."""
    with context.database.write() as session:
        keys.create(session, "other")
        return session.query(Project).filter_by(name="other").one().id


@pytest.fixture
def submitted(context: AppContext) -> Callable[[str], Batch]:
    """Creates a batch of one request in a project."""
    sha256 = context.artifacts.put((json.dumps(a_chat("one", "hello")) + "\n").encode())

    def create(project_id: str) -> Batch:
        with context.database.write() as session:
            source = files.create(
                session, project_id, filename="in.jsonl", purpose="batch", size=9, sha256=sha256, expires_after=None
            )
            return create_batch(session, source)

    return create


class Queue:
    """Messages of batches, in order. What is sent again comes last."""

    def __init__(self, context: AppContext, kind: Callable[..., None], ids: Iterable[str]) -> None:
        self.context, self.kind, self.waiting = context, kind, deque(ids)

    def handle(self, count: int = 1) -> None:
        for _ in range(count):
            batch_id = self.waiting.popleft()
            self.kind(self.context, ("batch", batch_id), HOLDER, partial(self.waiting.append, batch_id))

    def handle_all(self) -> None:
        while self.waiting:
            self.handle()


def done(database: Database, batch: Batch) -> bool:
    return reload(database, batch).status in ("in_progress", "completed")


def test_a_burst_of_one_project_makes_another_wait_for_one_validation_at_most(
    context: AppContext, project: str, other: str, submitted: Callable[[str], Batch], sent: SentMessages
) -> None:
    burst = [submitted(project) for _ in range(BURST)]
    small = submitted(other)
    messages = [*burst, small]
    queue = Queue(context, advance.validate_next, [batch.id for batch in messages])
    queue.handle(2)
    assert done(context.database, small), "the second message at the latest is its turn"
    queue.handle_all()
    assert all(done(context.database, batch) for batch in burst)
    assert set(sent.dispatched()) <= {batch.id for batch in messages}


def test_a_burst_that_has_to_be_finished_makes_another_project_wait_for_one_step_at_most(
    context: AppContext, project: str, other: str, submitted: Callable[[str], Batch], sent: SentMessages
) -> None:
    burst = [plan_batch(context, project, ["one"]) for _ in range(BURST)]
    for batch in burst:
        finish_segment(context, batch, answers([1]))
    finalize.start_ready(context)
    small = submitted(other)
    queue = Queue(context, advance.finish_next, [batch.id for batch in burst])
    queue.handle(2)
    assert done(context.database, small), "finishing goes first, but for the turn of another project"
    Queue(context, advance.validate_next, [small.id]).handle_all()
    queue.handle_all()
    assert all(reload(context.database, batch).status == "completed" for batch in burst)


def test_projects_take_turns_and_each_goes_by_its_own_order(
    context: AppContext, project: str, other: str, submitted: Callable[[str], Batch]
) -> None:
    batches = [submitted(project) for _ in range(4)] + [submitted(other) for _ in range(4)]
    order = []
    queue = Queue(context, advance.validate_next, [batch.id for batch in batches])
    while queue.waiting:
        before = {one.id for one in batches if done(context.database, one)}
        queue.handle()
        order += [one for one in batches if one.id not in before and done(context.database, one)]
    projects = [batch.project_id for batch in order]
    assert all(len(set(pair)) == 2 for pair in zip(projects[::2], projects[1::2], strict=True)), projects
    for project_id in (project, other):
        ids = [batch.id for batch in order if batch.project_id == project_id]
        assert ids == sorted(ids)


def test_what_another_worker_has_leaves_its_turn_and_a_lost_message_comes_back_to_its_own(
    context: AppContext, project: str, other: str, submitted: Callable[[str], Batch]
) -> None:
    held, free, failed = submitted(project), submitted(project), submitted(other)
    with context.database.write() as session:
        assert acquire_batch(session, held.id, "there/1/task", 60)
        session.get_one(Batch, failed.id).attempt_error = "a moment ago"
    Queue(context, advance.validate_next, [held.id]).handle_all()
    assert done(context.database, free) and not done(context.database, failed), "what failed waits for its pause"
    Queue(context, advance.validate_next, [failed.id]).handle_all()
    assert done(context.database, failed)


def test_finishing_takes_turns_too_and_so_do_merges_of_batches_with_steps(
    context: AppContext, project: str, other: str, sent: SentMessages
) -> None:
    def answered(project_id: str, **options: list[str]) -> Batch:
        batch = plan_batch(context, project_id, ["hello"], **options)  # type: ignore[arg-type]
        finish_segment(context, batch, answers([1]))
        return batch

    burst = [answered(project, post_process=["parquet"]) for _ in range(BURST)]
    stepped, small = answered(other, post_process=["parquet"]), answered(other)
    finalize.start_ready(context)
    assert len(sent.of("finish")) == BURST + 2
    queue = Queue(context, advance.finish_next, [batch.id for batch in [*burst, stepped, small]])
    queue.handle(4)
    assert sent.ids("steps").count(stepped.id) == 1 and done(context.database, small)
    queue.handle_all()
    assert sorted(sent.ids("steps")) == sorted(batch.id for batch in [*burst, stepped]), "each is merged once"
    assert reload(context.database, stepped).status == "finalizing", "its steps are next"


def test_steps_whose_message_was_lost_are_sent_again_without_another_merge(
    context: AppContext, project: str, sent: SentMessages
) -> None:
    batch = plan_batch(context, project, ["hello"], post_process=["parquet"])
    finish_segment(context, batch, answers([1]))
    finalize.start_ready(context)
    Queue(context, advance.finish_next, [batch.id] * 2).handle_all()
    assert sent.ids("steps") == [batch.id]
    with context.database.write() as session:
        session.get_one(Batch, batch.id).lease_expires_at = 1.0
    finalize.start_ready(context)
    assert (sent.ids("finish"), sent.ids("steps")) == ([batch.id], [batch.id] * 2)


def test_a_batch_whose_place_another_has_taken_needs_no_second_message(
    context: AppContext, project: str, sent: SentMessages, monkeypatch: pytest.MonkeyPatch
) -> None:
    batches = [plan_batch(context, project, ["hello"]) for _ in range(2)]
    for batch in batches:
        finish_segment(context, batch, answers([1]))

    def meanwhile(_: AppContext) -> None:
        """Another worker has the message before this one finishes the batch that it keeps."""
        (message,) = sent.of("finish")
        Queue(context, advance.finish_next, [message[0]]).handle_all()

    monkeypatch.setattr(dispatch, "run", meanwhile)
    advance.advance(context, HOLDER)
    assert all(reload(context.database, batch).status == "completed" for batch in batches)


def test_a_message_that_does_anothers_work_is_sent_again_whatever_comes_of_it(
    context: AppContext, project: str, other: str, submitted: Callable[[str], Batch], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else the batch that it names would wait two minutes, until housekeeping finds it."""
    first, named = submitted(other), submitted(project)
    queue = Queue(context, advance.validate_next, [named.id])

    def lose(_: AppContext, batch_id: str, __: str) -> bool:
        raise LeaseLost(batch_id)

    with monkeypatch.context() as patched, pytest.raises(LeaseLost, match=first.id):
        patched.setattr(advance, "validate", lose)
        queue.handle()
    assert list(queue.waiting) == [named.id]
    queue.handle_all()
    assert done(context.database, named)


@pytest.mark.parametrize("seed", SEEDS)
def test_all_that_waits_has_a_message_in_whatever_order_they_come(
    context: AppContext, project: str, other: str, submitted: Callable[[str], Batch], sent: SentMessages, seed: int
) -> None:
    """With a worker now and then that keeps a batch for itself, as `advance` does after a segment."""
    drawn = random.Random(seed)

    def answered() -> Batch:
        batch = plan_batch(context, drawn.choice((project, other)), ["one"])
        finish_segment(context, batch, answers([1]))
        return batch

    ends = [answered() for _ in range(4)]
    finalize.start_ready(context)
    starts = [submitted(drawn.choice((project, other))) for _ in range(6)]
    queues = [
        Queue(context, advance.finish_next, [batch.id for batch in ends]),
        Queue(context, advance.validate_next, [batch.id for batch in starts]),
    ]
    for _ in range(2):
        drawn.choice(queues).handle()
        ends.append(answered())
        advance.advance(context, HOLDER)
    for batch_id, *_ in sent.of("finish")[4:]:
        queues[0].waiting.append(batch_id)
    while waiting := [queue for queue in queues if queue.waiting]:
        drawn.choice(waiting).handle()
    left = [batch.id for batch in ends if reload(context.database, batch).status != "completed"]
    assert all(done(context.database, batch) for batch in starts) and left == []


def test_the_message_of_what_has_failed_does_it_before_others_in_turn(
    context: AppContext, project: str, other: str, submitted: Callable[[str], Batch]
) -> None:
    failed, waiting = submitted(project), submitted(other)
    with context.database.write() as session:
        session.get_one(Batch, failed.id).attempt_error = "a moment ago"
    Queue(context, advance.validate_next, [failed.id, waiting.id]).handle_all()
    assert done(context.database, failed) and done(context.database, waiting)


def test_turns_are_given_while_redis_is_away(
    new_context: Callable[..., AppContext], project: str, other: str, submitted: Callable[[str], Batch]
) -> None:
    first, second = submitted(project), submitted(other)
    away = new_context()
    Queue(away, advance.validate_next, [first.id, second.id]).handle_all()
    assert done(away.database, first) and done(away.database, second)


def test_a_project_may_have_so_much_that_was_not_validated(
    new_context: Callable[..., AppContext], upload: Callable[[bytes], File], broker: str
) -> None:
    limited, source = new_context(redis_url=broker, max_unvalidated=2), upload(b"{}\n")

    def create() -> Batch:
        draft = submission.draft(
            limited,
            Batch(
                project_id=source.project_id, endpoint="/v1/chat/completions", completion_window="24h", post_process=[]
            ),
            source,
        )
        with limited.database.write() as session:
            return submission.submit(limited, session, draft)

    created = [create(), create()]
    with pytest.raises(RateLimitError, match="wait to be validated") as refused:
        create()
    assert refused.value.retry_after > 0 and "one batch" in refused.value.message
    Queue(limited, advance.validate_next, [created[0].id]).handle_all()
    create()
