"""Projects: the tenants, with their tier and limits."""

import unicodedata
from collections.abc import Collection, Sequence

from sqlalchemy import select, true
from sqlalchemy.orm import Session

from batchyard import wording
from batchyard.endpoints.live_wire import TIERS, Tier
from batchyard.errors import ConflictError, NotFoundError, RequestError
from store import listing
from store.database import insert
from store.records import Project

MAX_NAME = 128


def get_or_create(session: Session, name: str) -> Project:
    """Return the project of that name, or a new one. Raises RequestError; ConflictError while it is erased."""
    if not 1 <= len(name) <= MAX_NAME or any(unicodedata.category(character) in ("Cc", "Cs") for character in name):
        raise RequestError(
            f"Invalid value for 'project': a name has 1 to {MAX_NAME} characters, none of them a control character.",
            code="invalid_value",
            param="project",
        )
    statement = select(Project).where(Project.name == name)
    record = session.scalar(statement)
    if record is None:  # another transaction may create it meanwhile
        session.execute(insert(session, Project).on_conflict_do_nothing(), {"name": name})
        record = session.scalars(statement).one()
    if record.erasing_at is not None:
        message = (
            f"Project '{wording.cut(name, wording.MAX_NAME)}' is being erased; wait for its end, or use another name."
        )
        raise ConflictError(message, code="project_erased", param="project")
    return record


def named(session: Session, name: str, *, only: str | None = None) -> str:
    """Return the id of a project by name; `only` is the id it must have. Raises NotFoundError."""
    project_id = session.scalar(select(Project.id).where(Project.name == name))
    if only is not None and project_id != only:
        project_id = None
    if project_id is None:
        raise NotFoundError(f"There is no project '{name}'; 'batchyard project list' shows those there are.")
    return project_id


def get(session: Session, project_id: str, *, lock: bool = False) -> Project:
    """Return a project. With `lock`, no other transaction changes or locks it until this one ends.

    Other transactions may add records that belong to it all the same: locks on batches come before this one, or two
    transactions would wait for each other. Raises NotFoundError.
    """
    project = session.get(Project, project_id, with_for_update={"key_share": True} if lock else None)
    if project is None:
        raise NotFoundError(f"No project found with id '{project_id}'.", param="project_id")
    return project


def all_(session: Session) -> Sequence[Project]:
    return session.scalars(select(Project).order_by(Project.id)).all()


def page(session: Session, *, after: str | None, limit: int) -> tuple[Sequence[Project], bool]:
    """Return projects, newest first, and if more follow. Raises RequestError."""
    return listing.page(session, Project, true(), after=after, limit=limit, descending=True)


def live_tiers(project: Project) -> tuple[Tier, ...]:
    return TIERS if project.live_tier is None else tuple(tier for tier in TIERS if tier == project.live_tier)


def check_tier(tier: str | None, tiers: Collection[str]) -> str | None:
    """Return the tier. Raises RequestError unless it is one of `tiers` or None."""
    if tier is not None and tier not in tiers:
        raise RequestError(
            f"There is no tier '{wording.cut(tier, wording.MAX_NAME)}'; there are: {', '.join(tiers) or 'none'} "
            "(BATCHYARD_TIERS).",
            code="invalid_value",
            param="tier",
        )
    return tier


def update(session: Session, project_id: str, **values: str | int | None) -> Project:
    """Set some of a project's limits; None removes one. Raises NotFoundError; RequestError for some pairs."""
    project = get(session, project_id, lock=True)
    if values.get("zero_retention_minutes") is not None:
        values.setdefault("cache_bytes", None)
    for name, value in values.items():
        setattr(project, name, value)
    if project.zero_retention_minutes is not None and project.cache_bytes is not None:
        raise RequestError(
            "A project with 'zero_retention_minutes' has no result cache; set one of the two to null.",
            code="invalid_value",
            param="cache_bytes",
        )
    return project


def max_segments(session: Session) -> dict[str, int]:
    """Return the most full segments at once of each project that has a limit, by id."""
    rows = session.execute(select(Project.id, Project.max_segments).where(Project.max_segments.is_not(None)))
    return {project_id: int(limit or 0) for project_id, limit in rows}


def names(session: Session, project_ids: Collection[str]) -> dict[str, str]:
    return dict(session.execute(select(Project.id, Project.name).where(Project.id.in_(project_ids))).all())
