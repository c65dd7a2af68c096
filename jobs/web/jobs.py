"""/v1/jobs: create, list, retrieve, cancel, delete; and read the results, the items and the events of a job."""

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from flask import Blueprint, Response

from batchyard.errors import ConflictError, RequestError
from batchyard.statuses import TERMINAL
from batchyard.wording import FLAWS
from jobs import item_replies
from jobs.catalogue import catalogue_of
from jobs.intake.drafts import JobDraft
from jobs.items import detail, listing, sample, stream
from jobs.kinds.registry import kind_of_job
from jobs.submission import again, creation
from jobs.submission.creation import ArtifactName, JobOutlook, JobRequest, JobSource
from store import events, holds
from store.batches import PLAN
from store.jobs import lifecycle
from store.jobs import reading as job_records
from store.jobs.lifecycle import JOBS
from store.jobs.reading import NO_TOKENS, Tokens
from store.records import Batch, Job, JobStage
from tasks.finishing import erasure
from tasks.scheduling import deadlines
from webapp import idempotency, work
from webapp.document import operation
from webapp.events import to_wire as events_to_wire
from webapp.idempotency import Idempotency, Once
from webapp.requests import caller, current_context, listed, parse_body, query
from webapp.wire import jobs as wire
from webapp.wire.batches import PlanState
from webapp.wire.events import EventPage, ListEvents
from webapp.wire.fields import Idempotent, StopWhen
from webapp.wire.items import ItemDetail, ItemObject, ItemPage, ItemReply, ListItems
from webapp.wire.work import ListResults
from webapp.work import Related

routes = Blueprint("jobs", __name__)


def to_wire(records: Sequence[Job]) -> list[wire.JobObject]:
    """Return jobs as they cross the wire. What belongs to them is read in one query for all."""
    context = current_context()
    ids = [job.id for job in records]
    running = [job.id for job in records if job.status not in TERMINAL]
    forecasts = deadlines.read(context, running)
    with context.database.read() as session:
        related = work.related(session, JOBS, ids, forecasts)
        stages = job_records.stage_batches(session, ids)
        children = job_records.children(session, ids)
        usage = job_records.usage(session, ids)
        held = holds.of_batches(session, [batch.id for job_id in running for _, batch in stages[job_id] if batch])
    return [
        _object(
            job,
            related[job.id],
            stages=stages[job.id],
            children=children[job.id],
            usage=usage[job.id],
            waits=any(batch.id in held for _, batch in stages[job.id] if batch),
        )
        for job in records
    ]


_EXTENSION = (
    *("attempts", "options", "seed", "input_sha256", "items_sha256", "recipe_sha256", "config_sha256", "work_sha256"),
    *("admitted", "waiting_for_verdict", "restarted", "reused", "amendments", "counters", "metrics", "report"),
    *("depends_on", "answers_from", "parent_id", "child_key", "variant"),
)


def _object(
    job: Job,
    related: Related,
    *,
    stages: Sequence[tuple[JobStage, Batch | None]] = (),
    children: Sequence[str] = (),
    usage: Tokens = NO_TOKENS,
    waits: bool = False,
) -> wire.JobObject:
    """Return the job object, by default of a new job. `waits`: a model is on hold."""
    held = work.obstacle(job)
    expected = kind_of_job(current_context(), job).expected(current_context(), job) if stages else {}
    deaths = [batch.engine_deaths for _, batch in stages if batch is not None]
    return wire.JobObject(
        **work.fields(job, wire.JobObject),
        request_counts=wire.ItemCounts(
            **{name: getattr(job, name) for name in ("total", "completed", "failed", "stuck")},
            expired=job.expired_items,
            cancelled=job.cancelled_items,
        ),
        usage=work.token_usage(*usage),
        batchyard=wire.JobExtension(
            **{name: getattr(job, name) for name in _EXTENSION},
            **{flaw: sum(getattr(batch, flaw) for _, batch in stages if batch is not None) for flaw in FLAWS},
            **work.extension_fields(job, related, held=waits or bool(held), deaths=deaths),
            held=held,
            stages=[_stage(stage, batch, expected.get(stage.number)) for stage, batch in stages],
            plan=None if job.sample_rows is None else PlanState(rows=job.sample_rows, sampled=_is_sampled(job)),
            stop_when=None if job.stop_when is None else StopWhen.model_validate(job.stop_when),
            children=list(children),
            warnings=warnings_to_wire(creation.job_warnings(current_context(), job)),
        ),
    )


def _is_sampled(job: Job) -> bool:
    """Return whether all items of the sample have ended; a job with no more items than that is the sample."""
    if job.sampling:
        return job.paused_by == PLAN
    return job.total > 0 and (job.total > (job.sample_rows or 0) or not job.unended)


def _stage(stage: JobStage, batch: Batch | None, expected: int | None) -> wire.StageObject:
    if batch is not None and not batch.open:  # it gets no more requests
        expected = batch.total
    return wire.StageObject(
        name=stage.name,
        batch_id=stage.batch_id,
        status=None if batch is None else batch.status,
        issued=0 if batch is None else batch.total,
        answered=0 if batch is None else batch.completed + batch.failed,
        failed=0 if batch is None else batch.failed,
        expected=expected,
    )


def outlook_to_wire(outlook: JobOutlook) -> wire.DryRun:
    estimate, left = outlook.estimate, outlook.due_at - time.time()
    earliest, latest = (
        end if estimate.seconds is None else estimate.seconds for end in (estimate.earliest, estimate.latest)
    )
    is_late, is_in_time = earliest is not None and earliest > left, latest is not None and latest <= left
    values = {
        **{name: getattr(outlook, name) for name in ("due_at", "config_sha256", "work_sha256", "same_as")},
        **{name: getattr(estimate, name) for name in ("items", "stages", "requests", "cells")},
        "eta_seconds": estimate.seconds,
        "eta_earliest_seconds": estimate.earliest,
        "eta_latest_seconds": estimate.latest,
        "on_time": False if is_late else True if is_in_time else None,
        "cost": None if estimate.parts is None else work.cost_of(estimate.parts),
        "errors": {"data": estimate.errors} if estimate.errors else None,
        "warnings": warnings_to_wire(outlook.warnings),
    }
    return wire.DryRun.model_validate(values, from_attributes=True)


def warnings_to_wire(warnings: Sequence[tuple[str, str]]) -> list[wire.WarningObject]:
    return [wire.WarningObject(code=code, message=message) for code, message in warnings]


@routes.post("/v1/jobs")
@operation(wire.CreatedJob, query=wire.CreateQuery, json=wire.CreateJob, headers=Idempotent, refusals=(403, 409, 413))
def create() -> wire.JobObject | wire.DryRun:
    """Make a job of a recipe and an input. With `dry_run` nothing is made, and the answer says what it would be.

    With an Idempotency-Key, the same body again answers with the job that was made the first time.
    """
    owner, context = caller(), current_context()
    params = query(wire.CreateQuery)
    body = parse_body(wire.CreateJob, bulk=True)
    request = replace(
        request_of(body, _source(body)),
        depends_on=[dependency.model_dump() for dependency in body.depends_on],
        answers_from=body.answers_from,
        sample_rows=None if body.plan is None else body.plan.rows,
        stop_when=StopWhen.given(body.stop_when),
    )
    if params.dry_run:
        return outlook_to_wire(creation.dry_run(context, owner.project_id, request))
    created = create_once(idempotency.of_request(body), lambda: creation.draft(context, owner.project_id, request))
    if created.draft is None:
        return to_wire([created.record])[0]
    return _object(created.record, Related())  # nothing is read: the answer cannot fail after the commit


def create_once(key: Idempotency, draft: Callable[[], JobDraft]) -> Once[Job, JobDraft]:
    """Create and announce a job, or return that of an earlier request with this key. Raises ConflictError."""
    return idempotency.once(key, JOBS, draft, creation.submit, creation.send)


def request_of(body: wire.JobOptions, source: JobSource) -> JobRequest:
    names = ("recipe", "completion_window", "options", "seed", "name", "metadata", "post_process", "callback_url")
    expires_after = body.output_expires_after.seconds if body.output_expires_after else None
    values: dict[str, Any] = {name: getattr(body, name) for name in names}
    return JobRequest(input=source, output_expires_after=expires_after, admin=caller().admin, **values)


def _source(body: wire.CreateJob) -> JobSource:
    file_id, source = body.input_file_id, body.input
    if file_id is not None and source is None:
        return file_id
    if source is None or file_id is not None:
        raise RequestError(
            "Send the items either as 'input_file_id' or as 'input'.",
            code="missing_required_parameter" if file_id is None else "invalid_value",
            param="input_file_id",
        )
    if source.artifact is not None:
        owner_id = source.artifact.job_id or source.artifact.batch_id or ""
        return ArtifactName(owner_id, source.artifact.name)
    return source.items or [{"prompt": prompt} for prompt in source.prompts or ()]


@routes.get("/v1/jobs")
@operation(wire.JobPage, query=wire.ListJobs)
def list_() -> wire.JobPage:
    """List the project's jobs, newest first."""
    records, has_more = listed(lifecycle.page, wire.ListJobs, caller().project_id)
    return wire.JobPage.of(to_wire(records), has_more=has_more)


def get_job(job_id: str) -> Job:
    return work.get(JOBS, job_id)


@routes.get("/v1/jobs/<job_id>")
@operation(wire.JobObject, refusals=(404,))
def retrieve(job_id: str) -> wire.JobObject:
    """Look at a job."""
    return to_wire([get_job(job_id)])[0]


@routes.get("/v1/jobs/<job_id>/plan")
@operation(wire.JobPlanReport, refusals=(404, 409))
def plan(job_id: str) -> wire.JobPlanReport:
    """Read the forecast for all items of a job, from the sample of its plan, until the job is resumed."""
    job = get_job(job_id)
    if not job.sampling or job.status in TERMINAL:
        why = "was created without a plan" if job.sample_rows is None else "is not paused by its plan"
        raise ConflictError(f"Job '{job_id}' {why}.", param="job_id")
    return wire.JobPlanReport(job_id=job_id, sampled=job.paused_by == PLAN, **sample.report(current_context(), job))


@routes.post("/v1/jobs/<job_id>/cancel")
@operation(wire.JobObject, refusals=(404, 409))
def cancel(job_id: str) -> wire.JobObject:
    """Cancel a job: items that have ended are kept, the others do not go on."""
    return to_wire([work.control(JOBS, job_id, "cancel")])[0]


@routes.delete("/v1/jobs/<job_id>")
@operation(wire.JobDeleted, refusals=(404, 409))
def delete(job_id: str) -> wire.JobDeleted:
    """Delete a job that has ended, with its batches, the jobs that it has started, its files and its cached answers.

    Its input file goes too, unless another batch, job or schedule needs it. What it has cost stays.
    """
    erasure.delete(current_context(), caller(), JOBS, job_id)
    return wire.JobDeleted(id=job_id)


@routes.post("/v1/jobs/<job_id>/pause")
@operation(wire.JobObject, refusals=(404, 409))
def pause(job_id: str) -> wire.JobObject:
    """Pause a job: requests in the engines are answered, and no others are sent. Its window goes on."""
    return to_wire([work.control(JOBS, job_id, "pause")])[0]


@routes.post("/v1/jobs/<job_id>/resume")
@operation(wire.JobObject, refusals=(403, 404, 409))
def resume(job_id: str) -> wire.JobObject:
    """Let a paused job go on where it is."""
    return to_wire([work.control(JOBS, job_id, "resume")])[0]


@routes.post("/v1/jobs/<job_id>/rescore")
@operation(wire.CreatedJob, json=wire.Rescore, headers=Idempotent, refusals=(403, 404, 409, 413))
def rescore(job_id: str) -> wire.JobObject:
    """Judge the answers of an ended job anew, as a new job with other options that only judge. No engine is asked."""
    owner, context = caller(), current_context()
    body = parse_body(wire.Rescore, bulk=True)
    created = create_once(
        idempotency.of_request(body, job_id),
        lambda: again.rescore(context, owner.project_id, job_id, body.options),
    )
    return to_wire([created.record])[0]


@routes.post("/v1/jobs/<job_id>/retry")
@operation(wire.CreatedJob, json=wire.RetryJob, body_optional=True, headers=Idempotent, refusals=(403, 404, 409, 413))
def retry(job_id: str) -> wire.JobObject:
    """Make a job of the items that did not complete in one that has ended, which stays as it is.

    All requests of these items are asked again. The body may be left out.
    """
    owner, context = caller(), current_context()
    body = parse_body(wire.RetryJob, bulk=True, optional=True)
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
    return Response(stream.lines(current_context(), job, params.after, params.limit), mimetype="application/jsonl")


@routes.get("/v1/jobs/<job_id>/item_events")
@operation(None, media_type="application/jsonl", query=ListResults, refusals=(404, 409))
def item_events(job_id: str) -> Response:
    """Read what the recipe tells of each item that has ended, in the order in which they did.

    Recipes that tell nothing of their own have `item.completed`, `item.failed` and so on. `after` counts items: it is
    the `sequence` of the last line that the caller has.
    """
    job, context = get_job(job_id), current_context()
    params = query(ListResults)
    lines = stream.event_lines(context, catalogue_of(context).recipe(job.recipe), job, params.after, params.limit)
    return Response(lines, mimetype="application/jsonl")


@routes.get("/v1/jobs/<job_id>/items")
@operation(ItemPage, query=ListItems, refusals=(404, 409))
def items(job_id: str) -> ItemPage:
    """List the items of a job by number. There are none before it was validated."""
    job = get_job(job_id)
    params = query(ListItems).model_dump()
    page, has_more = listing.page(current_context(), job, **params)
    return ItemPage(
        data=[ItemObject.model_validate(item, from_attributes=True) for item in page],
        first_id=str(page[0].number) if page else None,
        last_id=str(page[-1].number) if page else None,
        has_more=has_more,
    )


@routes.get("/v1/jobs/<job_id>/items/<int:number>")
@operation(ItemDetail, refusals=(404, 409))
def item(job_id: str, number: int) -> ItemDetail:
    """Look at an item: its row, all that it has asked with the answers, and its result."""
    return _detail(job_id, number)


def _detail(job_id: str, number: int) -> ItemDetail:
    details = detail.item(current_context(), get_job(job_id), number)
    return ItemDetail.model_validate(details, from_attributes=True)


@routes.post("/v1/jobs/<job_id>/items/<int:number>")
@operation(ItemDetail, json=ItemReply, refusals=(404, 409))
def reply(job_id: str, number: int) -> ItemDetail:
    """Reply to an item: give the verdict that it waits for, put it back, or complete it with a text.

    Verdicts, and items that are put back, take effect within a second or two.
    """
    post(job_id, number, parse_body(ItemReply))
    return _detail(job_id, number)


def post(job_id: str, number: int, body: ItemReply) -> None:
    owner, context = caller(), current_context()
    item = (context, owner, job_id, number)
    if body.verdict is not None:
        item_replies.give_verdict(*item, body.verdict.model_dump(exclude={"turn"}), body.verdict.turn)
    elif body.requeue is not None:
        item_replies.put_back(*item, body.requeue.hint)
    else:
        item_replies.resolve(*item, body.text or "", body.by)


@routes.get("/v1/jobs/<job_id>/events")
@operation(EventPage, query=ListEvents, refusals=(404,))
def list_events(job_id: str) -> EventPage:
    """List what has happened to a job, oldest first."""
    return events_to_wire(*listed(events.page, ListEvents, get_job(job_id)))
