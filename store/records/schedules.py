"""Schedules and their runs."""

from __future__ import annotations

from typing import Any

from sqlalchemy import ForeignKey, Index, String, UniqueConstraint
from sqlalchemy.orm import Mapped, mapped_column

from store.records.base import Base, OfProject, id_column, now


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
