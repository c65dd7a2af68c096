"""Records: the tables of the database.

Times are Unix seconds: integers where clients see them, floats where only leases and rates use them. Some columns have
an older name than their attribute.
"""

from __future__ import annotations

import secrets
import time
from typing import Any, ClassVar, Literal

from sqlalchemy import JSON, BigInteger, ForeignKey, Index, Integer, MetaData, String, UniqueConstraint
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

Sla = Literal["on_track", "at_risk", "late"]
"""The outlook of an unfinished batch for its deadline."""


def new_id(prefix: str) -> str:
    """Return an id that sorts by its creation time, so that it serves as a stable list cursor."""
    return f"{prefix}{time.time_ns() // 1000:014x}{secrets.token_hex(9)}"


def first_id(prefix: str, at: float) -> str:
    """Return an id that sorts before those created at `at` (Unix seconds) or later, and after all others."""
    return f"{prefix}{int(at * 1e6):014x}"


def now() -> int:
    """Return the current Unix time in seconds."""
    return int(time.time())


class Base(DeclarativeBase):
    metadata = MetaData(
        naming_convention={
            "ix": "ix_%(table_name)s_%(column_0_N_name)s",
            "uq": "uq_%(table_name)s_%(column_0_N_name)s",
            "fk": "fk_%(table_name)s_%(column_0_N_name)s",
            "pk": "pk_%(table_name)s",
        }
    )
    type_annotation_map: ClassVar[dict[Any, Any]] = {
        dict[str, Any]: JSON,
        list[dict[str, Any]]: JSON,
        list[str]: JSON,
        int: BigInteger,
    }


class Project(Base):
    """A tenant. Every file, batch and key belongs to one.

    `max_segments` limits what its segments fill at once, null for no limit; `cache_bytes` its cached answers, null for
    no cache. `recent_usage` is the seconds that its segments ran, which decay (store.speeds) from `recent_usage_at` on.
    """

    __tablename__ = "projects"
    id: Mapped[str] = mapped_column(String(64), primary_key=True)
    name: Mapped[str] = mapped_column(String(128), unique=True)
    created_at: Mapped[int]
    tier: Mapped[str | None] = mapped_column(String(64))
    max_segments: Mapped[int | None]
    cache_bytes: Mapped[int | None]
    recent_usage: Mapped[float] = mapped_column("service", default=0.0)
    recent_usage_at: Mapped[float] = mapped_column("service_at", default=0.0)


class ApiKey(Base):
    """An API key, with only the SHA-256 of its secret.

    From `expires_at` on it opens nothing. `last_used_at` is written once in store.keys.USE_SECONDS at most.
    """

    __tablename__ = "api_keys"
    id: Mapped[str] = mapped_column(String(64), primary_key=True)
    project_id: Mapped[str] = mapped_column(ForeignKey("projects.id"))
    secret_sha256: Mapped[str] = mapped_column(String(64))
    admin: Mapped[bool]
    label: Mapped[str | None] = mapped_column(String(128))
    created_at: Mapped[int]
    expires_at: Mapped[int | None]
    last_used_at: Mapped[int | None]
    revoked_at: Mapped[int | None]


class WebSession(Base):
    """A session of the web pages, opened with a key, with only the SHA-256 of the browser's token."""

    __tablename__ = "sessions"
    token_sha256: Mapped[str] = mapped_column(String(64), primary_key=True)
    key_id: Mapped[str] = mapped_column(ForeignKey("api_keys.id"))
    expires_at: Mapped[int] = mapped_column(index=True)


class File(Base):
    """A file of a project. Its content is in the artifact store, once for each SHA-256.

    A deleted file keeps its row for a while (store.retention): `expires_at` is its time of deletion.
    """

    __tablename__ = "files"
    id: Mapped[str] = mapped_column(String(64), primary_key=True)
    project_id: Mapped[str] = mapped_column(ForeignKey("projects.id"))
    filename: Mapped[str] = mapped_column(String(512))
    purpose: Mapped[str] = mapped_column(String(32))
    bytes: Mapped[int]
    sha256: Mapped[str] = mapped_column(String(64), index=True)
    created_at: Mapped[int]
    expires_at: Mapped[int | None] = mapped_column(index=True)
    __table_args__ = (Index(None, "project_id", "id"),)


class Leased:
    """Columns of a record that one holder at a time may work on.

    `epoch` rises with each new lease. A holder's writes name its epoch, so a former holder cannot write. A lease
    without a holder is a pause before housekeeping starts the work again.
    """

    epoch: Mapped[int] = mapped_column(default=0)
    holder: Mapped[str | None] = mapped_column(String(256))
    lease_expires_at: Mapped[float | None]


AMOUNTS = (
    *("completed", "failed", "input_tokens", "cached_tokens", "output_tokens"),
    *("shared_requests", "shared_input_tokens", "shared_output_tokens"),
)


class Answered:
    """Columns of the amounts that answers add up to.

    `cached_tokens` counts input tokens from the engine's prefix cache. The `shared_` columns count requests that were
    answered with another request's answer, and its tokens.
    """

    completed: Mapped[int] = mapped_column(default=0)
    failed: Mapped[int] = mapped_column(default=0)
    input_tokens: Mapped[int] = mapped_column(default=0)
    cached_tokens: Mapped[int] = mapped_column(default=0)
    output_tokens: Mapped[int] = mapped_column(default=0)
    shared_requests: Mapped[int] = mapped_column(default=0)
    shared_input_tokens: Mapped[int] = mapped_column(default=0)
    shared_output_tokens: Mapped[int] = mapped_column(default=0)


class Pausable:
    """Columns of a batch or a job that a client can pause. `paused_by` is what people call the client's key.

    While `paused_at` is set, none of its segments starts. One that ends is not paused any more.
    """

    paused_at: Mapped[int | None]
    paused_by: Mapped[str | None] = mapped_column(String(128))


class Batch(Leased, Answered, Pausable, Base):
    """A batch of requests. Field names are those of OpenAI's batch object where it has them.

    `due_at` orders dispatch: it is the end of the completion window, or set by the project's tier. An `infeasible`
    batch could not end within its window even if it ran alone, so it runs after all others. `input_sha256` is empty if
    there was no such file. `timeline` is stored at
    the end (store.segments.timeline), before the result chunks are deleted. `latencies` has the histogram
    (batchyard.histogram) of the seconds of its requests, by model and request class. `engine_deaths` has the number of
    deaths by model, how many had which reason, and the last one (store.holds.record_death).
    `seconds_sha256` is the artifact with the seconds of each (store.formats.seconds), `rows_sha256` the one with what
    became of each (store.formats.rows); both are written at the end.
    `on_invalid` says what lines that are no valid requests do: `fail` the batch, or are skipped and become error
    lines (`skip`). `name` is what people call it: its metadata's `name`, or its input file's. `created_by` is the
    id of the key that created it; a schedule's batch has none. `priority` orders it among the batches of its
    project (batchyard.statuses.PRIORITIES).

    A batch is `planned` once its segments can run. An `open` one, a `stage` of the job `job_id`, may still get more
    segments. Such a batch has no input file before it is merged, and no plan of its own.
    """

    __tablename__ = "batches"
    id: Mapped[str] = mapped_column(String(64), primary_key=True)
    project_id: Mapped[str] = mapped_column(ForeignKey("projects.id"))
    name: Mapped[str | None] = mapped_column(String(512))
    created_by: Mapped[str | None] = mapped_column(String(64))
    endpoint: Mapped[str] = mapped_column(String(64))
    completion_window: Mapped[str] = mapped_column(String(16))
    input_file_id: Mapped[str] = mapped_column(String(64), index=True)
    input_sha256: Mapped[str] = mapped_column(String(64))
    status: Mapped[str] = mapped_column(String(16))
    outcome: Mapped[str | None] = mapped_column(String(16))
    model: Mapped[str | None] = mapped_column(String(256))
    models: Mapped[dict[str, Any]] = mapped_column(default=dict)
    simulated: Mapped[bool] = mapped_column(default=False)
    created_at: Mapped[int]
    expires_at: Mapped[int]
    due_at: Mapped[int]
    priority: Mapped[int] = mapped_column(default=0, server_default="0")
    infeasible: Mapped[bool] = mapped_column("out_of_reach", default=False)
    sla: Mapped[str] = mapped_column(String(16), default="on_track")
    in_progress_at: Mapped[int | None]
    finalizing_at: Mapped[int | None]
    completed_at: Mapped[int | None]
    failed_at: Mapped[int | None]
    expired_at: Mapped[int | None]
    cancelling_at: Mapped[int | None]
    cancelled_at: Mapped[int | None]
    total: Mapped[int] = mapped_column(default=0)
    expired: Mapped[int] = mapped_column(default=0)
    cancelled: Mapped[int] = mapped_column(default=0)
    request_metadata: Mapped[dict[str, Any] | None] = mapped_column("metadata")
    post_process: Mapped[list[dict[str, Any]]] = mapped_column(default=list)
    output_expires_after: Mapped[int | None]
    on_invalid: Mapped[str] = mapped_column(String(8), default="fail", server_default="fail")
    errors: Mapped[list[dict[str, Any]] | None]
    planned: Mapped[bool] = mapped_column(default=False)
    plan_sha256: Mapped[str | None] = mapped_column(String(64))
    job_id: Mapped[str | None] = mapped_column(String(64), index=True)
    stage: Mapped[str | None] = mapped_column(String(128))
    open: Mapped[bool] = mapped_column(default=False)
    output_file_id: Mapped[str | None] = mapped_column(String(64))
    error_file_id: Mapped[str | None] = mapped_column(String(64))
    timeline: Mapped[list[list[float]] | None] = mapped_column(JSON, deferred=True)
    latencies: Mapped[dict[str, Any] | None]
    engine_deaths: Mapped[dict[str, Any] | None]
    seconds_sha256: Mapped[str | None] = mapped_column(String(64), index=True)
    rows_sha256: Mapped[str | None] = mapped_column(String(64), index=True)
    retry_of: Mapped[str | None] = mapped_column(String(64), index=True)
    idempotency_key: Mapped[str | None] = mapped_column(String(255))
    idempotency_sha256: Mapped[str | None] = mapped_column(String(64))
    attempts: Mapped[int] = mapped_column(default=0)
    attempt_error: Mapped[str | None]
    __table_args__ = (
        Index(None, "project_id", "id"),
        Index(None, "status", "expires_at"),
        Index(None, "project_id", "status"),
        Index(None, "project_id", "idempotency_key", unique=True),
    )


class Segment(Leased, Base):
    """A run of a batch's requests that is executed as one task.

    `number` is its row group in the batch's plan, unless it names a plan and a `row_group` of its own. `bytes` counts
    its request bodies. `answered` counts the requests in its result chunks.
    """

    __tablename__ = "segments"
    id: Mapped[int] = mapped_column(BigInteger().with_variant(Integer, "sqlite"), primary_key=True)
    batch_id: Mapped[str] = mapped_column(ForeignKey("batches.id"))
    number: Mapped[int]
    model: Mapped[str] = mapped_column(String(256))
    requests: Mapped[int]
    bytes: Mapped[int] = mapped_column(default=0)
    answered: Mapped[int] = mapped_column(default=0)
    request_class: Mapped[str] = mapped_column(String(16), default="decode")
    plan_sha256: Mapped[str | None] = mapped_column(String(64), index=True)
    row_group: Mapped[int | None]
    state: Mapped[str] = mapped_column(String(16), default="pending")
    attempts: Mapped[int] = mapped_column(default=0)
    not_before: Mapped[float] = mapped_column(default=0.0)
    engine: Mapped[dict[str, Any] | None]
    error: Mapped[str | None]
    __table_args__ = (
        UniqueConstraint("batch_id", "number"),
        Index(None, "state", "model"),
        Index(None, "batch_id", "state"),
    )


class ResultChunk(Answered, Base):
    """A chunk of a segment's answers: the artifact that holds them (store.formats.chunks), and their amounts."""

    __tablename__ = "parts"
    id: Mapped[int] = mapped_column(BigInteger().with_variant(Integer, "sqlite"), primary_key=True)
    batch_id: Mapped[str] = mapped_column(ForeignKey("batches.id"))
    segment_id: Mapped[int] = mapped_column(ForeignKey("segments.id"))
    sha256: Mapped[str] = mapped_column(String(64), index=True)
    created_at: Mapped[float]
    # A chunk whose COMMIT was unclear is appended again.
    __table_args__ = (Index(None, "batch_id", "created_at"), Index(None, "segment_id", "sha256", unique=True))


class Hold(Base):
    """A model that cannot run (store.holds): its segments wait.

    `attempts` counts the failed starts since `since`; the next attempt is not before `retry_at` (Unix seconds).
    """

    __tablename__ = "holds"
    model: Mapped[str] = mapped_column(String(256), primary_key=True)
    reason: Mapped[str]
    since: Mapped[int]
    attempts: Mapped[int]
    retry_at: Mapped[float]


class EngineFailure(Base):
    """The last time that an engine of a model died, or failed to start.

    `requests` were in it, and `next` says what happened to them (batchyard.statuses.AfterDeath). `answered`: an engine
    of the model has answered since. `deaths` counts those since the last answer, and `engines` are the ids of the
    last ones.
    """

    __tablename__ = "engine_failures"
    model: Mapped[str] = mapped_column(String(256), primary_key=True)
    reason: Mapped[str]
    at: Mapped[int]
    requests: Mapped[int]
    next: Mapped[str] = mapped_column(String(16))
    deaths: Mapped[int]
    engines: Mapped[list[str]]
    answered: Mapped[bool]


class Artifact(Base):
    """A file that a batch produced, with its name in that batch."""

    __tablename__ = "artifacts"
    batch_id: Mapped[str] = mapped_column(ForeignKey("batches.id"), primary_key=True)
    name: Mapped[str] = mapped_column(String(128), primary_key=True)
    file_id: Mapped[str] = mapped_column(ForeignKey("files.id"), index=True)
    lines: Mapped[int | None]


class Speed(Base):
    """Measured speed of a model in one configuration, by request class: sums that decay (store.speeds).

    `began_at`: since when the engine has had requests, while its speed cannot be measured yet; else 0.
    `in_flight_limit`: the most requests that the engines hold; 0 if not known.
    """

    __tablename__ = "speeds"
    model: Mapped[str] = mapped_column(String(256), primary_key=True)
    config_sha256: Mapped[str] = mapped_column(String(64), primary_key=True)
    request_class: Mapped[str] = mapped_column(String(16), primary_key=True)
    seconds: Mapped[float] = mapped_column(default=0.0)
    requests: Mapped[float] = mapped_column(default=0.0)
    bytes: Mapped[float] = mapped_column(default=0.0)
    tokens: Mapped[float] = mapped_column(default=0.0)
    squares: Mapped[float] = mapped_column(default=0.0)
    measurements: Mapped[float] = mapped_column("parts", default=0.0)
    measured_at: Mapped[float] = mapped_column(default=0.0)
    request_seconds: Mapped[float] = mapped_column(server_default="0", default=0.0)
    request_squares: Mapped[float] = mapped_column(server_default="0", default=0.0)
    began_at: Mapped[float] = mapped_column(server_default="0", default=0.0)
    in_flight_limit: Mapped[float] = mapped_column(server_default="0", default=0.0)


class Duration(Base):
    """How long something takes that is no answering: sums over its times, which decay (store.speeds)."""

    __tablename__ = "durations"
    kind: Mapped[str] = mapped_column(String(16), primary_key=True)
    name: Mapped[str] = mapped_column(String(256), primary_key=True)
    variant: Mapped[str] = mapped_column(String(256), primary_key=True)
    number: Mapped[float]
    units: Mapped[float]
    seconds: Mapped[float]
    units_squared: Mapped[float]
    units_seconds: Mapped[float]
    seconds_squared: Mapped[float]


class Usage(Base):
    """What engines have computed of a batch's requests to a model on one day, with the prices at that time.

    `day` counts days of UTC since 1970. Amounts are those of batchyard.tariffs.Amounts, prices those of its Prices, all
    null without a tariff. There is no foreign key to the batch, which is deleted sooner. `key_id` is that of the key
    which has created the batch or its job; a schedule's batch has none.
    """

    __tablename__ = "usage"
    batch_id: Mapped[str] = mapped_column(String(64), primary_key=True)
    model: Mapped[str] = mapped_column(String(256), primary_key=True)
    day: Mapped[int] = mapped_column(primary_key=True, index=True)
    project_id: Mapped[str] = mapped_column(ForeignKey("projects.id"))
    job_id: Mapped[str | None] = mapped_column(String(64), index=True)
    key_id: Mapped[str | None] = mapped_column(String(64))
    requests: Mapped[int]
    failed: Mapped[int]
    shared_requests: Mapped[int]
    input_tokens: Mapped[int]
    cached_tokens: Mapped[int]
    output_tokens: Mapped[int]
    bytes: Mapped[int]
    milliseconds: Mapped[int]
    currency: Mapped[str | None] = mapped_column(String(3))
    input_price: Mapped[int | None]
    cached_price: Mapped[int | None]
    output_price: Mapped[int | None]
    hour_price: Mapped[int | None]
    __table_args__ = (Index(None, "project_id", "day"),)


class Budget(Base):
    """What a project may spend in a month: `amount` in millionths of `currency` (store.accounting.budgets).

    `warn_at` is in percent. `when_exceeded`: what runs then is to `finish`, or to `pause`.
    """

    __tablename__ = "budgets"
    project_id: Mapped[str] = mapped_column(ForeignKey("projects.id"), primary_key=True)
    amount: Mapped[int]
    currency: Mapped[str] = mapped_column(String(3))
    warn_at: Mapped[int]
    when_exceeded: Mapped[str] = mapped_column(String(8))
    notice: Mapped[str | None] = mapped_column(String(32))


class CachedAnswer(Base):
    """An answer that equal requests of the same project get without running (store.cache).

    `bytes` counts towards the project's `cache_bytes`.
    """

    __tablename__ = "cached_answers"
    project_id: Mapped[str] = mapped_column(ForeignKey("projects.id"), primary_key=True)
    key: Mapped[str] = mapped_column(String(64), primary_key=True)
    body: Mapped[bytes]
    input_tokens: Mapped[int]
    cached_tokens: Mapped[int]
    output_tokens: Mapped[int]
    bytes: Mapped[int]
    used_at: Mapped[float]
    # The index alone serves both the oldest answers and the sum of all.
    __table_args__ = (Index(None, "project_id", "used_at", "bytes"),)


class Event(Base):
    """A change of a batch or of a job, written in the transaction of that change, or what a client has done.

    The latter has the id and the name of the client's key, and may be about something else: `data` has its id.
    """

    __tablename__ = "events"
    id: Mapped[str] = mapped_column(String(64), primary_key=True)
    project_id: Mapped[str] = mapped_column(ForeignKey("projects.id"))
    batch_id: Mapped[str | None] = mapped_column(ForeignKey("batches.id"))
    job_id: Mapped[str | None] = mapped_column(String(64))
    type: Mapped[str] = mapped_column(String(64))
    key_id: Mapped[str | None] = mapped_column(String(64))
    key_name: Mapped[str | None] = mapped_column(String(128))
    data: Mapped[dict[str, Any]]
    created_at: Mapped[int]
    __table_args__ = (Index(None, "batch_id", "type"), Index(None, "job_id", "type"), Index(None, "project_id", "id"))


class Webhook(Base):
    """A receiver of a project's events. Its secrets are in plain text, since they sign each request.

    `old_secret` is the previous one. It signs too until `old_secret_until`.
    """

    __tablename__ = "webhooks"
    id: Mapped[str] = mapped_column(String(64), primary_key=True)
    project_id: Mapped[str] = mapped_column(ForeignKey("projects.id"))
    name: Mapped[str] = mapped_column(String(128))
    url: Mapped[str] = mapped_column(String(2048))
    event_types: Mapped[list[str]]
    secret: Mapped[str] = mapped_column(String(128))
    old_secret: Mapped[str | None] = mapped_column(String(128))
    old_secret_until: Mapped[int | None]
    enabled: Mapped[bool] = mapped_column(default=True)
    created_at: Mapped[int]
    updated_at: Mapped[int]
    __table_args__ = (Index(None, "project_id", "id"),)


class Delivery(Base):
    """A delivery of one event to one webhook: `pending`, `sending`, `delivered`, or `failed` for good.

    `attempts` counts begun attempts. A delivery that is still `sending` at `next_attempt_at` is sent again.
    """

    __tablename__ = "deliveries"
    id: Mapped[str] = mapped_column(String(64), primary_key=True)
    project_id: Mapped[str] = mapped_column(ForeignKey("projects.id"))
    webhook_id: Mapped[str] = mapped_column(ForeignKey("webhooks.id"))
    event_id: Mapped[str] = mapped_column(ForeignKey("events.id"), index=True)
    state: Mapped[str] = mapped_column(String(16), default="pending")
    attempts: Mapped[int] = mapped_column(default=0)
    next_attempt_at: Mapped[float]
    status_code: Mapped[int | None]
    error: Mapped[str | None]
    created_at: Mapped[int]
    delivered_at: Mapped[int | None]
    __table_args__ = (Index(None, "state", "next_attempt_at"), Index(None, "webhook_id", "id"))


class Schedule(Base):
    """A recurring batch or job. `batch` or `job` holds the fields of its create body, `input` the source of each run.

    `input_sha256` keeps the input's content. `next_run_at` is null while the schedule is paused. `version` rises with
    every change by a client.
    """

    __tablename__ = "schedules"
    id: Mapped[str] = mapped_column(String(64), primary_key=True)
    project_id: Mapped[str] = mapped_column(ForeignKey("projects.id"))
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
    created_at: Mapped[int]
    __table_args__ = (Index(None, "project_id", "id"), Index(None, "next_run_at"))


class ScheduleRun(Base):
    """A run of a schedule and its outcome. A scheduled time has at most one run.

    A manual run has no `scheduled_at`. `missed_from` is the first of the missed times before this one that get no run
    of their own.
    """

    __tablename__ = "schedule_runs"
    id: Mapped[str] = mapped_column(String(64), primary_key=True)
    project_id: Mapped[str] = mapped_column(ForeignKey("projects.id"))
    schedule_id: Mapped[str] = mapped_column(ForeignKey("schedules.id"))
    scheduled_at: Mapped[int | None]
    missed_from: Mapped[int | None]
    state: Mapped[str] = mapped_column(String(16))
    batch_id: Mapped[str | None] = mapped_column(ForeignKey("batches.id"), index=True)
    job_id: Mapped[str | None] = mapped_column(String(64), index=True)
    reason: Mapped[str | None]
    created_at: Mapped[int]
    __table_args__ = (UniqueConstraint("schedule_id", "scheduled_at"), Index(None, "schedule_id", "id"))
