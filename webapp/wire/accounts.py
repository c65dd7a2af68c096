"""The models of /v1/keys and /v1/projects."""

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from batchyard import durations, tariffs
from batchyard.settings import readable
from store.accounting.budgets import State
from webapp.wire.fields import Name, StrictBody, Window
from webapp.wire.lists import ListPage, ListQuery

LiveTier = Literal["default", "flex", "none"]


class CapLimits(StrictBody):
    max_tokens: int | None = Field(
        None, strict=True, ge=0, lt=2**63, description="input and output tokens a month, live and in batches"
    )
    max_cost: Annotated[str, readable(tariffs.parse_money)] | None = Field(
        None, description="what it may spend a month", examples=["5 EUR"]
    )

    @property
    def limits(self) -> dict[str, Any]:
        """Return the limits that were sent, as store.accounting.budgets.cap takes them."""
        limits = self.model_dump(include={"max_tokens", "max_cost"} & self.model_fields_set)
        if self.max_cost is not None:
            limits["max_cost"] = tariffs.parse_money(self.max_cost)
        return limits


class ChangeKey(CapLimits):
    """The body of POST /v1/keys/{id}: what is left out stays as it is; null is no limit."""


class KeyCap(BaseModel):
    """What a key may use in a month (UTC), and what it has used in this one."""

    max_tokens: int | None
    tokens: int
    amount: str | None = Field(description="the cost it may have; null: no such limit")
    currency: str | None
    spent: str
    month: str
    state: State


class KeyObject(BaseModel):
    """An API key; `key` is shown once, when it is made."""

    id: str
    object: Literal["api_key"] = "api_key"
    project: str
    admin: bool
    label: str | None = Field(description="whose it is, or what it is for")
    created_at: int
    expires_at: int | None = Field(description="from then on it opens nothing; null: it has no end")
    last_used_at: int | None = Field(description="to a few minutes")
    revoked_at: int | None
    cap: KeyCap | None = Field(description="null: none")


class NewKeyObject(KeyObject):
    key: str


KeyPage = ListPage[KeyObject]


class CreateKey(CapLimits):
    project: str = Field(strict=True, description="name of the project, which is made if there is none")
    admin: bool = Field(False, strict=True)
    label: Name | None = None
    expires_after: Window | None = Field(None, description="for how long it opens the project; null: for good")

    @property
    def expires_after_seconds(self) -> int | None:
        return None if self.expires_after is None else durations.seconds(self.expires_after)


class ListProjects(ListQuery):
    limit: int = Field(100, ge=1, le=1000)


class ListKeys(ListProjects):
    project: str | None = Field(None, min_length=1, description="only this project's")


class ProjectObject(BaseModel):
    """A tenant. Null: no tier, no limit of its own, no result cache, live requests of every service tier.

    And for its retention: as long as the deployment's. `erasing_at`: since when it is being erased.
    """

    model_config = ConfigDict(from_attributes=True)
    id: str
    object: Literal["project"] = "project"
    name: str
    created_at: int
    tier: str | None
    max_segments: int | None
    cache_bytes: int | None
    max_stored_bytes: int | None
    live_tier: LiveTier | None
    zero_retention_minutes: int | None
    erasing_at: int | None


ProjectPage = ListPage[ProjectObject]


class ChangeProject(StrictBody):
    """What is left out stays as it is; null is none."""

    tier: str | None = Field(None, strict=True, description="one of BATCHYARD_TIERS: how soon its batches are due")
    max_segments: int | None = Field(None, strict=True, ge=0, le=10**9, description="most full segments at once")
    cache_bytes: int | None = Field(None, strict=True, ge=1, lt=2**63, description="what its result cache may take")
    max_stored_bytes: int | None = Field(
        None, strict=True, ge=0, lt=2**63, description="most bytes of its files; null: BATCHYARD_MAX_STORED_BYTES"
    )
    live_tier: LiveTier | None = Field(
        None, description="the one service tier that its live requests may have; none: it may send batches only"
    )
    zero_retention_minutes: int | None = Field(
        None,
        strict=True,
        ge=1,
        le=525_600,
        description="so long after its end all of a batch or a job is deleted; it has no result cache then",
    )


class SigningKey(BaseModel):
    key_id: str = Field(description="SHA-256 of the public key in DER, the `keyid` of a signature")
    public_key: str = Field(description="the Ed25519 public key, in PEM")


class SigningKeys(BaseModel):
    object: Literal["list"] = "list"
    data: list[SigningKey]
