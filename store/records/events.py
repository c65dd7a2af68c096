"""Events, the webhooks that receive them with their deliveries, and schedules with their runs and objects."""

from typing import Any

from sqlalchemy import ForeignKey, Index, String, UniqueConstraint
from sqlalchemy.orm import Mapped, mapped_column

from store.records.base import Base, OfProject, id_column, now


class Event(OfProject, Base):
    """A change of work, in that change's transaction, or what a client has done with what has the id in `data`."""

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
    updated_at: Mapped[int] = mapped_column(default=lambda new: new.get_current_parameters()["created_at"])
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


class Schedule(OfProject, Base):
    """A recurring batch or job.

    `batch` or `job` holds the fields of its create body, `input` the source of each run. `input_sha256` keeps the
    input's content. `next_run_at` is null while the schedule is paused. `version` rises with every change by a client.
    """

    __tablename__ = "schedules"
    id: Mapped[str] = id_column("sched_")
    name: Mapped[str] = mapped_column(String(128))
    cron: Mapped[str] = mapped_column(String(128))
    timezone: Mapped[str] = mapped_column(String(64))
    input: Mapped[dict[str, Any]]
    input_sha256: Mapped[str] = mapped_column(String(64), index=True)
    batch: Mapped[dict[str, Any]]
    job: Mapped[dict[str, Any] | None]
    overlap: Mapped[str] = mapped_column(String(16))
    catch_up: Mapped[str] = mapped_column(String(16))
    paused: Mapped[bool] = mapped_column(default=False)
    next_run_at: Mapped[int | None]
    version: Mapped[int] = mapped_column(default=0)
    created_at: Mapped[int] = mapped_column(default=now)
    __table_args__ = (Index(None, "project_id", "id"), Index(None, "next_run_at"))


class WatchedObject(OfProject, Base):
    """An object of a folder that a schedule watches, with the run that it has had; kept as long as the schedule.

    `version` is the SHA-256 of its path and etag. It is `told` once its outcome is beside it.
    """

    __tablename__ = "watched_objects"
    schedule_id: Mapped[str] = mapped_column(ForeignKey("schedules.id"), primary_key=True)
    version: Mapped[str] = mapped_column(String(64), primary_key=True)
    name: Mapped[str]
    run_id: Mapped[str] = mapped_column(String(64))
    told: Mapped[bool] = mapped_column(default=False)
    __table_args__ = (Index(None, "schedule_id", "told"),)


class ScheduleRun(OfProject, Base):
    """A run of a schedule and its outcome. A scheduled time has at most one run.

    A manual run has no `scheduled_at`. `missed_from` is the first of the missed times before this one that get no run
    of their own.
    """

    __tablename__ = "schedule_runs"
    id: Mapped[str] = id_column("run_")
    schedule_id: Mapped[str] = mapped_column(ForeignKey("schedules.id"))
    scheduled_at: Mapped[int | None]
    missed_from: Mapped[int | None]
    state: Mapped[str] = mapped_column(String(16))
    batch_id: Mapped[str | None] = mapped_column(ForeignKey("batches.id"), index=True)
    job_id: Mapped[str | None] = mapped_column(String(64), index=True)
    reason: Mapped[str | None]
    created_at: Mapped[int] = mapped_column(default=now)
    __table_args__ = (UniqueConstraint("schedule_id", "scheduled_at"), Index(None, "schedule_id", "id"))
