"""Projects: the tenants, and what an administrator has settled for each."""

from __future__ import annotations

import unicodedata
from collections.abc import Collection, Sequence

from sqlalchemy import select, true
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Session

from batchyard import wording
from batchyard.errors import NotFoundError, RequestError
from store import listing
from store.records import Project, new_id, now

MAX_NAME = 128


def get_or_create(session: Session, name: str) -> Project:
    """The project of that name, which is made if there is none.

    Raises:
        RequestError: the name has not 1 to 128 characters, or control characters.
    """
    if not 1 <= len(name) <= MAX_NAME or any(unicodedata.category(character) in ("Cc", "Cs") for character in name):
        raise RequestError(
            f"Invalid value for 'project': a name has 1 to {MAX_NAME} characters, none of them a control character.",
            code="invalid_value",
            param="project",
        )
    named = select(Project).where(Project.name == name)
    record = session.scalar(named)
    if record is None:
        try:
            with session.begin_nested():
                session.add(record := Project(id=new_id("proj_"), name=name, created_at=now()))
        except IntegrityError:  # somebody else has made it meanwhile
            record = session.scalars(named).one()
    return record


def named(session: Session, name: str) -> str:
    """The id of the project of that name. Raises NotFoundError."""
    found = session.scalar(select(Project.id).where(Project.name == name))
    if found is None:
        raise NotFoundError(f"There is no project '{name}'; 'batchyard project list' shows those there are.")
    return found


def get(session: Session, project_id: str, *, lock: bool = False) -> Project:
    """Raises NotFoundError."""
    project = session.get(Project, project_id, with_for_update=lock)
    if project is None:
        raise NotFoundError(f"No project found with id '{project_id}'.", param="project_id")
    return project


def all_(session: Session) -> Sequence[Project]:
    """Every project, oldest first."""
    return session.scalars(select(Project).order_by(Project.id)).all()


def page(session: Session, *, after: str | None, limit: int) -> tuple[Sequence[Project], bool]:
    """Newest first, those after the project with id `after`; whether there are more."""
    return listing.page(session, Project, true(), after=after, limit=limit, descending=True)


def check_tier(tier: str | None, tiers: Collection[str]) -> str | None:
    """The tier, which is one of these or none. Raises RequestError."""
    if tier is not None and tier not in tiers:
        raise RequestError(
            f"There is no tier '{wording.cut(tier, wording.MAX_NAME)}'; there are: {', '.join(tiers) or 'none'} "
            "(BATCHYARD_TIERS).",
            code="invalid_value",
            param="tier",
        )
    return tier


def update(session: Session, project_id: str, **settled: str | int | None) -> Project:
    """Set a project's `tier`, `max_segments` and `cache_bytes`, or some of them; None is none. Raises NotFoundError."""
    project = get(session, project_id, lock=True)
    for name, value in settled.items():
        setattr(project, name, value)
    return project


def max_segments(session: Session) -> dict[str, int]:
    """Most segments at once of each project that has a limit of its own."""
    rows = session.execute(select(Project.id, Project.max_segments).where(Project.max_segments.is_not(None)))
    return {project_id: int(limit or 0) for project_id, limit in rows}
