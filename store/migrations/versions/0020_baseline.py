"""the tables"""

from typing import Any

import sqlalchemy as sa
from alembic import op

revision = "0020"  # as databases have it whose schema was made in twenty steps
down_revision = None

FLAG, WHOLE, JSON = sa.Boolean(), sa.BigInteger(), sa.JSON()
REAL: sa.Double[float] = sa.Double()
NUMBER = sa.BigInteger().with_variant(sa.Integer(), "sqlite")


def columns(type_: Any, names: str, nullable: bool = False, **options: Any) -> list[sa.Column[Any]]:
    """Return columns of one type, of names with blanks between."""
    return [sa.Column(name, type_, nullable=nullable, **options) for name in names.split()]


def upgrade() -> None:
    op.create_table(
        "durations",
        *columns(sa.String(16), "kind", primary_key=True),
        *columns(sa.String(256), "name variant", primary_key=True),
        *columns(REAL, "number units seconds units_squared units_seconds seconds_squared"),
    )
    op.create_table(
        "holds",
        *columns(sa.String(256), "model", primary_key=True),
        *columns(sa.String(), "reason"),
        *columns(WHOLE, "since attempts"),
        *columns(REAL, "retry_at"),
    )
    op.create_table(
        "projects",
        *columns(sa.String(64), "id", primary_key=True),
        *columns(sa.String(128), "name", unique=True),
        *columns(WHOLE, "created_at"),
        *columns(sa.String(64), "tier", nullable=True),
        *columns(WHOLE, "max_segments cache_bytes", nullable=True),
        *columns(REAL, "service service_at", server_default="0"),
    )
    op.create_table(
        "speeds",
        *columns(sa.String(256), "model", primary_key=True),
        *columns(sa.String(64), "config_sha256", primary_key=True),
        *columns(sa.String(16), "request_class", primary_key=True),
        *columns(REAL, "seconds requests bytes tokens squares parts"),
        *columns(REAL, "measured_at request_seconds request_squares began_at in_flight_limit", server_default="0"),
    )
    op.create_table(
        "api_keys",
        *columns(sa.String(64), "id", primary_key=True),
        sa.Column("project_id", sa.String(64), sa.ForeignKey("projects.id"), nullable=False),
        *columns(sa.String(64), "secret_sha256"),
        *columns(FLAG, "admin"),
        *columns(sa.String(128), "label", nullable=True),
        *columns(WHOLE, "created_at"),
        *columns(WHOLE, "expires_at last_used_at revoked_at", nullable=True),
    )
    op.create_table(
        "batches",
        *columns(sa.String(64), "id", primary_key=True),
        sa.Column("project_id", sa.String(64), sa.ForeignKey("projects.id"), nullable=False),
        *columns(sa.String(512), "name", nullable=True),
        *columns(
            sa.String(64), "created_by plan_sha256 output_file_id error_file_id idempotency_sha256", nullable=True
        ),
        *columns(sa.String(64), "endpoint input_sha256"),
        *columns(sa.String(16), "completion_window status"),
        *columns(sa.String(64), "input_file_id", index=True),
        *columns(sa.String(16), "outcome", nullable=True),
        *columns(sa.String(256), "model holder", nullable=True),
        *columns(JSON, "models post_process"),
        *columns(FLAG, "simulated"),
        *columns(
            WHOLE,
            "created_at expires_at total expired cancelled epoch completed failed input_tokens cached_tokens "
            "output_tokens",
        ),
        *columns(
            WHOLE,
            "due_at priority attempts shared_requests shared_input_tokens shared_output_tokens",
            server_default="0",
        ),
        *columns(FLAG, "out_of_reach", server_default=sa.text("false")),
        *columns(sa.String(16), "sla", server_default="on_track"),
        *columns(
            WHOLE,
            "in_progress_at finalizing_at completed_at failed_at expired_at cancelling_at cancelled_at "
            "output_expires_after paused_at",
            nullable=True,
        ),
        *columns(JSON, "metadata errors timeline latencies", nullable=True),
        *columns(sa.String(8), "on_invalid", server_default="fail"),
        *columns(FLAG, "planned open", server_default=sa.false()),
        *columns(sa.String(64), "job_id seconds_sha256 rows_sha256 retry_of", nullable=True, index=True),
        *columns(sa.String(128), "stage paused_by", nullable=True),
        *columns(sa.String(255), "idempotency_key", nullable=True),
        *columns(sa.String(), "attempt_error", nullable=True),
        *columns(REAL, "lease_expires_at", nullable=True),
        sa.Index(None, "project_id", "id"),
        sa.Index(None, "project_id", "idempotency_key", unique=True),
        sa.Index(None, "project_id", "status"),
        sa.Index(None, "status", "expires_at"),
    )
    op.create_table(
        "budgets",
        sa.Column("project_id", sa.String(64), sa.ForeignKey("projects.id"), primary_key=True),
        *columns(WHOLE, "amount warn_at"),
        *columns(sa.String(3), "currency"),
        *columns(sa.String(8), "when_exceeded"),
        *columns(sa.String(32), "notice", nullable=True),
    )
    op.create_table(
        "cached_answers",
        sa.Column("project_id", sa.String(64), sa.ForeignKey("projects.id"), primary_key=True),
        *columns(sa.String(64), "key", primary_key=True),
        *columns(sa.LargeBinary(), "body"),
        *columns(WHOLE, "input_tokens cached_tokens output_tokens bytes"),
        *columns(REAL, "used_at"),
        sa.Index(None, "project_id", "used_at", "bytes"),
    )
    op.create_table(
        "files",
        *columns(sa.String(64), "id", primary_key=True),
        sa.Column("project_id", sa.String(64), sa.ForeignKey("projects.id"), nullable=False),
        *columns(sa.String(512), "filename"),
        *columns(sa.String(32), "purpose"),
        *columns(WHOLE, "bytes created_at"),
        *columns(sa.String(64), "sha256", index=True),
        *columns(WHOLE, "expires_at", nullable=True, index=True),
        sa.Index(None, "project_id", "id"),
    )
    op.create_table(
        "jobs",
        *columns(sa.String(64), "id", primary_key=True),
        sa.Column("project_id", sa.String(64), sa.ForeignKey("projects.id"), nullable=False),
        *columns(sa.String(128), "name variant paused_by", nullable=True),
        *columns(sa.String(64), "created_by answers_from parent_id idempotency_sha256", nullable=True),
        *columns(sa.String(128), "recipe"),
        *columns(sa.String(64), "recipe_sha256 config_sha256 work_sha256"),
        *columns(sa.String(16), "completion_window status sla"),
        *columns(sa.String(64), "input_file_id items_sha256 retry_of", nullable=True, index=True),
        *columns(sa.String(64), "input_sha256", index=True),
        *columns(sa.String(512), "input_name"),
        *columns(JSON, "options models counters post_process depends_on"),
        *columns(
            WHOLE,
            "seed created_at expires_at due_at total admitted completed failed stuck expired_items "
            "cancelled_items waiting_for_verdict restarted reused attempts epoch",
        ),
        *columns(FLAG, "simulated infeasible"),
        *columns(sa.String(16), "outcome", nullable=True),
        *columns(
            WHOLE,
            "in_progress_at finalizing_at completed_at failed_at expired_at cancelling_at cancelled_at "
            "output_expires_after paused_at",
            nullable=True,
        ),
        *columns(WHOLE, "amendments", server_default="0"),
        *columns(WHOLE, "unwritten", server_default="0", index=True),
        *columns(JSON, "ahead metrics report metadata errors", nullable=True),
        *columns(sa.String(256), "child_key holder", nullable=True),
        *columns(sa.String(255), "idempotency_key", nullable=True),
        *columns(sa.String(), "attempt_error", nullable=True),
        *columns(REAL, "lease_expires_at", nullable=True),
        sa.Index(None, "parent_id", "child_key", unique=True),
        sa.Index(None, "project_id", "config_sha256"),
        sa.Index(None, "project_id", "id"),
        sa.Index(None, "project_id", "idempotency_key", unique=True),
        sa.Index(None, "status", "expires_at"),
    )
    op.create_table(
        "schedules",
        *columns(sa.String(64), "id", primary_key=True),
        sa.Column("project_id", sa.String(64), sa.ForeignKey("projects.id"), nullable=False),
        *columns(sa.String(128), "name cron"),
        *columns(sa.String(64), "timezone"),
        *columns(JSON, "input batch"),
        *columns(sa.String(64), "input_sha256", index=True),
        *columns(JSON, "job", nullable=True),
        *columns(sa.String(16), "overlap catch_up"),
        *columns(FLAG, "paused"),
        *columns(WHOLE, "next_run_at", nullable=True, index=True),
        *columns(WHOLE, "version created_at"),
        sa.Index(None, "project_id", "id"),
    )
    op.create_table(
        "usage",
        *columns(sa.String(64), "batch_id", primary_key=True),
        *columns(sa.String(256), "model", primary_key=True),
        *columns(WHOLE, "day", primary_key=True, autoincrement=False, index=True),
        sa.Column("project_id", sa.String(64), sa.ForeignKey("projects.id"), nullable=False),
        *columns(sa.String(64), "job_id", nullable=True, index=True),
        *columns(sa.String(64), "key_id", nullable=True),
        *columns(WHOLE, "requests failed shared_requests input_tokens cached_tokens output_tokens bytes milliseconds"),
        *columns(sa.String(3), "currency", nullable=True),
        *columns(WHOLE, "input_price cached_price output_price hour_price", nullable=True),
        sa.Index(None, "project_id", "day"),
    )
    op.create_table(
        "webhooks",
        *columns(sa.String(64), "id", primary_key=True),
        sa.Column("project_id", sa.String(64), sa.ForeignKey("projects.id"), nullable=False),
        *columns(sa.String(128), "name secret"),
        *columns(sa.String(2048), "url"),
        *columns(JSON, "event_types"),
        *columns(sa.String(128), "old_secret", nullable=True),
        *columns(WHOLE, "old_secret_until", nullable=True),
        *columns(FLAG, "enabled"),
        *columns(WHOLE, "created_at updated_at"),
        sa.Index(None, "project_id", "id"),
    )
    op.create_table(
        "artifacts",
        sa.Column("batch_id", sa.String(64), sa.ForeignKey("batches.id"), primary_key=True),
        *columns(sa.String(128), "name", primary_key=True),
        sa.Column("file_id", sa.String(64), sa.ForeignKey("files.id"), nullable=False, index=True),
        *columns(WHOLE, "lines", nullable=True),
    )
    op.create_table(
        "events",
        *columns(sa.String(64), "id", primary_key=True),
        sa.Column("project_id", sa.String(64), sa.ForeignKey("projects.id"), nullable=False),
        sa.Column("batch_id", sa.String(64), sa.ForeignKey("batches.id"), nullable=True),
        *columns(sa.String(64), "job_id key_id", nullable=True),
        *columns(sa.String(64), "type"),
        *columns(sa.String(128), "key_name", nullable=True),
        *columns(JSON, "data"),
        *columns(WHOLE, "created_at"),
        sa.Index(None, "batch_id", "type"),
        sa.Index(None, "job_id", "type"),
        sa.Index(None, "project_id", "id"),
    )
    op.create_table(
        "job_artifacts",
        sa.Column("job_id", sa.String(64), sa.ForeignKey("jobs.id"), primary_key=True),
        *columns(sa.String(128), "name", primary_key=True),
        sa.Column("file_id", sa.String(64), sa.ForeignKey("files.id"), nullable=False, index=True),
        *columns(WHOLE, "lines", nullable=True),
    )
    op.create_table(
        "job_chunks",
        *columns(NUMBER, "id", primary_key=True),
        sa.Column("job_id", sa.String(64), sa.ForeignKey("jobs.id"), nullable=False),
        *columns(sa.String(16), "kind"),
        *columns(sa.String(64), "sha256", index=True),
        *columns(WHOLE, "rows"),
        *columns(REAL, "created_at"),
        sa.UniqueConstraint("job_id", "sha256"),
    )
    op.create_table(
        "job_replies",
        *columns(NUMBER, "id", primary_key=True),
        sa.Column("job_id", sa.String(64), sa.ForeignKey("jobs.id"), nullable=False),
        *columns(WHOLE, "position life turn created_at"),
        *columns(sa.String(16), "kind"),
        *columns(JSON, "body"),
        *columns(sa.String(64), "key_id", nullable=True),
        sa.UniqueConstraint("job_id", "position", "life", "turn", "kind"),
        sa.Index(None, "job_id", "id"),
    )
    op.create_table(
        "job_stages",
        sa.Column("job_id", sa.String(64), sa.ForeignKey("jobs.id"), primary_key=True),
        *columns(WHOLE, "number", primary_key=True, autoincrement=False),
        *columns(sa.String(128), "name"),
        sa.Column("batch_id", sa.String(64), sa.ForeignKey("batches.id"), nullable=True, index=True),
        *columns(WHOLE, "cursor issued"),
        *columns(WHOLE, "expected", nullable=True),
    )
    op.create_table(
        "schedule_runs",
        *columns(sa.String(64), "id", primary_key=True),
        sa.Column("project_id", sa.String(64), sa.ForeignKey("projects.id"), nullable=False),
        sa.Column("schedule_id", sa.String(64), sa.ForeignKey("schedules.id"), nullable=False),
        *columns(WHOLE, "scheduled_at missed_from", nullable=True),
        *columns(sa.String(16), "state"),
        sa.Column("batch_id", sa.String(64), sa.ForeignKey("batches.id"), nullable=True, index=True),
        *columns(sa.String(64), "job_id", nullable=True, index=True),
        *columns(sa.String(), "reason", nullable=True),
        *columns(WHOLE, "created_at"),
        sa.UniqueConstraint("schedule_id", "scheduled_at"),
        sa.Index(None, "schedule_id", "id"),
    )
    op.create_table(
        "segments",
        *columns(NUMBER, "id", primary_key=True),
        sa.Column("batch_id", sa.String(64), sa.ForeignKey("batches.id"), nullable=False),
        *columns(WHOLE, "number requests attempts epoch"),
        *columns(sa.String(256), "model"),
        *columns(WHOLE, "bytes answered", server_default="0"),
        *columns(sa.String(16), "request_class", server_default="decode"),
        *columns(sa.String(64), "plan_sha256", nullable=True, index=True),
        *columns(WHOLE, "row_group", nullable=True),
        *columns(sa.String(16), "state"),
        *columns(REAL, "not_before"),
        *columns(JSON, "engine", nullable=True),
        *columns(sa.String(), "error", nullable=True),
        *columns(sa.String(256), "holder", nullable=True),
        *columns(REAL, "lease_expires_at", nullable=True),
        sa.UniqueConstraint("batch_id", "number"),
        sa.Index(None, "batch_id", "state"),
        sa.Index(None, "state", "model"),
    )
    op.create_table(
        "sessions",
        *columns(sa.String(64), "token_sha256", primary_key=True),
        sa.Column("key_id", sa.String(64), sa.ForeignKey("api_keys.id"), nullable=False),
        *columns(WHOLE, "expires_at", index=True),
    )
    op.create_table(
        "deliveries",
        *columns(sa.String(64), "id", primary_key=True),
        sa.Column("project_id", sa.String(64), sa.ForeignKey("projects.id"), nullable=False),
        sa.Column("webhook_id", sa.String(64), sa.ForeignKey("webhooks.id"), nullable=False),
        sa.Column("event_id", sa.String(64), sa.ForeignKey("events.id"), nullable=False, index=True),
        *columns(sa.String(16), "state"),
        *columns(WHOLE, "attempts created_at"),
        *columns(REAL, "next_attempt_at"),
        *columns(WHOLE, "status_code delivered_at", nullable=True),
        *columns(sa.String(), "error", nullable=True),
        sa.Index(None, "state", "next_attempt_at"),
        sa.Index(None, "webhook_id", "id"),
    )
    op.create_table(
        "parts",
        *columns(NUMBER, "id", primary_key=True),
        sa.Column("batch_id", sa.String(64), sa.ForeignKey("batches.id"), nullable=False),
        sa.Column("segment_id", NUMBER, sa.ForeignKey("segments.id"), nullable=False),
        *columns(sa.String(64), "sha256", index=True),
        *columns(REAL, "created_at"),
        *columns(WHOLE, "completed failed input_tokens cached_tokens output_tokens"),
        *columns(WHOLE, "shared_requests shared_input_tokens shared_output_tokens", server_default="0"),
        sa.Index(None, "batch_id", "created_at"),
        sa.Index(None, "segment_id", "sha256", unique=True),
    )
