"""One tick of a job: what has come is sent to its items, and what they want next becomes segments.

All that a tick decides is committed in one transaction, which the epoch of the job's lease guards. After it, memory
equals the records; if it fails, memory is thrown away and built again from them.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, cast

import pyarrow as pa
from sqlalchemy.orm import Session

from batchyard.errors import RequestError, UnavailableError
from batchyard.models import ModelSpec
from batchyard.recipes import Answer, FlowRecipe, Item, Options, Reply, Stage
from store import events
from store.formats import chunks, job_chunks
from store.formats import items as items_file
from store.jobs import lifecycle, replies
from store.jobs import stages as stage_records
from store.leases import Lease
from store.records import ChunkKind, Job, JobReply, JobStage
from tasks import messages
from tasks.context import AppContext
from tasks.finishing import finalize
from tasks.intake.validation import segment_sizes
from tasks.jobs import progress
from tasks.jobs.finishing import journal
from tasks.jobs.intake.requests import Pending, Preparer
from tasks.jobs.running import notices, replay, segments
from tasks.jobs.running.judging import Judges, Verdict, has_failed, is_quick, judge
from tasks.jobs.running.live import Call, LiveItems, NotDeterministic, Step
from tasks.jobs.running.notices import Notices
from tasks.jobs.running.turns import Turns
from tasks.jobs.running.watchdog import watchdog
from tasks.jobs.stage_records import records_of
from tasks.scheduling import dispatch

log = logging.getLogger(__name__)

TICK_SECONDS = 0.5
"""Ticks of one job begin at least so far apart: what comes meanwhile is taken together."""
WAITING_SECONDS = 60.0
"""It wakes a job that only waits for verdicts after so long: a reply wakes it, too."""
READ_ITEMS = 64
"""Items that are read at once; those that do not begin yet are read again."""
NOT_RECORDED = Answer(
    ok=False,
    error={"code": "not_recorded", "message": "The job whose answers are judged anew has none to this request."},
    status_code=None,
)
LIVE_BYTES = 512 * 1024 * 1024
"""Texts of all jobs in this process; the job that was advanced longest ago is dropped first."""
MOST_HUNG = 10
"""Items in which the recipe may hang: each of them ends a worker, and the ticks of other jobs in it."""


@dataclass
class State:
    """A job in memory. It is exact as long as `epoch` is that of the last lease on the job."""

    epoch: int
    job: Job
    recipe: FlowRecipe[Any]
    options: Options
    items: LiveItems
    reader: items_file.Reader
    release: segments.Release
    admitted: int
    lines: dict[str, int]
    cursors: dict[str, int]
    reply_id: int = 0
    at: float = 0.0
    hungry: list[str] = field(default_factory=list)
    verdicts: deque[tuple[int, int, int, Verdict]] = field(default_factory=deque)
    notices: Notices = field(default_factory=Notices)


_states: dict[str, State] = {}
_lock = threading.Lock()
_judges: Judges | None = None


class RecipeHangs(Exception):
    """A recipe hangs in too many items. The message names the last one."""

    code = "recipe_hangs"


class _Ending(Exception):
    """The job is cancelled or its window has passed since the tick began: nothing of it is committed."""


def run(context: AppContext, lease: Lease, job: Job) -> None:
    """Advance a job that is in progress, or stop one that is being cancelled. Raises LeaseLost, UnavailableError."""
    try:
        if job.status == "cancelling" or job.outcome is not None:
            _stop(context, lease, job)
        else:
            with watchdog(context.settings.judge_seconds).tick(job.id, lease.epoch) as step:
                _tick(context, lease, job, step)
    except (NotDeterministic, RecipeHangs) as error:
        _states.pop(job.id, None)
        _fail(context, lease, job, error.code, str(error))
    except _Ending:
        _states.pop(job.id, None)
        messages.wake_job(context.redis, job.id, 0.0)
    except BaseException:
        _states.pop(job.id, None)
        raise


def _tick(context: AppContext, lease: Lease, job: Job, step: Step) -> None:
    started_at = time.monotonic()
    state = _states.get(job.id)
    if state is None or state.epoch + 1 != lease.epoch:
        state = _rebuilt(context, job, step)
    hungry = dict.fromkeys(state.hungry, started_at - state.at)
    state.epoch, state.at, state.items.step = lease.epoch, started_at, step
    _states[job.id] = state
    _send_verdicts(state)
    _send_answers(context, state)
    _send_replies(context, state)
    _admit(context, state)
    _judge(context, state)
    if state.options.streaming:
        cuts = state.release.cuts(state.items, state.lines, started_at)
    else:
        cuts = [] if state.items.waits() else state.release.all(state.items, state.lines)
    items = state.items
    done = state.admitted == job.total and not len(items)
    state.notices.add(items)
    changed = bool(cuts or items.ended or items.moved or items.judged or done or state.admitted != job.admitted)
    if changed or state.notices.next_in(time.time()) == 0.0:
        done = _commit(context, lease, state, cuts, done=done)
        progress.count_items(context, job.recipe, Counter(ended.state for ended in items.ended), items.counters)
        for cut in cuts:
            state.items.issue(cut.requests, cut.first_line)
        state.items.taken()
    state.hungry = state.release.hungry(items)
    if cuts:
        dispatch.run(context)
    if changed:
        progress.publish(context, job.id)
    if done:
        _states.pop(job.id, None)
        log.info("all items have ended", extra={"job_id": job.id})
        _release(context, lease)
        finalize.start_ready(context)
    elif state.verdicts or (not state.options.streaming and items.pending() and not items.waits()):
        messages.wake_job(context.redis, job.id, TICK_SECONDS)
    else:
        wait = state.release.next_in(items, time.monotonic())
        if wait is not None:
            messages.wake_job(context.redis, job.id, max(wait, TICK_SECONDS))
        elif items.waiting and len(items.waiting) == len(items):
            notice = state.notices.next_in(time.time())
            _release(context, lease, WAITING_SECONDS if notice is None else notice)
    _drop_others(job.id)
    progress.count_tick(context, time.monotonic() - started_at, hungry)


def _rebuilt(context: AppContext, job: Job, step: Step) -> State:
    """Build the state of a job from its records. Raises RecipeHangs, and NotDeterministic as LiveItems.begin does."""
    recipe = _recipe(context, job)
    options = recipe.options.model_validate(job.options)
    specs = {name: ModelSpec.model_validate(spec) for name, spec in job.models.items()}
    with context.database.read() as session:
        records = records_of(session, job.id)
        own = stage_records.chunks(session, job.id)
    results = [sha256 for _, kind, sha256, _ in own if kind == "result"]
    judgements = [sha256 for _, kind, sha256, _ in own if kind == "judgement"]
    recorded = replay.read(context.artifacts, job.admitted, records, results, judgements, job.recipe_sha256)
    reader = items_file.Reader(context.artifacts, job.items_sha256 or "")
    _refuse_hanging(recorded, reader)
    catalogue = context.recipes

    def judged(call: Call, item: Item) -> Verdict | None:
        return judge(catalogue, call, item) if is_quick(catalogue, call) else None

    state = State(
        epoch=0,
        job=job,
        recipe=recipe,
        options=options,
        items=LiveItems(
            recipe,
            options,
            Preparer(specs, context.settings.max_requests, shares_answers=options.shares_answers).prepare,
            inline=judged,
            reuse=_reuse(context, job),
            max_requests=context.settings.max_item_requests,
            recipe_sha256=context.recipes.sha256(job.recipe),
            created_sha256=job.recipe_sha256,
            hung=recorded.hung,
            step=step,
        ),
        reader=reader,
        release=segments.Release(
            [stage.name for stage in recipe.stages_of(options)],
            segment_sizes(context),
            {name: spec.in_flight() * spec.replicas for name, spec in specs.items()},
        ),
        admitted=job.admitted,
        lines=recorded.lines,
        cursors={stage.name: stage.cursor for stage in records},
    )
    state.items.turns = Turns.from_json((job.ahead or {}).get("turns", []))
    for row in _rows(state.reader, recorded.positions.tolist()):
        state.items.begin(row.position, item_of(job, options, row), _size(row), recorded)
    if job.admitted:
        state.notices = Notices.resumed(state.items, time.time())
    with context.database.read() as session:
        earlier = replies.after(session, job.id, 0)
    for reply in earlier:
        state.reply_id = reply.id
        if reply.kind != "requeue" or recorded.lives[reply.position] == reply.life:  # else it was put back already
            _take(state, reply)
    log.info("job read from its records", extra={"job_id": job.id, "items": len(state.items)})
    return state


def _refuse_hanging(recorded: replay.Recorded, reader: items_file.Reader) -> None:
    if len(recorded.hung) < MOST_HUNG:
        return
    (position, _), (_, message) = list(recorded.hung.items())[-1]
    (custom_id,) = reader.custom_ids([position]).values()
    raise RecipeHangs(f"the recipe hangs in {len(recorded.hung)} items, the last one is {custom_id!r}: {message}")


def _reuse(context: AppContext, job: Job) -> Callable[[Item, Pending], Answer | None]:
    """Return what looks a request up in the journals of the jobs whose answers this one takes.

    A job of the same work only judges anew: a request that is not recorded is not issued.
    """
    with context.database.read() as session:
        sources = lifecycle.sources(session, job)
        files = lifecycle.artifacts(session, [source.id for source in sources])
    only_judges = bool(sources) and sources[0].work_sha256 == job.work_sha256
    journals = [
        journal.Journal(context.artifacts, file.sha256)
        for source in sources
        for artifact, file in files[source.id]
        if artifact.name == journal.NAME
    ]

    def reuse(item: Item, request: Pending) -> Answer | None:
        for earlier in journals:
            answer = earlier.answer(item.number, request.stage, request.visit, request.sample, request.ask)
            if answer is not None and (answer.ok or only_judges):
                return answer
        return NOT_RECORDED if only_judges else None

    return reuse


def _recipe(context: AppContext, job: Job) -> FlowRecipe[Any]:
    try:
        return cast("FlowRecipe[Any]", context.recipes.recipe(job.recipe))
    except RequestError as error:
        raise UnavailableError(f"the recipe {job.recipe!r} is not there any more") from error


def item_of(job: Job, options: Options, row: items_file.Row) -> Item:
    """Return the item of a row of the items file."""
    return Item(
        number=row.number,
        custom_id=row.custom_id,
        columns=row.columns,
        total=job.total,
        job_seed=job.seed,
        system=options.system,
        template=options.template,
    )


def _rows(reader: items_file.Reader, positions: list[int]) -> Iterator[items_file.Row]:
    for position in positions:
        yield from reader.read(position, 1)


def _rows_from(reader: items_file.Reader, first: int) -> Iterator[items_file.Row]:
    while rows := reader.read(first, READ_ITEMS):
        yield from rows
        first += len(rows)


def _size(row: items_file.Row) -> int:
    return sum(len(value) if isinstance(value, str) else 64 for value in row.columns.values())


def _send_verdicts(state: State) -> None:
    while state.verdicts:
        state.items.judge(*state.verdicts.popleft())


def _send_answers(context: AppContext, state: State) -> None:
    with context.database.read() as session:
        new = {
            stage.name: stage_records.new_chunks(session, stage.batch_id, state.cursors.get(stage.name, 0))
            for stage in stage_records.stages(session, state.job.id)
            if stage.batch_id is not None
        }
    for stage, own in new.items():
        for chunk_id, sha256 in own:
            for table in chunks.read(context.artifacts, sha256, ["line", "answer", "seconds"]):
                for line, answer, seconds in zip(*(column.to_pylist() for column in table.columns), strict=True):
                    state.items.answer(stage, line, answer, seconds)
            state.cursors[stage] = chunk_id


def _send_replies(context: AppContext, state: State) -> None:
    with context.database.read() as session:
        new = replies.after(session, state.job.id, state.reply_id)
    for reply in new:
        state.reply_id = reply.id
        _take(state, reply)


def _take(state: State, reply: JobReply) -> None:
    """Send a verdict to its item, or begin the next life of an item that was put back."""
    if reply.kind == "verdict":
        verdict = Reply(reply.body["passed"], *(reply.body.get(name) for name in ("category", "message", "by")))
        state.items.reply(reply.position, reply.life, reply.turn, verdict)
    elif reply.kind == "requeue":
        (row,) = state.reader.read(reply.position, 1)
        item = item_of(state.job, state.options, row)
        again = replace(item, life=reply.life + 1, hint=reply.body.get("hint"))
        state.items.put_back(row.position, again, _size(row), reply.body["state"])


def _admit(context: AppContext, state: State) -> None:
    """Begin items while the engines may need their requests. One is always live."""
    items, limit = state.items, state.release.room()
    window = context.settings.job_window_bytes

    def enough() -> bool:
        if not state.options.streaming or not len(items):
            return False
        return sum(items.unanswered.values()) + items.pending() >= limit or items.bytes >= window

    rows = _rows_from(state.reader, state.admitted)
    while not enough() and (row := next(rows, None)) is not None:
        items.begin(row.position, item_of(state.job, state.options, row), _size(row))
        state.admitted = row.position + 1


def _judge(context: AppContext, state: State) -> None:
    calls, state.items.calls = state.items.calls, []
    if not calls:
        return
    state.items.judging += len(calls)

    def done(index: int, outcome: Verdict) -> None:
        position, turn, number, call, _ = calls[index]
        if has_failed(outcome):
            progress.count_failed_judgement(context, call)
        state.verdicts.append((position, turn, number, outcome))
        messages.wake_job(context.redis, state.job.id, TICK_SECONDS)

    _pool(context).submit([(call, item) for _, _, _, call, item in calls], done)


def _pool(context: AppContext) -> Judges:
    global _judges
    with _lock:
        if _judges is None:
            settings = context.settings
            _judges = Judges(settings.recipes, settings.judge_processes, settings.judge_seconds)
        return _judges


def _commit(context: AppContext, lease: Lease, state: State, cuts: list[segments.Cut], *, done: bool) -> bool:
    """Write what the tick has decided, in one transaction. True if the job's items have all ended.

    Args:
        done: all have, unless one was put back since the replies were read.

    Raises:
        LeaseLost: another process has the job now.
        _Ending: the job is no longer in progress.
    """
    job, items = state.job, state.items
    planned = segments.write(context.artifacts, cuts)
    new_chunks: list[tuple[ChunkKind, str, int]] = [
        (kind, job_chunks.write(context.artifacts, table), table.num_rows)
        for kind, table in _tables(items)
        if table.num_rows
    ]
    states = Counter(ended.state for ended in items.ended)
    item_events = notices.of_project(state.recipe, state.options, items.ended)
    specs = state.recipe.stages_of(state.options)
    with context.database.write() as session:
        lease.guard(session)
        record = session.get_one(Job, job.id)
        if record.status != "in_progress" or record.outcome is not None:
            raise _Ending
        existing = {own.name: own for own in stage_records.stages(session, job.id)} if cuts else {}
        for number, stage in enumerate(specs):
            own = [segment for cut, segment in zip(cuts, planned, strict=True) if cut.stage == stage.name]
            if own:
                stage_records.extend(session, _batch_of(session, record, number, stage, existing), own)
        for kind, sha256, rows in new_chunks:
            stage_records.add_chunk(session, job.id, kind, sha256, rows)
        for event in item_events:
            events.record(session, record, event.pop("type"), **event)
        record.admitted = state.admitted
        record.completed += states["completed"]
        record.failed += states["failed"] - items.reopened["failed"]
        record.stuck += states["stuck"] - items.reopened["stuck"]
        record.waiting_for_verdict = len(items.waiting)
        record.reused += items.reused
        record.restarted += items.restarted
        record.attempts, record.attempt_error = 0, None
        record.ahead = items.outlook(job.total - state.admitted)
        if items.counters:
            record.counters = dict(Counter(record.counters) + Counter(items.counters))
        for notice in state.notices.due(items, record.stuck, time.time()):
            events.record(session, record, notice.type, **notice.data)
        done = done and not replies.after(session, job.id, state.reply_id)
        if done:
            _seal(session, job.id)
            lifecycle.transition(session, job.id, "in_progress", "finalizing", outcome="completed")
    state.job = record
    return done


def _batch_of(session: Session, job: Job, number: int, stage: Stage, existing: dict[str, JobStage]) -> str:
    """Return the id of a stage's batch, which is made if there is none. `existing` has the job's stages by name."""
    own = existing.get(stage.name)
    if own is not None and own.batch_id is not None:
        return own.batch_id
    taken = {other.number for name, other in existing.items() if name != stage.name}
    if number in taken:  # the recipe's file has changed, and so have the numbers of its stages
        number = max(taken) + 1
    batch = stage_records.open_batch(session, job, number, stage.name, stage.endpoint)
    existing.update({own.name: own for own in stage_records.stages(session, job.id)})
    return batch.id


def _seal(session: Session, job_id: str) -> None:
    for stage in stage_records.stages(session, job_id):
        if stage.batch_id is not None:
            stage_records.seal(session, stage.batch_id)


def _stop(context: AppContext, lease: Lease, job: Job, **values: Any) -> None:
    """End the batches of a job that is cancelled, whose window has passed, or that has failed. Answers are kept."""
    _states.pop(job.id, None)
    with context.database.write() as session:
        lease.guard(session)
        stage_records.cancel_batches(session, job.id)
        record = session.get_one(Job, job.id)
        record.cancelled_items = record.unended
        if record.status == "in_progress":
            lifecycle.transition(session, job.id, "in_progress", "finalizing", **values)
    _release(context, lease)
    log.info("job stopped", extra={"job_id": job.id, "status": job.status, "outcome": values.get("outcome")})
    progress.publish(context, job.id)


def _release(context: AppContext, lease: Lease, pause: float = 0.0) -> None:
    """Give the lease back with another pause than that of a tick: the end of the last batch finishes the job."""
    with context.database.write() as session:
        lease.release(session, pause, attempts=0, attempt_error=None)


def _fail(context: AppContext, lease: Lease, job: Job, code: str, message: str) -> None:
    errors = [{"code": code, "line": None, "message": message, "param": None}]
    log.error("job failed: %s", message, extra={"job_id": job.id})
    _stop(context, lease, job, outcome="failed", errors=errors)


def _drop_others(job_id: str) -> None:
    """Drop jobs from memory while all of them hold more than LIVE_BYTES."""
    with _lock:
        others = sorted((state for key, state in [*_states.items()] if key != job_id), key=lambda state: state.at)
        excess = sum(state.items.bytes for state in [*_states.values()]) - LIVE_BYTES
        for state in others:
            if excess <= 0:
                return
            excess -= state.items.bytes
            _states.pop(state.job.id, None)


def _tables(items: LiveItems) -> list[tuple[ChunkKind, pa.Table]]:
    states = _table([*items.moved, *items.ended], job_chunks.RESULT)
    return [("result", states), ("judgement", _table(items.judged, job_chunks.JUDGEMENT))]


def _table(records: Sequence[Any], schema: pa.Schema) -> pa.Table:
    return pa.table(
        [pa.array([_value(getattr(record, field.name)) for record in records], field.type) for field in schema],
        schema=schema,
    )


def _value(value: Any) -> Any:
    return value.decode() if isinstance(value, bytes) else value
