"""What all records share: the base class, ids, times, and columns of several tables."""

import secrets
import time
from typing import Any, ClassVar, Literal, TypeVar

from sqlalchemy import JSON, BigInteger, ForeignKey, Integer, MetaData, String
from sqlalchemy.orm import DeclarativeBase, Mapped, MappedColumn, Session, mapped_column

Sla = Literal["on_track", "at_risk", "late"]
"""The outlook of an unfinished batch for its deadline."""
ID = BigInteger().with_variant(Integer, "sqlite")
"""The type of an id that the database counts."""
DOCUMENT = JSON(none_as_null=True)
"""The type of JSON, whose absence is SQL's NULL."""


def new_id(prefix: str) -> str:
    """Return an id that sorts by its creation time, so that it serves as a stable list cursor."""
    return f"{prefix}{time.time_ns() // 1000:014x}{secrets.token_hex(9)}"


def id_column(prefix: str) -> MappedColumn[str]:
    return mapped_column(String(64), primary_key=True, default=lambda: new_id(prefix))


def first_id(prefix: str, at: float) -> str:
    """Return an id that sorts before those created at `at` (Unix seconds) or later, and after all others."""
    return f"{prefix}{int(at * 1e6):014x}"


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
    type_annotation_map: ClassVar[dict[Any, Any]] = {
        dict[str, Any]: DOCUMENT,
        list[dict[str, Any]]: DOCUMENT,
        list[str]: DOCUMENT,
        int: BigInteger,
    }


Added = TypeVar("Added", bound=Base)


def added(session: Session, record: Added) -> Added:
    """Add a record in this transaction, and return it with its id."""
    session.add(record)
    session.flush()
    return record


class OfProject:
    project_id: Mapped[str] = mapped_column(ForeignKey("projects.id"))


class Leased:
    """Columns of a record that one holder at a time may work on.

    `epoch` rises with each new lease. A holder's writes name its epoch, so a former holder cannot write. A lease
    without a holder is a pause before housekeeping starts the work again.
    """

    epoch: Mapped[int] = mapped_column(default=0)
    holder: Mapped[str | None] = mapped_column(String(256))
    lease_expires_at: Mapped[float | None]


class AnswerAmounts:
    """Columns of the amounts that answers add up to.

    `cached_tokens` counts input tokens from the engine's prefix cache, `reasoning_tokens` output tokens as engines
    report them. The `shared_` columns count requests that were answered with another request's answer, and its tokens.
    `cut_off`, `empty`, `invalid` and `looped` count those of the completed whose answer ended at a limit of tokens, has
    no text, lacks the form that its request asks for, or was ended because it repeated itself.
    """

    completed: Mapped[int] = mapped_column(default=0)
    failed: Mapped[int] = mapped_column(default=0)
    input_tokens: Mapped[int] = mapped_column(default=0)
    cached_tokens: Mapped[int] = mapped_column(default=0)
    output_tokens: Mapped[int] = mapped_column(default=0)
    reasoning_tokens: Mapped[int] = mapped_column(default=0)
    shared_requests: Mapped[int] = mapped_column(default=0)
    shared_input_tokens: Mapped[int] = mapped_column(default=0)
    shared_output_tokens: Mapped[int] = mapped_column(default=0)
    cut_off: Mapped[int] = mapped_column(default=0)
    empty: Mapped[int] = mapped_column(default=0)
    invalid: Mapped[int] = mapped_column(default=0)
    looped: Mapped[int] = mapped_column(default=0, server_default="0")


AMOUNTS = tuple(AnswerAmounts.__annotations__)


class WorkColumns(OfProject, Leased):
    """Columns of batches and of jobs. Names are those of OpenAI's batch object where it has them.

    `due_at` orders dispatch: it is the end of the completion window, or set by the project's tier. `created_by` is the
    id of the key that created it; a schedule's work has none. `traceparent` is the span above its own
    (batchyard.telemetry.traceparents). `paused_by` is what people call the client's key. While `paused_at` is set, none
    of its segments starts. Work that ends is not paused any more. `callback_url` gets the events of its end
    (store.webhooks.callbacks).
    """

    id: Mapped[str] = mapped_column(String(64), primary_key=True)
    created_by: Mapped[str | None] = mapped_column(String(64))
    completion_window: Mapped[str] = mapped_column(String(16))
    status: Mapped[str] = mapped_column(String(16))
    outcome: Mapped[str | None] = mapped_column(String(16))
    models: Mapped[dict[str, Any]] = mapped_column(default=dict)
    simulated: Mapped[bool] = mapped_column(default=False)
    created_at: Mapped[int]
    expires_at: Mapped[int]
    due_at: Mapped[int]
    sla: Mapped[str] = mapped_column(String(16), default="on_track")
    in_progress_at: Mapped[int | None]
    finalizing_at: Mapped[int | None]
    completed_at: Mapped[int | None]
    failed_at: Mapped[int | None]
    expired_at: Mapped[int | None]
    cancelling_at: Mapped[int | None]
    cancelled_at: Mapped[int | None]
    total: Mapped[int] = mapped_column(default=0)
    request_metadata: Mapped[dict[str, Any] | None] = mapped_column("metadata")
    post_process: Mapped[list[dict[str, Any]]] = mapped_column(default=list)
    output_expires_after: Mapped[int | None]
    callback_url: Mapped[str | None] = mapped_column(String(2048))
    errors: Mapped[list[dict[str, Any]] | None]
    retry_of: Mapped[str | None] = mapped_column(String(64), index=True)
    traceparent: Mapped[str | None] = mapped_column(String(55))
    idempotency_key: Mapped[str | None] = mapped_column(String(255))
    idempotency_sha256: Mapped[str | None] = mapped_column(String(64))
    attempts: Mapped[int] = mapped_column(default=0)
    attempt_error: Mapped[str | None]
    paused_at: Mapped[int | None]
    paused_by: Mapped[str | None] = mapped_column(String(128))
