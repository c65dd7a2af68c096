"""Jobs: a job is one run of a recipe over the items of an input."""

from typing import Any, Literal

from sqlalchemy import BigInteger, ForeignKey, Index, String, UniqueConstraint, false
from sqlalchemy.orm import Mapped, mapped_column

from store.records.base import ID, Base, WorkColumns, now

ChunkKind = Literal["result", "judgement"]
ReplyKind = Literal["verdict", "resolve", "requeue"]


class Job(WorkColumns, Base):
    """A job.

    `input_sha256` and `input_name` are empty without an input of its own. The suffix of `input_name` is the format.
    `depends_on` has `id` and `when` of each job or batch that it waits for, `retry_of` a job whose items it takes.
    `items_sha256` is the items file (store.formats.items), null before validation, unless the items are those of
    another job; `total` is 0 before validation. `config_sha256` identifies all that a job's outcome depends on,
    `work_sha256` all that its requests do. The items begun, in the order of the items file, are the first `admitted`.
    An ended item is one of `completed`, `failed`, `stuck`, `expired_items`, `cancelled_items`; when all have ended,
    these add up to `total`. `restarted` counts items that began again since their recipe's file had changed, `reused`
    requests that another job had answered. `ahead` has the `requests`, by model, that no batch has yet (null if nobody
    can know), and the counts of `turns` that say so (see jobs.running.turns). `amendments` counts items that were
    resolved after the job's end, `unwritten` those that no artifact has yet.

    A job with a plan has `sample_rows`: so many of its items, drawn at random, are the first ones. While it is
    `sampling`, no others begin; it is paused when these have ended, and stops `sampling` when it is resumed.
    `stop_when` has the limits that pause it, as those of a batch.
    """

    __tablename__ = "jobs"
    name: Mapped[str | None] = mapped_column(String(128))
    recipe: Mapped[str] = mapped_column(String(128))
    recipe_sha256: Mapped[str] = mapped_column(String(64))
    input_file_id: Mapped[str | None] = mapped_column(String(64), index=True)
    input_sha256: Mapped[str] = mapped_column(String(64), default="", index=True)
    input_name: Mapped[str] = mapped_column(String(512), default="")
    items_sha256: Mapped[str | None] = mapped_column(String(64), index=True)
    options: Mapped[dict[str, Any]]
    seed: Mapped[int] = mapped_column(default=0)
    config_sha256: Mapped[str] = mapped_column(String(64))
    work_sha256: Mapped[str] = mapped_column(String(64))
    infeasible: Mapped[bool] = mapped_column(default=False)
    sample_rows: Mapped[int | None]
    sampling: Mapped[bool] = mapped_column(default=False, server_default=false())
    stop_when: Mapped[dict[str, Any] | None]
    admitted: Mapped[int] = mapped_column(default=0)
    completed: Mapped[int] = mapped_column(default=0)
    failed: Mapped[int] = mapped_column(default=0)
    stuck: Mapped[int] = mapped_column(default=0)
    expired_items: Mapped[int] = mapped_column(default=0)
    cancelled_items: Mapped[int] = mapped_column(default=0)
    waiting_for_verdict: Mapped[int] = mapped_column(default=0)
    restarted: Mapped[int] = mapped_column(default=0)
    reused: Mapped[int] = mapped_column(default=0)
    amendments: Mapped[int] = mapped_column(default=0)
    unwritten: Mapped[int] = mapped_column(default=0, index=True)
    counters: Mapped[dict[str, Any]] = mapped_column(default=dict)
    ahead: Mapped[dict[str, Any] | None]
    metrics: Mapped[dict[str, Any] | None]
    report: Mapped[dict[str, Any] | None]
    depends_on: Mapped[list[dict[str, Any]]] = mapped_column(default=list)
    answers_from: Mapped[str | None] = mapped_column(String(64))
    only_judges: Mapped[bool] = mapped_column(default=False)
    parent_id: Mapped[str | None] = mapped_column(String(64))
    child_key: Mapped[str | None] = mapped_column(String(256))
    variant: Mapped[str | None] = mapped_column(String(128))

    @property
    def unended(self) -> int:
        """The items that end with the job, since they have not ended before."""
        return self.total - self.completed - self.failed - self.stuck

    __table_args__ = (
        Index(None, "project_id", "id"),
        Index(None, "status", "expires_at"),
        Index(None, "project_id", "config_sha256"),
        Index(None, "project_id", "idempotency_key", unique=True),
        Index(None, "parent_id", "child_key", unique=True),
    )


class JobStage(Base):
    """A stage of a job. Its batch is made with its first segment.

    Of the batch's result chunks, those up to the one with id `cursor` have been read. `issued` counts its requests,
    `expected` all that it will have, null if unknown.
    """

    __tablename__ = "job_stages"
    job_id: Mapped[str] = mapped_column(ForeignKey("jobs.id"), primary_key=True)
    number: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    name: Mapped[str] = mapped_column(String(128))
    batch_id: Mapped[str | None] = mapped_column(ForeignKey("batches.id"), index=True)
    cursor: Mapped[int] = mapped_column(BigInteger, default=0)
    issued: Mapped[int] = mapped_column(default=0)
    expected: Mapped[int | None]


class JobChunk(Base):
    """A chunk of a job's results or judgements (store.formats.job_chunks)."""

    __tablename__ = "job_chunks"
    id: Mapped[int] = mapped_column(ID, primary_key=True)
    job_id: Mapped[str] = mapped_column(ForeignKey("jobs.id"))
    kind: Mapped[str] = mapped_column(String(16))
    sha256: Mapped[str] = mapped_column(String(64), index=True)
    rows: Mapped[int]
    created_at: Mapped[float]
    __table_args__ = (UniqueConstraint("job_id", "sha256"),)


class JobReply(Base):
    """A person's or CI's reply to one turn of an item. `turn` and `life` count from 1."""

    __tablename__ = "job_replies"
    id: Mapped[int] = mapped_column(ID, primary_key=True)
    job_id: Mapped[str] = mapped_column(ForeignKey("jobs.id"))
    position: Mapped[int]
    life: Mapped[int]
    turn: Mapped[int]
    kind: Mapped[str] = mapped_column(String(16))
    body: Mapped[dict[str, Any]]
    key_id: Mapped[str | None] = mapped_column(String(64))
    created_at: Mapped[int] = mapped_column(default=now)
    __table_args__ = (UniqueConstraint("job_id", "position", "life", "turn", "kind"), Index(None, "job_id", "id"))
