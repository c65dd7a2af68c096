"""Events, the webhooks that receive them, and their deliveries."""

from __future__ import annotations

from typing import Any

from sqlalchemy import ForeignKey, Index, String
from sqlalchemy.orm import Mapped, mapped_column

from store.records.base import Base, OfProject, id_column, now


class Event(OfProject, Base):
    """A change of a batch or of a job, written in the transaction of that change, or what a client has done.

    The latter has the id and the name of the client's key, and may be about something else: `data` has its id.
    """

    __tablename__ = "events"
    id: Mapped[str] = id_column("evt_")
    batch_id: Mapped[str | None] = mapped_column(ForeignKey("batches.id"))
    job_id: Mapped[str | None] = mapped_column(String(64))
    type: Mapped[str] = mapped_column(String(64))
    key_id: Mapped[str | None] = mapped_column(String(64))
    key_name: Mapped[str | None] = mapped_column(String(128))
    data: Mapped[dict[str, Any]]
    created_at: Mapped[int] = mapped_column(default=now)
    __table_args__ = (Index(None, "batch_id", "type"), Index(None, "job_id", "type"), Index(None, "project_id", "id"))


class Webhook(OfProject, Base):
    """A receiver of a project's events. Its secrets are in plain text, since they sign each request.

    `old_secret` is the previous one. It signs too until `old_secret_until`.
    """

    __tablename__ = "webhooks"
    id: Mapped[str] = id_column("wh_")
    name: Mapped[str] = mapped_column(String(128))
    url: Mapped[str] = mapped_column(String(2048))
    event_types: Mapped[list[str]]
    secret: Mapped[str] = mapped_column(String(128))
    old_secret: Mapped[str | None] = mapped_column(String(128))
    old_secret_until: Mapped[int | None]
    enabled: Mapped[bool] = mapped_column(default=True)
    created_at: Mapped[int] = mapped_column(default=now)
    updated_at: Mapped[int] = mapped_column(default=now)
    __table_args__ = (Index(None, "project_id", "id"),)


class Delivery(OfProject, Base):
    """A delivery of one event to one webhook: `pending`, `sending`, `delivered`, or `failed` for good.

    `attempts` counts begun attempts. A delivery that is still `sending` at `next_attempt_at` is sent again.
    """

    __tablename__ = "deliveries"
    id: Mapped[str] = id_column("dlv_")
    webhook_id: Mapped[str] = mapped_column(ForeignKey("webhooks.id"))
    event_id: Mapped[str] = mapped_column(ForeignKey("events.id"), index=True)
    state: Mapped[str] = mapped_column(String(16), default="pending")
    attempts: Mapped[int] = mapped_column(default=0)
    next_attempt_at: Mapped[float]
    status_code: Mapped[int | None]
    error: Mapped[str | None]
    created_at: Mapped[int] = mapped_column(default=now)
    delivered_at: Mapped[int | None]
    __table_args__ = (Index(None, "state", "next_attempt_at"), Index(None, "webhook_id", "id"))
