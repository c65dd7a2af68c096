"""Builds a job in memory from its records, at its first tick here and after a fault."""

import logging
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any, cast

from batchyard.errors import RequestError, UnavailableError
from batchyard.models import ModelSpec, served_by_name
from batchyard.recipes import Answer, FlowRecipe, Item, Options, Reply
from jobs.catalogue import catalogue_of
from jobs.finishing import journal
from jobs.intake.requests import PreparedRequest, Preparer
from jobs.running import records
from jobs.running.calling import Tools
from jobs.running.judging import Verdict, is_quick, judge
from jobs.running.live import LiveItems
from jobs.running.live_item import ToJudge
from jobs.running.memory import LiveJob
from jobs.running.notices import Notices
from jobs.running.programs import Programs, WatchStep
from jobs.running.segments import SegmentCutter
from jobs.running.turns import Turns
from jobs.stage_records import records_of
from recipes.tools.pool import ToolCalls
from store.formats import items as items_file
from store.jobs import chunk_records, lifecycle, replies
from store.records import Job, JobReply
from tasks.context import AppContext
from tasks.intake.validation import segment_sizes

log = logging.getLogger(__name__)

NOT_RECORDED = Answer(
    ok=False,
    error={"code": "not_recorded", "message": "The job whose answers are judged anew has none to this request."},
    status_code=None,
)
MOST_HUNG = 10
"""Items in which the recipe may hang: each of them ends a worker, and the ticks of other jobs in it."""


class RecipeHangs(Exception):
    """A recipe hangs in too many items. The message names the last one."""

    code = "recipe_hangs"


def rebuilt(context: AppContext, job: Job, watch: WatchStep, calls: ToolCalls) -> LiveJob:
    """Build a job from its records. `calls`: of its tools, here. Raises RecipeHangs, NotDeterministic."""
    catalogue = catalogue_of(context)
    try:
        recipe = cast("FlowRecipe[Any]", catalogue.recipe(job.recipe))
    except RequestError as error:
        raise UnavailableError(f"the recipe {job.recipe!r} is not there any more") from error
    options = recipe.options.model_validate(job.options)
    specs = {name: ModelSpec.model_validate(spec) for name, spec in job.models.items()}
    with context.database.read() as session:
        stages = records_of(session, job.id)
        chunks = chunk_records.of_job(session, job.id)
    recorded = records.read(context.artifacts, job, stages, chunks)
    reader = items_file.Reader(context.artifacts, job.items_sha256 or "")
    if len(recorded.hung) >= MOST_HUNG:
        (position, _), (_, message) = list(recorded.hung.items())[-1]
        (custom_id,) = reader.custom_ids([position]).values()
        raise RecipeHangs(f"the recipe hangs in {len(recorded.hung)} items, the last one is {custom_id!r}: {message}")

    def judged(call: ToJudge, item: Item) -> Verdict | None:
        return judge(catalogue, call, item) if is_quick(catalogue, call) else None

    live = LiveJob(
        epoch=0,
        job=job,
        recipe=recipe,
        options=options,
        items=LiveItems(
            Programs(
                recipe,
                options,
                Preparer(specs, shares_answers=options.shares_answers).prepare,
                max_requests=context.settings.max_item_requests,
                recipe_sha256=catalogue.sha256(job.recipe),
                created_sha256=job.recipe_sha256,
                hung=recorded.hung,
                watch=watch,
                bases={name: spec.name for name, spec in served_by_name(specs).items()},
                tools=Tools(catalogue.tools, job.id, calls.__contains__),
            ),
            inline=judged,
            reuse=_reuse(context, job),
            turns=Turns.from_json((job.ahead or {}).get("turns", [])),
        ),
        reader=reader,
        cutter=SegmentCutter(
            [stage.name for stage in recipe.stages_of(options)],
            segment_sizes(context),
            {name: spec.in_flight() * spec.replicas for name, spec in specs.items()},
        ),
        admitted=job.admitted,
        lines=recorded.lines,
        cursors={stage.name: stage.cursor for stage in stages},
    )
    for position in recorded.positions.tolist():
        (row,) = live.reader.read(position, 1)
        live.items.begin(position, item_of(job, options, row), size_of(row), recorded)
    if job.admitted:
        live.notices = Notices.resumed(live.items, time.time())
    with context.database.read() as session:
        earlier = replies.after(session, job.id, 0)
    for reply in earlier:
        live.reply_id = reply.id
        if reply.kind != "requeue" or recorded.lives[reply.position] == reply.life:  # else it was put back already
            take_reply(live, reply)
    log.info("job read from its records", extra={"job_id": job.id, "items": len(live.items)})
    return live


def _reuse(context: AppContext, job: Job) -> Callable[[Item, PreparedRequest], Answer | None]:
    """Return what looks a request up in the journals of earlier jobs."""
    with context.database.read() as session:
        sources = lifecycle.sources(session, job)
        files = lifecycle.artifacts(session, [source.id for source in sources])
    only_judges = job.only_judges
    journals = [
        journal.Journal(context.artifacts, file.sha256)
        for source in sources
        for artifact, file in files[source.id]
        if artifact.name == journal.NAME
    ]

    def reuse(item: Item, request: PreparedRequest) -> Answer | None:
        for earlier in journals:
            answer = earlier.answer(item.number, request.stage, request.visit, request.sample, request.ask)
            if answer is not None and (answer.ok or only_judges):
                return answer
        return NOT_RECORDED if only_judges else None

    return reuse


def item_of(job: Job, options: Options, row: items_file.StoredItem) -> Item:
    return Item(
        number=row.number,
        custom_id=row.custom_id,
        columns=row.columns,
        total=job.total,
        job_seed=job.seed,
        system=options.system,
        template=options.template,
    )


def size_of(row: items_file.StoredItem) -> int:
    """Return about how many bytes a row has in memory."""
    return sum(len(value) if isinstance(value, str) else 64 for value in row.columns.values())


def take_reply(live: LiveJob, reply: JobReply) -> None:
    """Send a verdict to its item, or begin the next life of an item that was put back."""
    if reply.kind == "verdict":
        verdict = Reply(reply.body["passed"], *(reply.body.get(name) for name in ("category", "message", "by")))
        live.items.reply(reply.position, reply.life, reply.turn, verdict)
    elif reply.kind == "requeue":
        (row,) = live.reader.read(reply.position, 1)
        item = item_of(live.job, live.options, row)
        again = replace(item, life=reply.life + 1, hint=reply.body.get("hint"))
        live.items.put_back(row.position, again, size_of(row), reply.body["state"])
