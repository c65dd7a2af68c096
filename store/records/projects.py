"""Projects: keys and sessions, budgets and usage, and cached answers."""

from sqlalchemy import ForeignKey, Index, String
from sqlalchemy.orm import Mapped, mapped_column

from store.records.base import Base, OfProject, id_column, now


class Project(Base):
    """A tenant. Every file, batch and key belongs to one.

    `live_tier` is the one tier that its live requests may have, `none` for no live requests, null for all tiers.
    `max_segments` limits what its segments fill at once, null for no limit; `cache_bytes` its cached answers, null for
    no cache; `max_stored_bytes` its files, null for the deployment's limit. A batch or a job is erased
    `zero_retention_minutes` after its end, null for no such limit. The project is being erased since `erasing_at`.
    `recent_usage` is the seconds that its segments ran, which decay (store.speeds) from `recent_usage_at` on.
    """

    __tablename__ = "projects"
    id: Mapped[str] = id_column("proj_")
    name: Mapped[str] = mapped_column(String(128), unique=True)
    created_at: Mapped[int] = mapped_column(default=now)
    tier: Mapped[str | None] = mapped_column(String(64))
    max_segments: Mapped[int | None]
    cache_bytes: Mapped[int | None]
    max_stored_bytes: Mapped[int | None]
    live_tier: Mapped[str | None] = mapped_column(String(16))
    zero_retention_minutes: Mapped[int | None]
    erasing_at: Mapped[int | None]
    recent_usage: Mapped[float] = mapped_column("service", default=0.0)
    recent_usage_at: Mapped[float] = mapped_column("service_at", default=0.0)


class ApiKey(OfProject, Base):
    """An API key, with only the SHA-256 of its secret.

    Who signs in without one has a record here, too, which no secret opens (store.sessions.User).
    From `expires_at` on it opens nothing. `last_used_at` is written once in store.keys.USE_SECONDS at most.
    """

    __tablename__ = "api_keys"
    id: Mapped[str] = mapped_column(String(64), primary_key=True)
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


class Budget(Base):
    """What a project or one of its keys may use in a month (store.accounting.budgets).

    `key_id` is empty for the whole project. `amount` is in millionths of `currency`; null: no limit of the cost.
    `max_tokens` counts input and output; null: no limit. `version` rises when recorded costs change.
    `warn_at` is in percent. `when_exceeded`: what runs then is to `finish`, or to `pause`.
    """

    __tablename__ = "budgets"
    project_id: Mapped[str] = mapped_column(ForeignKey("projects.id"), primary_key=True)
    key_id: Mapped[str] = mapped_column(String(64), primary_key=True, default="")
    amount: Mapped[int | None]
    currency: Mapped[str | None] = mapped_column(String(3))
    max_tokens: Mapped[int | None]
    warn_at: Mapped[int]
    when_exceeded: Mapped[str] = mapped_column(String(8))
    notice: Mapped[str | None] = mapped_column(String(32))
    version: Mapped[int] = mapped_column(default=0)


class DailyUsage(OfProject, Base):
    """A day's computed usage of a batch by model, at the prices of that time.

    `day` counts days of UTC since 1970. Amounts are those of batchyard.tariffs.Amounts, prices those of its Prices, all
    null without a tariff. There is no foreign key to the batch, which is deleted sooner. `key_id` is that of the key
    which has created the batch or its job; a schedule's batch has none.
    """

    __tablename__ = "usage"
    batch_id: Mapped[str] = mapped_column(String(64), primary_key=True)
    model: Mapped[str] = mapped_column(String(256), primary_key=True)
    day: Mapped[int] = mapped_column(primary_key=True, index=True)
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


class CachedAnswer(Base):
    """An answer that equal requests of the same project get without running (store.cache).

    `bytes` counts towards the project's `cache_bytes`. `batch_id` is the batch that has computed it, null for those
    that were cached before it was noted.
    """

    __tablename__ = "cached_answers"
    project_id: Mapped[str] = mapped_column(ForeignKey("projects.id"), primary_key=True)
    key: Mapped[str] = mapped_column(String(64), primary_key=True)
    batch_id: Mapped[str | None] = mapped_column(String(64), index=True)
    body: Mapped[bytes]
    input_tokens: Mapped[int]
    cached_tokens: Mapped[int]
    output_tokens: Mapped[int]
    bytes: Mapped[int]
    used_at: Mapped[float]
    # The index alone serves both the oldest answers and the sum of all.
    __table_args__ = (Index(None, "project_id", "used_at", "bytes"),)
