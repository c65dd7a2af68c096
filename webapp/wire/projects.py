"""The models of /v1/projects."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

from webapp.wire.lists import ListPage

LiveTier = Literal["default", "flex", "none"]


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


class ProjectPage(ListPage[ProjectObject]):
    pass


class ChangeProject(BaseModel):
    """What is left out stays as it is; null is none."""

    model_config = ConfigDict(extra="forbid")
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


class ListProjects(BaseModel):
    after: str | None = Field(None, description="the id of the last project of the page before")
    limit: int = Field(100, ge=1, le=1000)
