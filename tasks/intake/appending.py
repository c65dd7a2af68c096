"""Appending: requests that a client adds to an open batch are validated, planned and added, all or none."""

import hashlib
import io

from batchyard.errors import RequestError, TooLargeError, UnavailableError
from batchyard.request_lines import warnings
from batchyard.wording import quoted
from inference.engines import registry
from store import batches, files
from store.formats import plan
from store.formats.plan import PlanWriter
from store.intake import appends
from store.intake.appends import NewRequests, RepeatedIds
from store.records import Append, Batch
from store.work.lifecycle import refuse_stage
from tasks.context import AppContext
from tasks.execution import progress, tally
from tasks.intake import submission
from tasks.intake.validation import ValidationReport, Validator, segment_sizes, without_price

ATTEMPTS = 40
"""So often requests are planned anew because others were added meanwhile; of all that try, one succeeds each time."""
_DIGEST_BYTES = 16


def run(context: AppContext, project_id: str, batch_id: str, lines: bytes, key: str | None) -> Append:
    """Add JSON lines to an open batch. The same ones again with the same idempotency key are added once.

    Raises NotFoundError; ConflictError: the batch is not open, or the key was used for other lines; RequestError: a
    line is no valid request, or its custom_id is not new; TooLargeError: the batch would be larger than a file may be;
    RateLimitError, PermissionDeniedError: as `submission.admit`; UnavailableError. Then no line is added.
    """
    sha256 = hashlib.sha256(lines).hexdigest()
    for _ in range(ATTEMPTS):
        with context.database.read() as session:
            batch = batches.get(session, project_id, batch_id)
            refuse_stage(batch, "wait for")
            append = appends.repeated(session, batch_id, key, sha256)
            if append is not None:
                return append
            appends.refuse_closed(batch)
            size, limit = appends.size(session, batch_id) + len(lines), context.settings.max_file_bytes
        if size > limit:
            message = f"With these the batch would have {size} bytes of requests, and {limit} are the most; close it, "
            message += "and open another one, or raise BATCHYARD_MAX_FILE_BYTES."
            raise TooLargeError(message, code="file_too_large")
        new, names = _plan(context, batch, lines, Append(batch_id=batch_id, idempotency_key=key, sha256=sha256))
        try:
            with context.database.write() as session:
                batch = appends.locked(session, project_id, batch_id)  # before the project, as a chunk of answers does
                submission.admit(context, session, project_id, len(lines), batch.created_by)
                files.check_room(session, project_id, len(lines))
                append = appends.add(session, batch, new)
        except RepeatedIds as repeated:
            name = quoted(min(names[digest] for digest in repeated.digests))
            message = f"The custom_id {name} is in the batch already; it must be unique. Nothing was added."
            raise RequestError(message, code="duplicate_custom_id", param="custom_id") from None
        if append is not None:
            for place in new.refused:
                tally.count(context, new.segments[place].model, {"failed": new.segments[place].requests})
            progress.publish(context, batch_id)
            return append
    raise UnavailableError(f"Others add requests to batch '{batch_id}' all the time; send them again.")


def _plan(context: AppContext, batch: Batch, lines: bytes, append: Append) -> tuple[NewRequests, dict[bytes, str]]:
    """Validate lines, write their plan, and complete their record. Return both, and the custom_ids by digest.

    Raises RequestError.
    """
    report, settings = ValidationReport(), context.settings
    common = (context.models, batch.endpoint, settings, batch.post_process)
    validator = Validator(*common, lines_before=batch.total, guard=batch.guard)
    with context.artifacts.create() as target:
        writer = PlanWriter(target, segment_sizes(context), context.artifacts)
        if not validator.run(io.BytesIO(lines), writer, report):
            writer.discard()
            first = report.errors[0]
            place = "" if first["line"] is None else f"Line {first['line']}: "
            others = f" Other errors: {report.count - 1}." if report.count > 1 else ""
            message = f"{place}{first['message']}{others} Nothing was added."
            raise RequestError(message, code=first["code"], param=first["param"])
        writer.close()
    for row_group, segment in enumerate(writer.segments):
        segment.plan_sha256, segment.row_group = target.sha256, row_group
    row_groups = [(target.sha256, row_group) for row_group in range(len(writer.segments))]
    names = {
        hashlib.blake2b(name.encode(), digest_size=_DIGEST_BYTES).digest(): name
        for table in plan.requests(context.artifacts, row_groups, ["custom_id"])
        for name in table["custom_id"].to_pylist()
    }
    total = batch.total + len(names)
    if total > settings.max_requests:
        message = f"With these the batch would have {total} requests, and {settings.max_requests} are the most; close "
        message += "it, and open another one, or raise BATCHYARD_MAX_REQUESTS."
        raise RequestError(message, code="too_many_tasks")
    specs = {segment.model: context.models[segment.model] for segment in writer.segments}
    known = batch.warnings or []
    params = {entry["param"] for entry in known}
    found = [*validator.warnings.entries, *without_price(batch.stop_when, specs)]
    new_warnings = [entry for entry in found if entry["param"] not in params]
    append.bytes, append.requests, append.first_line = len(lines), len(names), batch.total + 1
    new = NewRequests(
        append=append,
        segments=writer.segments,
        models={name: spec.model_dump(mode="json") for name, spec in specs.items()},
        refused=writer.refused,
        warnings=[*known, *new_warnings][: warnings.MOST],
        simulated=any(registry.capabilities(spec.engine).simulated for spec in specs.values()),
        digests=list(names),
    )
    return new, names
