"""Changes of the served models while they run, which take the place of entries of models.toml."""

import time
from dataclasses import dataclass
from typing import Any

from sqlalchemy import delete, func, select
from sqlalchemy.orm import Session

from store import events
from store.keys import Principal
from store.records import ModelChange

_RELOAD = ""
"""The name of the row that says when models.toml was reloaded last."""
_RESET = "\n"
"""The name of the row that says when a change was undone last. No model has such a name."""


@dataclass(frozen=True)
class Changes:
    """All changes: entries in force by name, and the last entries of removed models."""

    entries: dict[str, dict[str, Any]]
    removed: dict[str, dict[str, Any]]
    reloaded_at: float = 0.0

    @property
    def over_file(self) -> dict[str, dict[str, Any] | None]:
        """The changes as `batchyard.models.entries_of` takes them."""
        return {**self.entries, **dict.fromkeys(self.removed)}


def version(session: Session) -> float:
    """Return a number that grows with each change; 0 before the first one."""
    return session.scalar(select(func.max(ModelChange.changed_at))) or 0.0


def read(session: Session) -> Changes:
    """Return all changes."""
    rows = {row.name: row for row in session.scalars(select(ModelChange).order_by(ModelChange.name))}
    reload = rows.pop(_RELOAD, None)
    rows.pop(_RESET, None)
    return Changes(
        {name: row.entry for name, row in rows.items() if not row.removed},
        {name: row.entry for name, row in rows.items() if row.removed},
        reload.changed_at if reload else 0.0,
    )


def put(session: Session, by: Principal, name: str, entry: dict[str, Any], action: events.Action) -> None:
    """Put an entry in force, or remove it as 'model.removed', and record who did."""
    _write(session, name, entry, removed=action == "model.removed")
    events.act(session, by, action, name)


def reset(session: Session, by: Principal, name: str) -> None:
    """Let models.toml say again what a model is, and record who did."""
    session.execute(delete(ModelChange).where(ModelChange.name == name))
    _write(session, _RESET, {}, removed=False)
    events.act(session, by, "model.changed", name)


def reload(session: Session, by: Principal) -> None:
    """Have each process read models.toml again, and record who did."""
    _write(session, _RELOAD, {}, removed=False)
    events.act(session, by, "models.reloaded", "models.toml")


def _write(session: Session, name: str, entry: dict[str, Any], *, removed: bool) -> None:
    at = max(time.time(), version(session) + 1e-3)  # a clock that was set back hides no change
    session.merge(ModelChange(name=name, entry=entry, removed=removed, changed_at=at))
