"""The models of /v1/webhook_endpoints."""

from typing import Annotated, Literal

from pydantic import BaseModel, Field

from store import events
from tasks.webhooks import outbound
from webapp.wire.fields import Name, StrictBody
from webapp.wire.lists import Deleted, ListPage

Url = Annotated[str, Field(strict=True, min_length=1, max_length=outbound.MAX_URL)]
Types = Annotated[list[events.Type], Field(min_length=1, max_length=32, description="what is sent there")]


class CreateWebhook(StrictBody):
    name: Name
    url: Url
    event_types: Types


class UpdateWebhook(StrictBody):
    """What is left out stays as it is."""

    name: Name | None = None
    url: Url | None = None
    event_types: Types | None = None
    enabled: Annotated[bool, Field(strict=True)] | None = None


class RotateSecret(StrictBody):
    keep_old_secret_active_for_24_hours: bool = Field(False, strict=True)


class SendSample(StrictBody):
    event_type: events.Type


class WebhookExtension(BaseModel):
    """What this project says of a webhook endpoint beside OpenAI's fields."""

    enabled: bool


class WebhookObject(BaseModel):
    id: str
    object: Literal["webhook_endpoint"] = "webhook_endpoint"
    name: str
    url: str = Field(description="empty: the `callback_url` of each batch and job")
    event_types: list[str]
    signing_secret_hint: str = Field(description="how the signing secret ends")
    created_at: int
    updated_at: int = Field(description="when its fields or its secret last became others")
    batchyard: WebhookExtension


class NewSecret(WebhookObject):
    """A webhook endpoint with its signing secret, which is shown when it is made and never again."""

    signing_secret: str


class WebhookDeleted(Deleted):
    object: Literal["webhook_endpoint.deleted"] = "webhook_endpoint.deleted"


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


WebhookPage = ListPage[WebhookObject]
DeliveryPage = ListPage[DeliveryObject]
