"""/v1/batches: create, list, retrieve, cancel, delete, retry, and read answers while the batch runs."""

import functools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from types import MappingProxyType
from typing import Any, cast

from flask import Blueprint, Response
from pydantic import BaseModel

from batchyard import latency
from batchyard.errors import ConflictError, RequestError
from batchyard.statuses import PRIORITIES, TERMINAL, priority_name
from batchyard.wording import FLAWS
from results import stream
from store import batches, holds, segments
from store.artifacts import ArtifactWriter
from store.batches import BATCHES
from store.records import Batch, File, Hold
from tasks import messages
from tasks.execution import progress
from tasks.finishing import erasure
from tasks.intake import changes, imports, retry_input, sampling, submission, verify_input
from tasks.intake.envelopes import Envelopes
from tasks.intake.retry_input import Corrections
from tasks.intake.submission import Draft, NewInput
from tasks.live import traffic
from tasks.scheduling import deadlines, states
from tasks.scheduling.states import BatchActivity
from tasks.steps.verify import SampleOptions, VerifyOptions
from webapp import idempotency, work
from webapp.document import operation
from webapp.files import get_file
from webapp.idempotency import Idempotency
from webapp.requests import caller, current_context, listed, parse_body, query, read_inline, validated
from webapp.wire import batches as wire
from webapp.wire.fields import Idempotent, OnInvalid, StopWhen
from webapp.wire.work import BatchError
from webapp.work import Related

routes = Blueprint("batches", __name__)


def to_wire(records: Sequence[Batch]) -> list[wire.BatchObject]:
    """Return batches as OpenAI's batch objects. Artifacts and live rates are read in one query for all."""
    context = current_context()
    ids = [batch.id for batch in records]
    running = [batch.id for batch in records if batch.status in ("validating", "in_progress", "finalizing")]
    rates, forecasts = progress.read(context, running), deadlines.read(context, running)
    activities, shares = states.read(context, running), traffic.time_shares(context) if running else {}
    with context.database.read() as session:
        related = work.related(session, BATCHES, ids, forecasts)
        held = holds.of_batches(session, running) if running else {}
    return [
        _object(
            batch,
            related[batch.id],
            rates=rates.get(batch.id, {}),
            hold=held.get(batch.id),
            in_queue=activities.get(batch.id),
            live_shares=shares,
        )
        for batch in records
    ]


def _object(
    batch: Batch,
    related: Related,
    *,
    rates: Mapping[str, Any] = MappingProxyType({}),
    hold: Hold | None = None,
    in_queue: BatchActivity | None = None,
    live_shares: Mapping[str, float] = MappingProxyType({}),
) -> wire.BatchObject:
    """Return OpenAI's batch object; the defaults are those of a new batch."""
    held = _held(batch, hold)
    reason, paused = held.reason if held else None, batch.paused_at is not None
    answered = batch.completed + batch.failed
    idle = batch.open and answered == batch.total
    if held is not None and held.model is None:
        in_queue = None  # what has a place there does not move, either
    state = states.state(batch.status, answered, reason, in_queue, paused=paused, idle=idle)
    if state is not None and state.name == "starting_engine":
        rates = {}  # of the engine before
    return wire.BatchObject(
        **work.fields(batch, wire.BatchObject),
        request_counts=wire.RequestCounts(total=batch.total, completed=batch.completed, failed=batch.failed),
        usage=work.token_usage(batch.input_tokens, batch.cached_tokens, batch.output_tokens, batch.reasoning_tokens),
        batchyard=wire.Extension(
            **work.extension_fields(batch, related, held=held is not None, deaths=[batch.engine_deaths]),
            **{name: getattr(batch, name) for name in _COPIED},
            **{name: rates.get(name) for name in ("rows_per_second", "tokens_per_second")},
            name=batch.stage or batch.name or batch.input_file_id or batch.id,
            shared=wire.Shared(**{name: getattr(batch, f"shared_{name}") for name in wire.Shared.model_fields}),
            latency=latency.summary(batch.latencies),
            state=None if state is None else wire.State.model_validate(asdict(state)),
            held=held,
            live_shares={}
            if batch.status in TERMINAL
            else {model: share for model, share in live_shares.items() if model in batch.models},
            priority=priority_name(batch.priority),
            input_sha256=batch.input_sha256 or None,
            on_invalid=cast(OnInvalid, batch.on_invalid),
            warnings=[BatchError.model_validate(warning) for warning in batch.warnings or ()],
            verification=None if batch.verification is None else wire.Verification.model_validate(batch.verification),
            stop_when=None if batch.stop_when is None else StopWhen.model_validate(batch.stop_when),
            plan=None
            if batch.sample_rows is None
            else wire.PlanState(rows=batch.sample_rows, sampled=_is_sampled(batch)),
        ),
    )


def _is_sampled(batch: Batch) -> bool:
    """True if all of a batch's sample is answered; a file with no more requests than that is the sample."""
    if batch.sample_segments is None:
        return batch.planned and batch.completed + batch.failed == batch.total
    return not batch.sampling


_COPIED = ("expired", "cancelled", *FLAWS, "open", "guard", "job_id", "stage")


def _held(batch: Batch, hold: Hold | None) -> wire.Held | None:
    if hold is not None:
        retry_at = None if hold.reason == holds.UNSERVED else math.ceil(hold.retry_at)
        return wire.Held(
            reason=hold.reason, model=hold.model, since=hold.since, attempts=hold.attempts, retry_at=retry_at
        )
    if (reason := work.obstacle(batch)) is None:
        return None
    retry_at = math.ceil(batch.lease_expires_at or 0)
    return wire.Held(reason=reason, model=None, since=None, attempts=batch.attempts, retry_at=retry_at)


@routes.post("/v1/batches")
@operation(wire.BatchObject, json=wire.CreateBatch, headers=Idempotent, refusals=(403, 409, 413))
def create() -> wire.BatchObject:
    """Make a batch of an uploaded file, of objects in a bucket, of requests in the body, or an open one.

    An open batch gets its requests later.

    One of a file that does not exist is made too, and fails in validation. With an Idempotency-Key, the same body again
    answers with the batch that was made the first time.
    """
    context, envelopes = current_context(), Envelopes()
    rest, requests = read_inline(envelopes.line)
    body: wire.BatchOfFile | wire.BatchOfUrl | wire.BatchOfRequests | wire.OpenBatch
    source: Callable[[], File | NewInput]
    if requests is None and rest.get("open") is True:
        body, source = validated(wire.OpenBatch, rest), submission.no_file
    elif requests is None and rest.get("input_url") is not None:
        body = of_url = validated(wire.BatchOfUrl, rest)
        source = functools.partial(_imported, of_url.input_url)
    elif requests is None:
        body = of_file = validated(wire.BatchOfFile, rest)
        source = functools.partial(_input_file, of_file.input_file_id)
    else:
        body = validated(wire.BatchOfRequests, rest)
        source = functools.partial(_stored, envelopes, requests, body.endpoint)
    submission.check_window(context.settings, body.completion_window)
    submission.check_endpoint(context.models, body.endpoint)

    def draft() -> Draft:
        return submission.draft(context, record_of(body), source())

    content = () if requests is None else (requests.sha256,)
    return _created(*create_once(idempotency.of_request(body, *content), draft))


def _stored(envelopes: Envelopes, requests: ArtifactWriter, endpoint: str) -> NewInput:
    return NewInput("requests.jsonl", envelopes.stored(current_context().artifacts, requests, endpoint))


def record_of(options: BaseModel, **others: Any) -> Batch:
    given = dict(options)
    same = ("endpoint", "completion_window", "post_process", "on_invalid", "open", "callback_url", "guard")
    expires_after, plan = given.get("output_expires_after"), given.get("plan")
    return Batch(
        project_id=caller().project_id,
        request_metadata=given["metadata"],
        output_expires_after=None if expires_after is None else expires_after.seconds,
        priority=PRIORITIES[given["priority"]],
        sample_rows=None if plan is None else plan.rows,
        stop_when=StopWhen.given(given.get("stop_when")),
        **{name: given[name] for name in same if name in given},
        **others,
    )


def _input_file(file_id: str) -> File:
    with current_context().database.read() as session:
        return submission.input_file_or_none(session, caller().project_id, file_id)


def _imported(url: str) -> NewInput:
    try:
        return imports.joined(current_context(), caller().project_id, url)
    except RequestError as error:
        error.param = "input_url"
        raise


def create_once(key: Idempotency, draft: Callable[[], Draft]) -> tuple[Batch, Related | None]:
    """Create and announce a batch, and return it with its forecast; an earlier one with None. Raises ConflictError."""
    once = idempotency.once(key, BATCHES, draft, submission.submit, _announce)
    if once.draft is None:
        return once.record, None
    return once.record, Related(submission.estimate_completion(current_context(), once.record, once.draft.outlook))


def _created(batch: Batch, related: Related | None) -> wire.BatchObject:
    """Return a batch that was created. Of a new one nothing is read: the answer cannot fail after the commit."""
    return to_wire([batch])[0] if related is None else _object(batch, related)


def _announce(batch: Batch) -> None:
    if not batch.open:  # what it gets is validated as it comes
        messages.validate(batch.id, batch.name)


@routes.get("/v1/batches")
@operation(wire.BatchPage, query=wire.ListBatches)
def list_() -> wire.BatchPage:
    """List the project's batches, newest first."""
    records, has_more = listed(batches.page, wire.ListBatches, caller().project_id)
    return wire.BatchPage.of(to_wire(records), has_more=has_more)


def get_batch(batch_id: str) -> Batch:
    return work.get(BATCHES, batch_id)


@routes.get("/v1/batches/<batch_id>")
@operation(wire.BatchObject, refusals=(404,))
def retrieve(batch_id: str) -> wire.BatchObject:
    """Look at a batch."""
    return to_wire([get_batch(batch_id)])[0]


@routes.post("/v1/batches/<batch_id>/cancel")
@operation(wire.BatchObject, refusals=(404, 409))
def cancel(batch_id: str) -> wire.BatchObject:
    """Cancel a batch: what was answered is kept, the rest is not run."""
    return to_wire([work.control(BATCHES, batch_id, "cancel")])[0]


@routes.delete("/v1/batches/<batch_id>")
@operation(wire.BatchDeleted, refusals=(404, 409))
def delete(batch_id: str) -> wire.BatchDeleted:
    """Delete a batch that has ended, with its files, its answers in the result cache, its events and their deliveries.

    Its input file goes too, unless another batch, job or schedule needs it. What it has cost stays.
    """
    erasure.delete(current_context(), caller(), BATCHES, batch_id)
    return wire.BatchDeleted(id=batch_id)


@routes.post("/v1/batches/<batch_id>/pause")
@operation(wire.BatchObject, refusals=(404, 409))
def pause(batch_id: str) -> wire.BatchObject:
    """Pause a batch: requests in the engines are answered, and no others are sent. Its window goes on.

    Its status stays `validating` or `in_progress`; `batchyard.paused_at` says that it is paused.
    """
    return to_wire([work.control(BATCHES, batch_id, "pause")])[0]


@routes.post("/v1/batches/<batch_id>/resume")
@operation(wire.BatchObject, refusals=(403, 404, 409))
def resume(batch_id: str) -> wire.BatchObject:
    """Let a paused batch go on where it is."""
    return to_wire([work.control(BATCHES, batch_id, "resume")])[0]


@routes.post("/v1/batches/<batch_id>")
@operation(wire.BatchObject, json=wire.ChangeBatch, refusals=(404, 409, 413))
def change(batch_id: str) -> wire.BatchObject:
    """Change a batch's deadline, priority, name or description. The last two can be changed after its end, too."""
    return to_wire([apply(batch_id, parse_body(wire.ChangeBatch))])[0]


def apply(batch_id: str, body: wire.ChangeBatch) -> Batch:
    """Set what the body names of a batch. Raises NotFoundError, ConflictError, RequestError."""
    window, priority, metadata = body.completion_window, body.priority, body.metadata()
    return changes.change(
        current_context(), caller(), batch_id, completion_window=window, priority=priority, metadata=metadata
    )


@routes.get("/v1/batches/<batch_id>/results")
@operation(None, media_type="application/jsonl", query=wire.ListBatchResults, refusals=(404, 409))
def results(batch_id: str) -> Response:
    """Read the answers there are so far, in the order in which they were given.

    Lines are those of the output and error files. `after` is how many of them the caller has: the same number gives
    the same lines again, so a reader goes on where it was cut off. Answers can be read this way for a while after
    the batch has ended; then its files have them.
    """
    batch = get_batch(batch_id)
    params = query(wire.ListBatchResults)
    lines = stream.lines(current_context(), batch, params.after, params.limit, with_seconds=params.seconds)
    return Response(lines, mimetype="application/jsonl")


@routes.get("/v1/batches/<batch_id>/plan")
@operation(wire.PlanReport, refusals=(404, 409))
def plan(batch_id: str) -> wire.PlanReport:
    """Read the forecast for all requests of a batch, from the sample of its plan."""
    batch, context = get_batch(batch_id), current_context()
    if batch.sample_rows is None or batch.status in TERMINAL:
        why = "has ended, and its answers are in its files" if batch.sample_rows else "was created without a plan"
        raise ConflictError(f"Batch '{batch_id}' {why}.", param="batch_id")
    report = sampling.report(context, batch)
    return wire.PlanReport(batch_id=batch_id, sampled=_is_sampled(batch), **report)


@routes.get("/v1/batches/<batch_id>/segments")
@operation(wire.SegmentPage, query=wire.ListSegments, refusals=(404,))
def list_segments(batch_id: str) -> wire.SegmentPage:
    """List the segments of a batch by number: how far each is, and why one was tried again."""
    records, has_more = listed(segments.page, wire.ListSegments, get_batch(batch_id).id)
    data = [wire.SegmentObject.model_validate(record) for record in records]
    last = data[-1].number if data else None
    return wire.SegmentPage(data=data, last_id=last, has_more=has_more)


@routes.post("/v1/batches/<batch_id>/retry")
@operation(
    wire.BatchObject, json=wire.RetryBatch, body_optional=True, headers=Idempotent, refusals=(403, 404, 409, 413)
)
def retry(batch_id: str) -> wire.BatchObject:
    """Make a batch of the requests that failed, expired or were cancelled in one that has ended, which stays as it is.

    The body may be left out. With corrected lines those are sent in place of the ones that were wrong.
    """
    body, context = parse_body(wire.RetryBatch, optional=True), current_context()

    def draft() -> Draft:
        original = get_batch(batch_id)
        window = body.completion_window or original.completion_window
        submission.check_window(context.settings, window)
        fixed = None if body.fixed_file_id is None else Corrections(context, get_file(body.fixed_file_id))
        unanswered = retry_input.write(context, original, only_passing=body.errors == "passing", fixed=fixed)
        return submission.retry(context, original, unanswered, completion_window=window, metadata=body.metadata)

    return _created(*create_once(idempotency.of_request(body, batch_id), draft))


@routes.post("/v1/batches/<batch_id>/verify")
@operation(
    wire.BatchObject, json=wire.VerifyBatch, body_optional=True, headers=Idempotent, refusals=(403, 404, 409, 413)
)
def verify(batch_id: str) -> wire.BatchObject:
    """Make a batch of a random sample of the requests of one that has ended, in another order.

    Its step compares the answers. What it finds is the `verification` of the first batch.
    """
    body = parse_body(wire.VerifyBatch, optional=True)
    return _created(*verify_once(idempotency.of_request(body, batch_id, "verify"), batch_id, body))


def verify_once(key: Idempotency, batch_id: str, body: wire.VerifyBatch) -> tuple[Batch, Related | None]:
    """Create the batch that verifies another one, see `create_once`. Raises NotFoundError, ConflictError."""

    def draft() -> Draft:
        original, context = get_batch(batch_id), current_context()
        window = body.completion_window or original.completion_window
        submission.check_window(context.settings, window)
        sample = body.model_dump(include=set(SampleOptions.model_fields))
        options = VerifyOptions(step="verify", batch_id=batch_id, **sample)
        return verify_input.draft(
            context, original, options, completion_window=window, model=body.model, logprobs=body.logprobs
        )

    return create_once(key, draft)
