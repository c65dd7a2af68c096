"""Batches: their segments, and the result chunks of these."""

from typing import Any

from sqlalchemy import ForeignKey, Index, LargeBinary, String, UniqueConstraint, false
from sqlalchemy.orm import Mapped, mapped_column

from batchyard.endpoints.guards import Guard
from store.records.base import DOCUMENT, ID, AnswerAmounts, Base, Leased, WorkColumns, id_column, now


class Batch(WorkColumns, AnswerAmounts, Base):
    """A batch of requests.

    An `infeasible` batch could not end within its window even if it ran alone, so it runs after all others.
    `input_sha256` is empty if there was no such file. `timeline` is stored at the end (store.segments.timeline), before
    the result chunks are deleted. `latencies` has the histogram (batchyard.comparing.histogram) of the seconds of its
    requests, by model and request class. `engine_deaths` has the number of deaths by model, how many had which reason,
    and the last one (store.holds.record_death). `seconds_sha256` is the artifact with the seconds of each request
    (store.formats.seconds), `rows_sha256` the one with what became of each (store.formats.rows); both are written at
    the end. `on_invalid` says what lines that are no valid requests do: `fail` the batch, or are skipped and become
    error lines (`skip`). `warnings` are entries like those of `errors`: of the first request, and once the batch is
    planned of all. `name` is what people call it: its metadata's `name`, or its input file's. `priority` orders it
    among the batches of its project (batchyard.statuses.PRIORITIES).

    A batch with a plan has `sample_rows`: so many of its requests, drawn at random, make up its first
    `sample_segments`. While it is `sampling`, no other segments run; then it is paused. `stop_when` has the limits that
    pause it (store.accounting.stopping); one that has paused it is removed. `refused` counts what failed in validation.
    `guard` is what ends answers that go wrong (batchyard.endpoints.guards).
    `verification` is what the newest batch with the step `verify` has shown of its answers.

    A batch is `planned` once its segments can run. An `open` one, a client's or a `stage` of the job `job_id`, may
    still get more segments. Such a batch has no input file before it is merged, and no plan: its segments name theirs.
    """

    __tablename__ = "batches"
    name: Mapped[str | None] = mapped_column(String(512))
    endpoint: Mapped[str] = mapped_column(String(64))
    input_file_id: Mapped[str] = mapped_column(String(64), index=True)
    input_sha256: Mapped[str] = mapped_column(String(64))
    model: Mapped[str | None] = mapped_column(String(256))
    priority: Mapped[int] = mapped_column(default=0, server_default="0")
    infeasible: Mapped[bool] = mapped_column("out_of_reach", default=False)
    expired: Mapped[int] = mapped_column(default=0)
    cancelled: Mapped[int] = mapped_column(default=0)
    on_invalid: Mapped[str] = mapped_column(String(8), default="fail", server_default="fail")
    warnings: Mapped[list[dict[str, Any]] | None]
    sample_rows: Mapped[int | None]
    sample_segments: Mapped[int | None]
    stop_when: Mapped[dict[str, Any] | None]
    guard: Mapped[Guard | None] = mapped_column(String(16))
    refused: Mapped[int] = mapped_column(default=0, server_default="0")
    sampling: Mapped[bool] = mapped_column(default=False, server_default=false())
    planned: Mapped[bool] = mapped_column(default=False)
    plan_sha256: Mapped[str | None] = mapped_column(String(64))
    job_id: Mapped[str | None] = mapped_column(String(64), index=True)
    stage: Mapped[str | None] = mapped_column(String(128))
    open: Mapped[bool] = mapped_column(default=False)
    output_file_id: Mapped[str | None] = mapped_column(String(64))
    error_file_id: Mapped[str | None] = mapped_column(String(64))
    timeline: Mapped[list[list[float]] | None] = mapped_column(DOCUMENT, deferred=True)
    latencies: Mapped[dict[str, Any] | None]
    engine_deaths: Mapped[dict[str, Any] | None]
    seconds_sha256: Mapped[str | None] = mapped_column(String(64), index=True)
    rows_sha256: Mapped[str | None] = mapped_column(String(64), index=True)
    verification: Mapped[dict[str, Any] | None]
    __table_args__ = (
        Index(None, "project_id", "id"),
        Index(None, "status", "expires_at"),
        Index(None, "project_id", "status"),
        Index(None, "project_id", "idempotency_key", unique=True),
    )


class Segment(Leased, Base):
    """A run of a batch's requests that is executed as one task.

    `number` is its row group in the batch's plan, unless it names another plan and a `row_group`. `bytes` counts
    its request bodies. `answered` counts the requests in its result chunks.
    """

    __tablename__ = "segments"
    id: Mapped[int] = mapped_column(ID, primary_key=True)
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


class ResultChunk(AnswerAmounts, Base):
    """A chunk of a segment's answers: the artifact that holds them (store.formats.chunks), and their amounts."""

    __tablename__ = "parts"
    id: Mapped[int] = mapped_column(ID, primary_key=True)
    batch_id: Mapped[str] = mapped_column(ForeignKey("batches.id"))
    segment_id: Mapped[int] = mapped_column(ForeignKey("segments.id"))
    sha256: Mapped[str] = mapped_column(String(64), index=True)
    created_at: Mapped[float]
    # A chunk whose COMMIT was unclear is appended again.
    __table_args__ = (Index(None, "batch_id", "created_at"), Index(None, "segment_id", "sha256", unique=True))


class Append(Base):
    """Requests that a client has added to an open batch, at once or not at all.

    They are `requests` lines of its input, from `first_line` on. `sha256` is of the `bytes` that were sent, which are
    not kept: the plan has the requests.
    """

    __tablename__ = "appends"
    id: Mapped[str] = id_column("append_")
    batch_id: Mapped[str] = mapped_column(ForeignKey("batches.id"))
    idempotency_key: Mapped[str | None] = mapped_column(String(255))
    sha256: Mapped[str] = mapped_column(String(64))
    bytes: Mapped[int]
    requests: Mapped[int]
    first_line: Mapped[int]
    created_at: Mapped[int] = mapped_column(default=now)
    __table_args__ = (Index(None, "batch_id", "idempotency_key", unique=True),)


class AppendedId(Base):
    """A custom_id of an open batch, as its BLAKE2b of 16 bytes: none may come twice."""

    __tablename__ = "appended_ids"
    batch_id: Mapped[str] = mapped_column(ForeignKey("batches.id"), primary_key=True)
    digest: Mapped[bytes] = mapped_column(LargeBinary(16), primary_key=True)
