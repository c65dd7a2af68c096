"""/v1/webhook_endpoints: the webhook endpoints of a project, and the deliveries to each."""

from __future__ import annotations

import math
from typing import Annotated, Literal

from flask import Blueprint
from pydantic import BaseModel, ConfigDict, Field

from store import events, webhooks
from store.records import Delivery, Event, Webhook
from tasks.webhooks import outbound, samples
from webapp import wire
from webapp.document import operation
from webapp.requests import caller, current_context, parse_body, query

routes = Blueprint("webhooks", __name__)

Url = Annotated[str, Field(strict=True, min_length=1, max_length=outbound.MAX_URL)]
Types = Annotated[list[events.Type], Field(min_length=1, max_length=32, description="what is sent there")]


class CreateWebhook(BaseModel):
    model_config = ConfigDict(extra="forbid")
    name: wire.Name
    url: Url
    event_types: Types


class UpdateWebhook(BaseModel):
    """What is left out stays as it is."""

    model_config = ConfigDict(extra="forbid")
    name: wire.Name | None = None
    url: Url | None = None
    event_types: Types | None = None
    enabled: Annotated[bool, Field(strict=True)] | None = None


class RotateSecret(BaseModel):
    model_config = ConfigDict(extra="forbid")
    keep_old_secret_active_for_24_hours: bool = Field(False, strict=True)


class SendSample(BaseModel):
    model_config = ConfigDict(extra="forbid")
    event_type: events.Type


class ListWebhooks(BaseModel):
    after: str | None = Field(None, description="the id of the last one of the page before")
    limit: int = Field(20, ge=1, le=100)


class WebhookExtension(BaseModel):
    """What this project says of a webhook endpoint beside OpenAI's fields."""

    enabled: bool


class WebhookObject(BaseModel):
    id: str
    object: Literal["webhook_endpoint"] = "webhook_endpoint"
    name: str
    url: str
    event_types: list[str]
    signing_secret_hint: str = Field(description="how the signing secret ends")
    created_at: int
    updated_at: int = Field(description="when its fields or its secret last became others")
    batchyard: WebhookExtension


class NewSecret(WebhookObject):
    """A webhook endpoint with its signing secret, which is shown when it is made and never again."""

    signing_secret: str


class WebhookDeleted(BaseModel):
    id: str
    object: Literal["webhook_endpoint.deleted"] = "webhook_endpoint.deleted"
    deleted: Literal[True] = True


class SampleSent(BaseModel):
    """A sample event that the endpoint has answered, with whatever status."""

    object: Literal["webhook_endpoint.test"] = "webhook_endpoint.test"
    webhook_endpoint_id: str
    event_type: str
    status_code: int
    success: Literal[True] = True


class EventTypes(BaseModel):
    object: Literal["list"] = "list"
    data: list[str]


class DeliveryObject(BaseModel):
    """One event on its way to one webhook."""

    id: str
    object: Literal["webhook_endpoint.delivery"] = "webhook_endpoint.delivery"
    webhook_endpoint_id: str
    event_id: str = Field(description="sent as `webhook-id` at each attempt")
    event_type: str
    state: Literal["pending", "sending", "delivered", "failed"]
    attempts: int = Field(description="those begun so far")
    status_code: int | None = Field(description="what the receiver last answered")
    error: str | None = Field(description="why the last attempt failed")
    created_at: int
    next_attempt_at: int | None
    delivered_at: int | None


class WebhookPage(wire.Page[WebhookObject]):
    pass


class DeliveryPage(wire.Page[DeliveryObject]):
    pass


def _fields(webhook: Webhook) -> dict[str, object]:
    same = ("id", "name", "url", "event_types", "created_at", "updated_at")
    fields = {name: getattr(webhook, name) for name in same}
    fields["signing_secret_hint"] = f"whsec_...{webhook.secret[-4:]}"
    return fields | {"batchyard": {"enabled": webhook.enabled}}


def _object(webhook: Webhook) -> WebhookObject:
    return WebhookObject.model_validate(_fields(webhook))


def _with_secret(webhook: Webhook) -> NewSecret:
    return NewSecret.model_validate(_fields(webhook) | {"signing_secret": webhook.secret})


def _delivery(entry: tuple[Delivery, Event]) -> DeliveryObject:
    delivery, event = entry
    same = ("id", "event_id", "state", "attempts", "status_code", "error", "created_at", "delivered_at")
    fields = {name: getattr(delivery, name) for name in same}
    fields |= {"webhook_endpoint_id": delivery.webhook_id, "event_type": event.type}
    next_attempt_at = math.ceil(delivery.next_attempt_at) if delivery.state == "pending" else None
    return DeliveryObject.model_validate(fields | {"next_attempt_at": next_attempt_at})


def _check(url: str) -> None:
    outbound.check(url, allow_private=current_context().settings.webhooks_allow_private)


@routes.post("/v1/webhook_endpoints")
@operation(NewSecret, json=CreateWebhook, refusals=(413,))
def create() -> NewSecret:
    """Have the project's events sent to a URL, signed with the secret that only this answer shows."""
    caller()
    return _with_secret(make(parse_body(CreateWebhook)))


def make(body: CreateWebhook) -> Webhook:
    """Create a webhook in the caller's project, and record who did. Raises RequestError."""
    owner = caller()
    _check(body.url)
    with current_context().database.write() as session:
        webhook = webhooks.create(session, owner.project_id, **body.model_dump())
        events.act(session, owner, "webhook.created", webhook.id, name=webhook.name)
        return webhook


@routes.get("/v1/webhook_endpoints")
@operation(WebhookPage, query=ListWebhooks)
def list_() -> WebhookPage:
    """List the project's webhook endpoints, newest first, without their secrets."""
    owner = caller()
    params = query(ListWebhooks)
    with current_context().database.read() as session:
        records, has_more = webhooks.page(session, owner.project_id, after=params.after, limit=params.limit)
    return WebhookPage.of([_object(webhook) for webhook in records], has_more=has_more)


@routes.get("/v1/webhook_endpoints/<webhook_endpoint_id>")
@operation(WebhookObject, refusals=(404,))
def retrieve(webhook_endpoint_id: str) -> WebhookObject:
    """Look at a webhook endpoint."""
    return _object(get_webhook(webhook_endpoint_id))


def get_webhook(webhook_id: str) -> Webhook:
    """Return a webhook of the caller's project. Raises NotFoundError."""
    owner = caller()
    with current_context().database.read() as session:
        return webhooks.get(session, owner.project_id, webhook_id)


@routes.post("/v1/webhook_endpoints/<webhook_endpoint_id>")
@operation(WebhookObject, json=UpdateWebhook, refusals=(404, 413))
def update(webhook_endpoint_id: str) -> WebhookObject:
    """Change a webhook endpoint. While it is disabled no events are added for it, and those that are pending wait."""
    caller()
    return _object(change(webhook_endpoint_id, parse_body(UpdateWebhook)))


def change(webhook_id: str, body: UpdateWebhook) -> Webhook:
    """Set what the body names of a webhook of the caller's project. Raises NotFoundError, RequestError."""
    owner = caller()
    if body.url is not None:
        _check(body.url)
    values = body.model_dump(exclude_none=True)
    with current_context().database.write() as session:
        webhook = webhooks.change(session, owner.project_id, webhook_id, values)
        events.act(session, owner, "webhook.changed", webhook.id, fields=sorted(values))  # a URL may hold a secret
        return webhook


@routes.delete("/v1/webhook_endpoints/<webhook_endpoint_id>")
@operation(WebhookDeleted, refusals=(404,))
def delete(webhook_endpoint_id: str) -> WebhookDeleted:
    """Delete a webhook endpoint with its deliveries. The events stay with their batches."""
    remove(webhook_endpoint_id)
    return WebhookDeleted(id=webhook_endpoint_id)


def remove(webhook_id: str) -> None:
    """Delete a webhook of the caller's project with its deliveries. Raises NotFoundError."""
    owner = caller()
    with current_context().database.write(serial=True) as session:
        webhooks.remove(session, owner.project_id, webhook_id)
        events.act(session, owner, "webhook.deleted", webhook_id)


@routes.post("/v1/webhook_endpoints/<webhook_endpoint_id>/rotate_secret")
@operation(NewSecret, json=RotateSecret, body_optional=True, refusals=(404, 413))
def rotate_secret(webhook_endpoint_id: str) -> NewSecret:
    """Replace the signing secret: everything from now on is signed with the new one, for a day with both if asked."""
    caller()
    keep_old = parse_body(RotateSecret, optional=True).keep_old_secret_active_for_24_hours
    return _with_secret(rotate(webhook_endpoint_id, keep_old=keep_old))


def rotate(webhook_id: str, *, keep_old: bool) -> Webhook:
    """Replace the signing secret of a webhook of the caller's project. Raises NotFoundError."""
    owner = caller()
    with current_context().database.write() as session:
        webhook = webhooks.rotate_secret(session, owner.project_id, webhook_id, keep_old=keep_old)
        events.act(session, owner, "webhook.changed", webhook.id, fields=["signing_secret"])
        return webhook


@routes.post("/v1/webhook_endpoints/<webhook_endpoint_id>/test")
@operation(SampleSent, json=SendSample, refusals=(404, 413))
def send_sample(webhook_endpoint_id: str) -> SampleSent:
    """Send a sample event at once, also to a disabled endpoint. One that does not answer is refused."""
    caller()
    type_ = parse_body(SendSample).event_type
    status = samples.send_sample(current_context(), get_webhook(webhook_endpoint_id), type_)
    return SampleSent(webhook_endpoint_id=webhook_endpoint_id, event_type=type_, status_code=status)


@routes.get("/v1/webhook_event_types")
@operation(EventTypes)
def event_types() -> EventTypes:
    """List the types of events there are."""
    caller()
    return EventTypes(data=list(events.TYPES))


@routes.get("/v1/webhook_endpoints/<webhook_endpoint_id>/deliveries")
@operation(DeliveryPage, query=ListWebhooks, refusals=(404,))
def deliveries(webhook_endpoint_id: str) -> DeliveryPage:
    """List what was sent to a webhook endpoint and what waits to be, newest first."""
    owner = caller()
    params = query(ListWebhooks)
    with current_context().database.read() as session:
        webhook = webhooks.get(session, owner.project_id, webhook_endpoint_id)
        entries, has_more = webhooks.deliveries(session, webhook, after=params.after, limit=params.limit)
    return DeliveryPage.of([_delivery(entry) for entry in entries], has_more=has_more)


@routes.post("/v1/webhook_endpoints/<webhook_endpoint_id>/deliveries/<delivery_id>/redeliver")
@operation(DeliveryObject, refusals=(404, 409))
def redeliver(webhook_endpoint_id: str, delivery_id: str) -> DeliveryObject:
    """Send a delivery again at once, whatever became of it; one that is being sent stays as it is."""
    return _delivery(resend(webhook_endpoint_id, delivery_id))


def resend(webhook_id: str, delivery_id: str) -> tuple[Delivery, Event]:
    """Make a delivery of the caller's project due now, and return it with its event.

    Raises:
        NotFoundError, ConflictError.
    """
    owner = caller()
    with current_context().database.write() as session:
        webhook = webhooks.get(session, owner.project_id, webhook_id)
        return webhooks.redeliver(session, webhook, delivery_id)
