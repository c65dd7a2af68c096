"""/v1/projects: the tenants, with their tier and limits, for administrators."""

from __future__ import annotations

from typing import Literal

from flask import Blueprint
from pydantic import BaseModel, ConfigDict, Field

from store import projects
from webapp import wire
from webapp.document import operation
from webapp.requests import administrator, current_context, parse_body, query

routes = Blueprint("projects", __name__)


class ProjectObject(BaseModel):
    """A tenant. Null: no tier, no limit of its own, no result cache."""

    model_config = ConfigDict(from_attributes=True)
    id: str
    object: Literal["project"] = "project"
    name: str
    created_at: int
    tier: str | None
    max_segments: int | None
    cache_bytes: int | None


class ProjectPage(wire.ListPage[ProjectObject]):
    pass


class SettleProject(BaseModel):
    """What is left out stays as it is; null is none."""

    model_config = ConfigDict(extra="forbid")
    tier: str | None = Field(None, strict=True, description="one of BATCHYARD_TIERS: how soon its batches are due")
    max_segments: int | None = Field(None, strict=True, ge=0, le=10**9, description="most full segments at once")
    cache_bytes: int | None = Field(None, strict=True, ge=1, lt=2**63, description="what its result cache may take")


class ListProjects(BaseModel):
    after: str | None = Field(None, description="the id of the last project of the page before")
    limit: int = Field(100, ge=1, le=1000)


@routes.get("/v1/projects")
@operation(ProjectPage, query=ListProjects, refusals=(403,))
def list_() -> ProjectPage:
    """List the projects, newest first. A project is made with its first key."""
    administrator()
    params = query(ListProjects)
    with current_context().database.read() as session:
        records, has_more = projects.page(session, after=params.after, limit=params.limit)
    return ProjectPage.of([ProjectObject.model_validate(project) for project in records], has_more=has_more)


@routes.post("/v1/projects/<project_id>")
@operation(ProjectObject, json=SettleProject, refusals=(403, 404, 413))
def settle(project_id: str) -> ProjectObject:
    """Settle a project's tier, for its batches from now on, its most segments at once, and its result cache."""
    administrator()
    body = parse_body(SettleProject)
    projects.check_tier(body.tier, current_context().settings.tier_seconds)
    with current_context().database.write() as session:
        project = projects.update(session, project_id, **body.model_dump(include=body.model_fields_set))
    return ProjectObject.model_validate(project)
