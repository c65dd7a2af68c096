"""The records: projects, keys, files, batches, their segments, parts and artifacts.

Times are Unix seconds: integers where a client sees them, floats where only leases and rates use them.
"""

from __future__ import annotations

import secrets
import time
from typing import Any, ClassVar

from sqlalchemy import JSON, BigInteger, ForeignKey, Index, Integer, MetaData, String, UniqueConstraint
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column


def new_id(prefix: str) -> str:
    """An id that sorts by the time it was made, so that it serves as a stable list cursor."""
    return f"{prefix}{time.time_ns() // 1000:014x}{secrets.token_hex(9)}"


def now() -> int:
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
    type_annotation_map: ClassVar[dict[Any, Any]] = {dict[str, Any]: JSON, list[dict[str, Any]]: JSON, int: BigInteger}


class Project(Base):
    """A tenant: every file, batch and key belongs to one."""

    __tablename__ = "projects"
    id: Mapped[str] = mapped_column(String(64), primary_key=True)
    name: Mapped[str] = mapped_column(String(128), unique=True)
    created_at: Mapped[int]


class ApiKey(Base):
    """An API key; only the SHA-256 of its secret is kept."""

    __tablename__ = "api_keys"
    id: Mapped[str] = mapped_column(String(64), primary_key=True)
    project_id: Mapped[str] = mapped_column(ForeignKey("projects.id"))
    secret_sha256: Mapped[str] = mapped_column(String(64))
    admin: Mapped[bool]
    created_at: Mapped[int]
    revoked_at: Mapped[int | None]


class File(Base):
    """A name for content: the bytes live once in the artifact store, under their SHA-256."""

    __tablename__ = "files"
    id: Mapped[str] = mapped_column(String(64), primary_key=True)
    project_id: Mapped[str] = mapped_column(ForeignKey("projects.id"))
    filename: Mapped[str] = mapped_column(String(512))
    purpose: Mapped[str] = mapped_column(String(32))
    bytes: Mapped[int]
    sha256: Mapped[str] = mapped_column(String(64), index=True)
    created_at: Mapped[int]
    expires_at: Mapped[int | None]
    __table_args__ = (Index(None, "project_id", "id"),)


class Leased:
    """A record that one holder at a time may work on.

    `epoch` rises each time the work changes hands; a write names the epoch it was given, so a holder whose
    epoch is gone cannot write. A lease with no holder is a pause before housekeeping starts the work again.
    """

    epoch: Mapped[int] = mapped_column(default=0)
    holder: Mapped[str | None] = mapped_column(String(256))
    lease_expires_at: Mapped[float | None]


class Batch(Leased, Base):
    """A batch of requests; field names are those of OpenAI's batch object where it has them."""

    __tablename__ = "batches"
    id: Mapped[str] = mapped_column(String(64), primary_key=True)
    project_id: Mapped[str] = mapped_column(ForeignKey("projects.id"))
    endpoint: Mapped[str] = mapped_column(String(64))
    completion_window: Mapped[str] = mapped_column(String(16))
    input_file_id: Mapped[str] = mapped_column(String(64))
    input_sha256: Mapped[str] = mapped_column(String(64))
    status: Mapped[str] = mapped_column(String(16))
    outcome: Mapped[str | None] = mapped_column(String(16))
    model: Mapped[str | None] = mapped_column(String(256))
    models: Mapped[dict[str, Any]] = mapped_column(default=dict)
    simulated: Mapped[bool] = mapped_column(default=False)
    created_at: Mapped[int]
    expires_at: Mapped[int]
    in_progress_at: Mapped[int | None]
    finalizing_at: Mapped[int | None]
    completed_at: Mapped[int | None]
    failed_at: Mapped[int | None]
    expired_at: Mapped[int | None]
    cancelling_at: Mapped[int | None]
    cancelled_at: Mapped[int | None]
    total: Mapped[int] = mapped_column(default=0)
    completed: Mapped[int] = mapped_column(default=0)
    failed: Mapped[int] = mapped_column(default=0)
    expired: Mapped[int] = mapped_column(default=0)
    cancelled: Mapped[int] = mapped_column(default=0)
    input_tokens: Mapped[int] = mapped_column(default=0)
    cached_tokens: Mapped[int] = mapped_column(default=0)
    output_tokens: Mapped[int] = mapped_column(default=0)
    request_metadata: Mapped[dict[str, Any] | None] = mapped_column("metadata")
    post_process: Mapped[list[dict[str, Any]]] = mapped_column(default=list)
    output_expires_after: Mapped[int | None]
    errors: Mapped[list[dict[str, Any]] | None]
    plan_sha256: Mapped[str | None] = mapped_column(String(64))
    output_file_id: Mapped[str | None] = mapped_column(String(64))
    error_file_id: Mapped[str | None] = mapped_column(String(64))
    retry_of: Mapped[str | None] = mapped_column(String(64), index=True)
    idempotency_key: Mapped[str | None] = mapped_column(String(255))
    idempotency_sha256: Mapped[str | None] = mapped_column(String(64))
    __table_args__ = (
        Index(None, "project_id", "id"),
        Index(None, "status", "expires_at"),
        Index(None, "project_id", "status"),
        Index(None, "project_id", "idempotency_key", unique=True),
    )


class Segment(Leased, Base):
    """A run of a batch's requests that is executed as one task; `number` is its row group in the plan."""

    __tablename__ = "segments"
    id: Mapped[int] = mapped_column(BigInteger().with_variant(Integer, "sqlite"), primary_key=True)
    batch_id: Mapped[str] = mapped_column(ForeignKey("batches.id"))
    number: Mapped[int]
    model: Mapped[str] = mapped_column(String(256))
    requests: Mapped[int]
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


class Part(Base):
    """Answers a segment has appended: an artifact that holds them, and what they add up to."""

    __tablename__ = "parts"
    id: Mapped[int] = mapped_column(BigInteger().with_variant(Integer, "sqlite"), primary_key=True)
    batch_id: Mapped[str] = mapped_column(ForeignKey("batches.id"))
    segment_id: Mapped[int] = mapped_column(ForeignKey("segments.id"))
    sha256: Mapped[str] = mapped_column(String(64), index=True)
    completed: Mapped[int]
    failed: Mapped[int]
    input_tokens: Mapped[int]
    cached_tokens: Mapped[int]
    output_tokens: Mapped[int]
    created_at: Mapped[float]
    __table_args__ = (Index(None, "batch_id", "created_at"), Index(None, "segment_id"))


class Artifact(Base):
    """A file that a batch produced, under the name it has in that batch."""

    __tablename__ = "artifacts"
    batch_id: Mapped[str] = mapped_column(ForeignKey("batches.id"), primary_key=True)
    name: Mapped[str] = mapped_column(String(128), primary_key=True)
    file_id: Mapped[str] = mapped_column(ForeignKey("files.id"))
    lines: Mapped[int | None]
