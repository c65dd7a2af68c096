"""Open batches: requests that are added while others run, and the end of this."""

from flask import Blueprint

from store import batches
from tasks import messages
from tasks.intake import appending, budgets
from webapp import idempotency, limits
from webapp.batches import to_wire
from webapp.document import operation, takes
from webapp.requests import MAX_BULK_BYTES, after_response, current_context, reading, whole_body, writing
from webapp.wire.batches import AppendedRequests, BatchObject
from webapp.wire.fields import Idempotent

routes = Blueprint("open_batches", __name__)


@routes.post("/v1/batches/<batch_id>/requests")
@operation(AppendedRequests, headers=Idempotent, refusals=(403, 404, 409, 413))
@takes("application/jsonl")
def add_requests(batch_id: str) -> AppendedRequests:
    """Add requests to an open batch: the body has them as the lines of a file has. All are added, or none.

    With an Idempotency-Key the same body again is added once, and answered as the first time.
    """
    context = current_context()
    with reading() as (session, owner):
        if batches.get(session, owner.project_id, batch_id).created_by != owner.key_id:
            why = "what is added to this batch counts for the key that created it; create an open batch with this key"
            budgets.refuse_capped(session, owner, why)
    key = idempotency.key_of_request()
    message = f"The body is larger than {MAX_BULK_BYTES} bytes; send its lines in several requests."
    lines = whole_body(MAX_BULK_BYTES, message)
    limits.count_bytes(context, owner.key_id, len(lines))
    append = appending.run(context, owner.project_id, batch_id, lines, key)
    after_response(lambda: messages.advance(batch_id))
    return AppendedRequests.model_validate(append)


@routes.post("/v1/batches/<batch_id>/close")
@operation(BatchObject, refusals=(404, 409))
def close(batch_id: str) -> BatchObject:
    """Close an open batch: it gets no more requests, and ends when all are answered. Any other stays as it is."""
    with writing() as (session, owner):
        batch = batches.close(session, owner, batch_id)
    after_response(lambda: messages.advance(batch_id))
    return to_wire([batch])[0]
