"""/v1/jobs: create, list, retrieve, cancel; and read the results, the items and the events of a job."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from flask import Blueprint, Response
from pydantic import BaseModel, Field
from sqlalchemy.orm import Session

from batchyard.errors import RequestError
from batchyard.statuses import TERMINAL, ItemState, JobStatus
from batchyard.tariffs import Cost
from store import events, holds, schedules
from store.accounting import usage as accounts
from store.jobs import lifecycle
from store.jobs import reading as job_records
from store.jobs.lifecycle import JOBS
from store.jobs.reading import NO_TOKENS, Tokens
from store.records import Batch, File, Job, JobStage
from store.work.artifacts import AnyArtifact
from tasks.jobs.intake.drafts import JobDraft
from tasks.jobs.items import detail, item_replies, listing
from tasks.jobs.items import results as item_results
from tasks.jobs.kinds import registry as kinds
from tasks.jobs.submission import again, creation, dry_run
from tasks.jobs.submission.creation import ArtifactName, JobRequest
from tasks.jobs.submission.dry_run import JobOutlook
from tasks.scheduling import deadlines
from tasks.scheduling.forecast import Forecast
from webapp import idempotency, job_wire, wire, work
from webapp.document import operation
from webapp.events import EventPage, ListEvents
from webapp.events import to_wire as events_to_wire
from webapp.idempotency import Idempotency, Idempotent, Once
from webapp.requests import after_response, caller, current_context, parse_body, query

routes = Blueprint("jobs", __name__)


class CreateQuery(BaseModel):
    dry_run: bool = Field(False, description="create nothing: say what the job would be")


class ListJobs(BaseModel):
    status: JobStatus | None = None
    recipe: str | None = Field(None, min_length=1, max_length=128)
    parent_id: str | None = Field(None, min_length=1, max_length=64, description="only the jobs that this one started")
    after: str | None = Field(None, description="the id of the last job of the page before")
    limit: int = Field(20, ge=1, le=100)


class ListResults(BaseModel):
    after: int = Field(0, ge=0, le=2**53, description="how many lines the caller has already")
    limit: int | None = Field(None, ge=1, le=2**53, description="most lines to answer with")


class ListItems(BaseModel):
    state: ItemState | None = None
    custom_id: str | None = Field(None, min_length=1, max_length=256)
    after: int | None = Field(None, ge=0, le=2**53, description="the number of the last item of the page before")
    limit: int = Field(20, ge=1, le=100)


def to_wire(records: Sequence[Job]) -> list[job_wire.JobObject]:
    """Return jobs as they cross the wire. What belongs to them is read in one query for all."""
    context = current_context()
    ids = [job.id for job in records]
    with context.database.read() as session:
        stages = job_records.stages(session, ids)
        artifacts = lifecycle.artifacts(session, ids)
        children = job_records.children(session, ids)
        usage = job_records.usage(session, ids)
        retries = lifecycle.retries(session, ids)
        scheduled = schedules.of_jobs(session, ids)
        costs = accounts.job_costs(session, ids)
        unfinished = [batch.id for job in records if job.status not in TERMINAL for _, batch in stages[job.id] if batch]
        held = holds.of_batches(session, unfinished)
    forecasts = deadlines.read(context, [job.id for job in records if job.status not in TERMINAL])
    return [
        _object(
            job,
            forecasts.get(job.id),
            stages=stages[job.id],
            artifacts=artifacts[job.id],
            children=children[job.id],
            usage=usage[job.id],
            retries=retries[job.id],
            schedule_id=scheduled.get(job.id),
            cost=costs.get(job.id),
            waits=any(batch.id in held for _, batch in stages[job.id] if batch),
        )
        for job in records
    ]


_COPIED = [
    name
    for name in job_wire.JobObject.model_fields
    if name not in ("object", "errors", "request_counts", "usage", "metadata", "batchyard")
]
_OURS = (
    *("paused_at", "paused_by"),
    *("created_by", "attempts", "simulated", "options", "seed", "input_sha256", "items_sha256", "recipe_sha256"),
    *("config_sha256", "work_sha256", "admitted", "waiting_for_verdict", "restarted", "reused", "amendments"),
    *("counters", "metrics", "report", "post_process", "depends_on", "answers_from", "retry_of", "parent_id"),
    *("child_key", "variant"),
)


def _object(
    job: Job,
    forecast: Forecast | None = None,
    *,
    stages: Sequence[tuple[JobStage, Batch | None]] = (),
    artifacts: Sequence[tuple[AnyArtifact, File]] = (),
    children: Sequence[str] = (),
    usage: Tokens = NO_TOKENS,
    retries: Sequence[str] = (),
    schedule_id: str | None = None,
    cost: Cost | None = None,
    waits: bool = False,
) -> job_wire.JobObject:
    """Return the job object; the defaults are those of a new job. `waits`: a model of its requests is on hold."""
    held = None if job.status in TERMINAL else job.attempt_error
    expected = kinds.expected(current_context(), job) if stages else {}
    return job_wire.JobObject(
        **{name: getattr(job, name) for name in _COPIED},
        errors=None if job.errors is None else wire.BatchErrors.model_validate({"data": job.errors}),
        request_counts=job_wire.ItemCounts(
            total=job.total,
            completed=job.completed,
            failed=job.failed,
            stuck=job.stuck,
            expired=job.expired_items,
            cancelled=job.cancelled_items,
        ),
        usage=work.usage(*usage),
        metadata=job.request_metadata,
        batchyard=job_wire.JobExtension(
            **{name: getattr(job, name) for name in _OURS},
            **work.eta(None if job.paused_at is not None else forecast),
            due_at=deadlines.deadline(job),
            held=held,
            sla="at_risk" if (waits or held) and job.sla == "on_track" else job.sla,
            **wire.engine_deaths(batch.engine_deaths for _, batch in stages if batch is not None),
            models={name: config["engine"] for name, config in job.models.items()},
            artifacts=work.artifacts(artifacts),
            stages=[_stage(stage, batch, expected.get(stage.number)) for stage, batch in stages],
            children=list(children),
            retries=list(retries),
            schedule_id=schedule_id,
            cost=work.cost(cost),
            warnings=_warnings(creation.job_warnings(current_context(), job)),
        ),
    )


def _stage(stage: JobStage, batch: Batch | None, expected: int | None) -> job_wire.StageObject:
    if batch is not None and not batch.open:  # it gets no more requests
        expected = batch.total
    return job_wire.StageObject(
        name=stage.name,
        batch_id=stage.batch_id,
        status=None if batch is None else batch.status,
        issued=0 if batch is None else batch.total,
        answered=0 if batch is None else batch.completed + batch.failed,
        failed=0 if batch is None else batch.failed,
        expected=expected,
    )


def _warnings(warnings: Sequence[tuple[str, str]]) -> list[job_wire.WarningObject]:
    return [job_wire.WarningObject(code=code, message=message) for code, message in warnings]


@routes.post("/v1/jobs")
@operation(
    job_wire.CreatedJob, query=CreateQuery, json=job_wire.CreateJob, headers=Idempotent, refusals=(403, 409, 413)
)
def create() -> job_wire.JobObject | job_wire.DryRun:
    """Make a job of a recipe and an input. With `dry_run` nothing is made, and the answer says what it would be.

    With an Idempotency-Key, the same body again answers with the job that was made the first time.
    """
    owner, context = caller(), current_context()
    params = query(CreateQuery)
    body = parse_body(job_wire.CreateJob, bulk=True)
    request = replace(request_of(body), admin=owner.admin)
    if params.dry_run:
        return _dry_run(dry_run.run(context, owner.project_id, request))
    created = create_once(idempotency.of_request(body), lambda: creation.draft(context, owner.project_id, request))
    if created.draft is None:
        return to_wire([created.record])[0]
    return _object(created.record)  # nothing is read: the answer cannot fail after the commit


def create_once(key: Idempotency, draft: Callable[[], JobDraft]) -> Once[Job, JobDraft]:
    """Create and announce a job, or return the job that an earlier request with the same key created.

    Raises:
        ConflictError: the key was used for something else.
    """
    context = current_context()

    def submit(session: Session, new: JobDraft) -> Job:
        return creation.submit(context, session, new, key)

    created = idempotency.once(key, lifecycle.repeated, draft, submit)
    if created.draft is not None:
        after_response(lambda: creation.send(created.record))
    return created


def request_of(body: job_wire.CreateJob) -> JobRequest:
    """Return the job that a body asks for. Raises RequestError if it has no input, or two."""
    file_id, source = body.input_file_id, body.input
    if (file_id is None) == (source is None):
        raise RequestError(
            "Send the items either as 'input_file_id' or as 'input'.",
            code="missing_required_parameter" if file_id is None else "invalid_value",
            param="input_file_id",
        )
    rows_or_file: Any = file_id
    if source is not None and source.artifact is not None:
        owner_id = source.artifact.job_id or source.artifact.batch_id or ""
        rows_or_file = ArtifactName(owner_id, source.artifact.name)
    elif source is not None:
        rows_or_file = source.items or [{"prompt": prompt} for prompt in source.prompts or ()]
    return JobRequest(
        recipe=body.recipe,
        input=rows_or_file,
        completion_window=body.completion_window,
        options=body.options,
        seed=body.seed,
        name=body.name,
        metadata=body.metadata,
        output_expires_after=body.output_expires_after.seconds if body.output_expires_after else None,
        depends_on=[dependency.model_dump() for dependency in body.depends_on],
        answers_from=body.answers_from,
        post_process=body.post_process,
    )


def _dry_run(outlook: JobOutlook) -> job_wire.DryRun:
    return job_wire.DryRun(
        items=outlook.estimate.items,
        stages=[job_wire.DryRunStage(**stage._asdict()) for stage in outlook.estimate.stages],
        eta_seconds=outlook.estimate.seconds,
        config_sha256=outlook.config_sha256,
        work_sha256=outlook.work_sha256,
        same_as=outlook.same,
        warnings=_warnings(outlook.warnings),
        cells=[
            job_wire.CellObject(**cell.model_dump(include=set(job_wire.CellObject.model_fields)))
            for cell in outlook.estimate.cells
        ],
    )


@routes.get("/v1/jobs")
@operation(job_wire.JobPage, query=ListJobs)
def list_() -> job_wire.JobPage:
    """List the project's jobs, newest first."""
    owner = caller()
    params = query(ListJobs)
    with current_context().database.read() as session:
        records, has_more = lifecycle.page(
            session,
            owner.project_id,
            after=params.after,
            limit=params.limit,
            status=params.status,
            recipe=params.recipe,
            parent_id=params.parent_id,
        )
    return job_wire.JobPage.of(to_wire(records), has_more=has_more)


def get_job(job_id: str) -> Job:
    """Return a job of the caller's project. Raises NotFoundError."""
    return work.get(JOBS, job_id)


@routes.get("/v1/jobs/<job_id>")
@operation(job_wire.JobObject, refusals=(404,))
def retrieve(job_id: str) -> job_wire.JobObject:
    """Look at a job."""
    return to_wire([get_job(job_id)])[0]


@routes.post("/v1/jobs/<job_id>/cancel")
@operation(job_wire.JobObject, refusals=(404, 409))
def cancel(job_id: str) -> job_wire.JobObject:
    """Cancel a job: items that have ended are kept, the others do not go on."""
    return to_wire([work.control(JOBS, job_id, "cancel")])[0]


@routes.post("/v1/jobs/<job_id>/pause")
@operation(job_wire.JobObject, refusals=(404, 409))
def pause(job_id: str) -> job_wire.JobObject:
    """Pause a job: requests in the engines are answered, and no others are sent. Its window goes on."""
    return to_wire([work.control(JOBS, job_id, "pause")])[0]


@routes.post("/v1/jobs/<job_id>/resume")
@operation(job_wire.JobObject, refusals=(404, 409))
def resume(job_id: str) -> job_wire.JobObject:
    """Let a paused job go on where it is."""
    return to_wire([work.control(JOBS, job_id, "resume")])[0]


@routes.post("/v1/jobs/<job_id>/rescore")
@operation(job_wire.CreatedJob, json=job_wire.Rescore, headers=Idempotent, refusals=(403, 404, 409, 413))
def rescore(job_id: str) -> job_wire.JobObject:
    """Judge the answers of an ended job anew, as a new job with other options that only judge. No engine is asked."""
    owner, context = caller(), current_context()
    body = parse_body(job_wire.Rescore, bulk=True)
    created = create_once(
        idempotency.of_request(body, job_id),
        lambda: again.rescore(context, owner.project_id, job_id, body.options),
    )
    return to_wire([created.record])[0]


@routes.post("/v1/jobs/<job_id>/retry")
@operation(
    job_wire.CreatedJob, json=job_wire.RetryJob, body_optional=True, headers=Idempotent, refusals=(403, 404, 409, 413)
)
def retry(job_id: str) -> job_wire.JobObject:
    """Make a job of the items that did not complete in one that has ended, which stays as it is.

    All requests of these items are asked again. The body may be left out.
    """
    owner, context = caller(), current_context()
    body = parse_body(job_wire.RetryJob, bulk=True, optional=True)
    created = create_once(
        idempotency.of_request(body, job_id),
        lambda: again.retry(
            context,
            owner.project_id,
            job_id,
            states=body.states,
            values=body.options,
            completion_window=body.completion_window,
        ),
    )
    return to_wire([created.record])[0]


@routes.get("/v1/jobs/<job_id>/results")
@operation(None, media_type="application/jsonl", query=ListResults, refusals=(404, 409))
def results(job_id: str) -> Response:
    """Read the items that have ended so far, in the order in which they did. The last line of an item counts.

    `after` is how many lines the caller has: the same number gives the same lines again, so a reader goes on where it
    was cut off. They can be read this way for a while after the job has ended; then its artifacts have them.
    """
    job = get_job(job_id)
    params = query(ListResults)
    return Response(
        item_results.lines(current_context(), job, params.after, params.limit), mimetype="application/jsonl"
    )


@routes.get("/v1/jobs/<job_id>/item_events")
@operation(None, media_type="application/jsonl", query=ListResults, refusals=(404, 409))
def item_events(job_id: str) -> Response:
    """Read what the recipe tells of each item that has ended, in the order in which they did.

    Recipes that tell nothing of their own have `item.completed`, `item.failed` and so on. `after` counts items: it is
    the `sequence` of the last line that the caller has.
    """
    job = get_job(job_id)
    params = query(ListResults)
    lines = item_results.event_lines(current_context(), job, params.after, params.limit)
    return Response(lines, mimetype="application/jsonl")


@routes.get("/v1/jobs/<job_id>/items")
@operation(job_wire.ItemPage, query=ListItems, refusals=(404, 409))
def items(job_id: str) -> job_wire.ItemPage:
    """List the items of a job by number. There are none before it was validated."""
    job = get_job(job_id)
    params = query(ListItems)
    page, has_more = listing.page(
        current_context(),
        job,
        state=params.state,
        custom_id=params.custom_id,
        after=params.after,
        limit=params.limit,
    )
    return job_wire.ItemPage(
        data=[job_wire.ItemObject.model_validate(item, from_attributes=True) for item in page],
        first_id=str(page[0].number) if page else None,
        last_id=str(page[-1].number) if page else None,
        has_more=has_more,
    )


@routes.get("/v1/jobs/<job_id>/items/<int:number>")
@operation(job_wire.ItemDetail, refusals=(404, 409))
def item(job_id: str, number: int) -> job_wire.ItemDetail:
    """Look at an item: its row, all that it has asked with the answers, and its result."""
    return _detail(job_id, number)


def _detail(job_id: str, number: int) -> job_wire.ItemDetail:
    details = detail.item(current_context(), get_job(job_id), number)
    return job_wire.ItemDetail.model_validate(details, from_attributes=True)


@routes.post("/v1/jobs/<job_id>/items/<int:number>")
@operation(job_wire.ItemDetail, json=job_wire.ItemReply, refusals=(404, 409))
def reply(job_id: str, number: int) -> job_wire.ItemDetail:
    """Reply to an item: give the verdict that it waits for, put it back, or complete it with a text.

    Verdicts, and items that are put back, take effect within a second or two.
    """
    post(job_id, number, parse_body(job_wire.ItemReply))
    return _detail(job_id, number)


def post(job_id: str, number: int, body: job_wire.ItemReply) -> None:
    """Take a reply to an item of the caller's project. Raises NotFoundError, ConflictError."""
    owner, context = caller(), current_context()
    place = (context, owner, job_id, number)
    if body.verdict is not None:
        item_replies.give_verdict(*place, body.verdict.model_dump(exclude={"turn"}), body.verdict.turn)
    elif body.requeue is not None:
        item_replies.put_back(*place, body.requeue.hint)
    else:
        item_replies.resolve(*place, body.text or "", body.by)


@routes.get("/v1/jobs/<job_id>/events")
@operation(EventPage, query=ListEvents, refusals=(404,))
def list_events(job_id: str) -> EventPage:
    """List what has happened to a job, oldest first."""
    job = get_job(job_id)
    params = query(ListEvents)
    with current_context().database.read() as session:
        records, has_more = events.page(session, job, after=params.after, limit=params.limit)
    return events_to_wire(records, has_more=has_more)
