"""/v1/webhook_endpoints: the webhook endpoints of a project, and the deliveries to each."""

import math

from flask import Blueprint

from store import events, webhooks
from store.records import Delivery, Event, Webhook
from tasks.webhooks import outbound, samples
from webapp.document import operation
from webapp.requests import caller, current_context, listed, parse_body, reading, writing
from webapp.wire import webhooks as wire
from webapp.wire.lists import ListQuery

routes = Blueprint("webhooks", __name__)


def _fields(webhook: Webhook) -> dict[str, object]:
    same = ("id", "name", "url", "event_types", "created_at", "updated_at")
    hint, enabled = f"whsec_...{webhook.secret[-4:]}", {"enabled": webhook.enabled}
    return {name: getattr(webhook, name) for name in same} | {"signing_secret_hint": hint, "batchyard": enabled}


def _object(webhook: Webhook) -> wire.WebhookObject:
    return wire.WebhookObject.model_validate(_fields(webhook))


def _with_secret(webhook: Webhook) -> wire.NewSecret:
    return wire.NewSecret.model_validate(_fields(webhook) | {"signing_secret": webhook.secret})


def _delivery(entry: tuple[Delivery, Event]) -> wire.DeliveryObject:
    delivery, event = entry
    same = ("id", "event_id", "state", "attempts", "status_code", "error", "created_at", "delivered_at")
    fields = {name: getattr(delivery, name) for name in same}
    fields |= {"webhook_endpoint_id": delivery.webhook_id, "event_type": event.type}
    next_attempt_at = math.ceil(delivery.next_attempt_at) if delivery.state == "pending" else None
    return wire.DeliveryObject.model_validate(fields | {"next_attempt_at": next_attempt_at})


def _check(url: str) -> None:
    outbound.check(url, allow_private=current_context().settings.webhooks_allow_private)


@routes.post("/v1/webhook_endpoints")
@operation(wire.NewSecret, json=wire.CreateWebhook, refusals=(413,))
def create() -> wire.NewSecret:
    """Have the project's events sent to a URL, signed with the secret that only this answer shows."""
    return _with_secret(make(parse_body(wire.CreateWebhook)))


def make(body: wire.CreateWebhook) -> Webhook:
    """Create a webhook in the caller's project, and record who did. Raises RequestError."""
    _check(body.url)
    with writing() as (session, owner):
        webhook = webhooks.create(session, owner.project_id, **body.model_dump())
        events.act(session, owner, "webhook.created", webhook.id, name=webhook.name)
        return webhook


@routes.get("/v1/webhook_endpoints")
@operation(wire.WebhookPage, query=ListQuery)
def list_() -> wire.WebhookPage:
    """List the project's webhook endpoints, newest first, without their secrets."""
    records, has_more = listed(webhooks.page, ListQuery, caller().project_id)
    return wire.WebhookPage.of([_object(webhook) for webhook in records], has_more=has_more)


@routes.get("/v1/webhook_endpoints/<webhook_endpoint_id>")
@operation(wire.WebhookObject, refusals=(404,))
def retrieve(webhook_endpoint_id: str) -> wire.WebhookObject:
    """Look at a webhook endpoint."""
    return _object(get_webhook(webhook_endpoint_id))


def get_webhook(webhook_id: str) -> Webhook:
    """Return a webhook of the caller's project. Raises NotFoundError."""
    with reading() as (session, owner):
        return webhooks.get(session, owner.project_id, webhook_id)


@routes.post("/v1/webhook_endpoints/<webhook_endpoint_id>")
@operation(wire.WebhookObject, json=wire.UpdateWebhook, refusals=(404, 413))
def update(webhook_endpoint_id: str) -> wire.WebhookObject:
    """Change a webhook endpoint. While it is disabled no events are added for it, and those that are pending wait."""
    return _object(change(webhook_endpoint_id, parse_body(wire.UpdateWebhook)))


def change(webhook_id: str, body: wire.UpdateWebhook) -> Webhook:
    """Set what the body names of a webhook of the caller's project. Raises NotFoundError, RequestError."""
    if body.url is not None:
        _check(body.url)
    values = body.model_dump(exclude_none=True)
    with writing() as (session, owner):
        webhook = webhooks.change(session, owner.project_id, webhook_id, values)
        events.act(session, owner, "webhook.changed", webhook.id, fields=sorted(values))  # a URL may hold a secret
        return webhook


@routes.delete("/v1/webhook_endpoints/<webhook_endpoint_id>")
@operation(wire.WebhookDeleted, refusals=(404,))
def delete(webhook_endpoint_id: str) -> wire.WebhookDeleted:
    """Delete a webhook endpoint with its deliveries. The events stay with their batches."""
    remove(webhook_endpoint_id)
    return wire.WebhookDeleted(id=webhook_endpoint_id)


def remove(webhook_id: str) -> None:
    """Delete a webhook of the caller's project with its deliveries. Raises NotFoundError."""
    with writing(serial=True) as (session, owner):
        webhooks.remove(session, owner.project_id, webhook_id)
        events.act(session, owner, "webhook.deleted", webhook_id)


@routes.post("/v1/webhook_endpoints/<webhook_endpoint_id>/rotate_secret")
@operation(wire.NewSecret, json=wire.RotateSecret, body_optional=True, refusals=(404, 413))
def rotate_secret(webhook_endpoint_id: str) -> wire.NewSecret:
    """Replace the signing secret: everything from now on is signed with the new one, for a day with both if asked."""
    keep_old = parse_body(wire.RotateSecret, optional=True).keep_old_secret_active_for_24_hours
    return _with_secret(rotate(webhook_endpoint_id, keep_old=keep_old))


def rotate(webhook_id: str, *, keep_old: bool) -> Webhook:
    """Replace the signing secret of a webhook of the caller's project. Raises NotFoundError."""
    with writing() as (session, owner):
        webhook = webhooks.rotate_secret(session, owner.project_id, webhook_id, keep_old=keep_old)
        events.act(session, owner, "webhook.changed", webhook.id, fields=["signing_secret"])
        return webhook


@routes.post("/v1/webhook_endpoints/<webhook_endpoint_id>/test")
@operation(wire.SampleSent, json=wire.SendSample, refusals=(404, 413))
def send_sample(webhook_endpoint_id: str) -> wire.SampleSent:
    """Send a sample event at once, also to a disabled endpoint. One that does not answer is refused."""
    type_ = parse_body(wire.SendSample).event_type
    status = samples.send_sample(current_context(), get_webhook(webhook_endpoint_id), type_)
    return wire.SampleSent(webhook_endpoint_id=webhook_endpoint_id, event_type=type_, status_code=status)


@routes.get("/v1/webhook_event_types")
@operation(wire.EventTypes)
def event_types() -> wire.EventTypes:
    """List the types of events there are."""
    caller()
    return wire.EventTypes(data=list(events.TYPES))


@routes.get("/v1/webhook_endpoints/<webhook_endpoint_id>/deliveries")
@operation(wire.DeliveryPage, query=ListQuery, refusals=(404,))
def deliveries(webhook_endpoint_id: str) -> wire.DeliveryPage:
    """List what was sent to a webhook endpoint and what waits to be, newest first."""
    entries, has_more = listed(webhooks.deliveries, ListQuery, get_webhook(webhook_endpoint_id))
    return wire.DeliveryPage.of([_delivery(entry) for entry in entries], has_more=has_more)


@routes.post("/v1/webhook_endpoints/<webhook_endpoint_id>/deliveries/<delivery_id>/redeliver")
@operation(wire.DeliveryObject, refusals=(404, 409))
def redeliver(webhook_endpoint_id: str, delivery_id: str) -> wire.DeliveryObject:
    """Send a delivery again at once, whatever became of it; one that is being sent stays as it is."""
    return _delivery(resend(webhook_endpoint_id, delivery_id))


def resend(webhook_id: str, delivery_id: str) -> tuple[Delivery, Event]:
    """Make a delivery due now, and return it with its event. Raises NotFoundError, ConflictError."""
    with writing() as (session, owner):
        webhook = webhooks.get(session, owner.project_id, webhook_id)
        return webhooks.redeliver(session, webhook, delivery_id)
