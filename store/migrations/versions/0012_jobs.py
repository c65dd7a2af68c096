"""jobs: their records, batches that are their stages, and their events"""

import sqlalchemy as sa
from alembic import op

revision = "0012"
down_revision = "0011"

ID = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
COUNTS = (
    *("total", "admitted", "completed", "failed", "stuck", "expired_items", "cancelled_items"),
    *("waiting_for_verdict", "restarted", "reused"),
)
TIMES = [
    f"{status}_at"
    for status in ("in_progress", "finalizing", "completed", "failed", "expired", "cancelling", "cancelled")
]


def upgrade() -> None:
    _create_jobs()
    _create_parts_of_jobs()
    for column in (
        sa.Column("planned", sa.Boolean(), nullable=False, server_default=sa.false()),
        sa.Column("job_id", sa.String(64), nullable=True),
        sa.Column("stage", sa.String(128), nullable=True),
        sa.Column("open", sa.Boolean(), nullable=False, server_default=sa.false()),
    ):
        op.add_column("batches", column)
    op.create_index(op.f("ix_batches_job_id"), "batches", ["job_id"])
    op.execute("UPDATE batches SET planned = true WHERE plan_sha256 IS NOT NULL")
    op.add_column("segments", sa.Column("plan_sha256", sa.String(64), nullable=True))
    op.add_column("segments", sa.Column("row_group", sa.BigInteger(), nullable=True))
    op.create_index(op.f("ix_segments_plan_sha256"), "segments", ["plan_sha256"])
    with op.batch_alter_table("events") as events:
        events.alter_column("batch_id", existing_type=sa.String(64), nullable=True)
        events.add_column(sa.Column("job_id", sa.String(64), nullable=True))
    op.create_index(op.f("ix_events_job_id_type"), "events", ["job_id", "type"])
    op.add_column("schedules", sa.Column("job", sa.JSON(), nullable=True))
    op.add_column("schedule_runs", sa.Column("job_id", sa.String(64), nullable=True))
    op.create_index(op.f("ix_schedule_runs_job_id"), "schedule_runs", ["job_id"])


def _create_jobs() -> None:
    op.create_table(
        "jobs",
        sa.Column("id", sa.String(64), nullable=False),
        sa.Column("project_id", sa.String(64), nullable=False),
        sa.Column("name", sa.String(128), nullable=True),
        sa.Column("recipe", sa.String(128), nullable=False),
        sa.Column("recipe_sha256", sa.String(64), nullable=False),
        sa.Column("completion_window", sa.String(16), nullable=False),
        sa.Column("input_file_id", sa.String(64), nullable=True),
        sa.Column("input_sha256", sa.String(64), nullable=False),
        sa.Column("input_name", sa.String(512), nullable=False),
        sa.Column("items_sha256", sa.String(64), nullable=True),
        sa.Column("options", sa.JSON(), nullable=False),
        sa.Column("seed", sa.BigInteger(), nullable=False),
        sa.Column("models", sa.JSON(), nullable=False),
        sa.Column("simulated", sa.Boolean(), nullable=False),
        sa.Column("config_sha256", sa.String(64), nullable=False),
        sa.Column("work_sha256", sa.String(64), nullable=False),
        sa.Column("status", sa.String(16), nullable=False),
        sa.Column("outcome", sa.String(16), nullable=True),
        *(sa.Column(name, sa.BigInteger(), nullable=False) for name in ("created_at", "expires_at", "due_at")),
        sa.Column("infeasible", sa.Boolean(), nullable=False),
        sa.Column("sla", sa.String(16), nullable=False),
        *(sa.Column(name, sa.BigInteger(), nullable=True) for name in TIMES),
        *(sa.Column(name, sa.BigInteger(), nullable=False) for name in COUNTS),
        sa.Column("counters", sa.JSON(), nullable=False),
        sa.Column("ahead", sa.JSON(), nullable=True),
        sa.Column("metrics", sa.JSON(), nullable=True),
        sa.Column("report", sa.JSON(), nullable=True),
        sa.Column("metadata", sa.JSON(), nullable=True),
        sa.Column("post_process", sa.JSON(), nullable=False),
        sa.Column("output_expires_after", sa.BigInteger(), nullable=True),
        sa.Column("errors", sa.JSON(), nullable=True),
        sa.Column("depends_on", sa.JSON(), nullable=False),
        sa.Column("answers_from", sa.String(64), nullable=True),
        sa.Column("retry_of", sa.String(64), nullable=True),
        sa.Column("parent_id", sa.String(64), nullable=True),
        sa.Column("child_key", sa.String(256), nullable=True),
        sa.Column("variant", sa.String(128), nullable=True),
        sa.Column("idempotency_key", sa.String(255), nullable=True),
        sa.Column("idempotency_sha256", sa.String(64), nullable=True),
        sa.Column("attempts", sa.BigInteger(), nullable=False),
        sa.Column("attempt_error", sa.String(), nullable=True),
        sa.Column("epoch", sa.BigInteger(), nullable=False),
        sa.Column("holder", sa.String(256), nullable=True),
        sa.Column("lease_expires_at", sa.Double(), nullable=True),
        sa.ForeignKeyConstraint(["project_id"], ["projects.id"], name="fk_jobs_project_id"),
        sa.PrimaryKeyConstraint("id", name="pk_jobs"),
    )
    for columns in (
        *(["project_id", "id"], ["status", "expires_at"], ["project_id", "config_sha256"]),
        *(["input_file_id"], ["input_sha256"], ["items_sha256"], ["retry_of"]),
    ):
        op.create_index(op.f(f"ix_jobs_{'_'.join(columns)}"), "jobs", columns)
    for columns in (["project_id", "idempotency_key"], ["parent_id", "child_key"]):
        op.create_index(op.f(f"ix_jobs_{'_'.join(columns)}"), "jobs", columns, unique=True)


def _create_parts_of_jobs() -> None:
    op.create_table(
        "job_stages",
        sa.Column("job_id", sa.String(64), nullable=False),
        sa.Column("number", sa.BigInteger(), nullable=False),
        sa.Column("name", sa.String(128), nullable=False),
        sa.Column("batch_id", sa.String(64), nullable=True),
        sa.Column("cursor", sa.BigInteger(), nullable=False),
        sa.Column("issued", sa.BigInteger(), nullable=False),
        sa.Column("expected", sa.BigInteger(), nullable=True),
        sa.ForeignKeyConstraint(["job_id"], ["jobs.id"], name="fk_job_stages_job_id"),
        sa.ForeignKeyConstraint(["batch_id"], ["batches.id"], name="fk_job_stages_batch_id"),
        sa.PrimaryKeyConstraint("job_id", "number", name="pk_job_stages"),
    )
    op.create_index(op.f("ix_job_stages_batch_id"), "job_stages", ["batch_id"])
    op.create_table(
        "job_chunks",
        sa.Column("id", ID, nullable=False),
        sa.Column("job_id", sa.String(64), nullable=False),
        sa.Column("kind", sa.String(16), nullable=False),
        sa.Column("sha256", sa.String(64), nullable=False),
        sa.Column("rows", sa.BigInteger(), nullable=False),
        sa.Column("created_at", sa.Double(), nullable=False),
        sa.ForeignKeyConstraint(["job_id"], ["jobs.id"], name="fk_job_chunks_job_id"),
        sa.PrimaryKeyConstraint("id", name="pk_job_chunks"),
        sa.UniqueConstraint("job_id", "sha256", name="uq_job_chunks_job_id_sha256"),
    )
    op.create_index(op.f("ix_job_chunks_sha256"), "job_chunks", ["sha256"])
    op.create_table(
        "job_artifacts",
        sa.Column("job_id", sa.String(64), nullable=False),
        sa.Column("name", sa.String(128), nullable=False),
        sa.Column("file_id", sa.String(64), nullable=False),
        sa.Column("lines", sa.BigInteger(), nullable=True),
        sa.ForeignKeyConstraint(["job_id"], ["jobs.id"], name="fk_job_artifacts_job_id"),
        sa.ForeignKeyConstraint(["file_id"], ["files.id"], name="fk_job_artifacts_file_id"),
        sa.PrimaryKeyConstraint("job_id", "name", name="pk_job_artifacts"),
    )
    op.create_index(op.f("ix_job_artifacts_file_id"), "job_artifacts", ["file_id"])
    op.create_table(
        "job_replies",
        sa.Column("id", ID, nullable=False),
        sa.Column("job_id", sa.String(64), nullable=False),
        *(sa.Column(name, sa.BigInteger(), nullable=False) for name in ("position", "life", "turn")),
        sa.Column("kind", sa.String(16), nullable=False),
        sa.Column("body", sa.JSON(), nullable=False),
        sa.Column("key_id", sa.String(64), nullable=True),
        sa.Column("created_at", sa.BigInteger(), nullable=False),
        sa.ForeignKeyConstraint(["job_id"], ["jobs.id"], name="fk_job_replies_job_id"),
        sa.PrimaryKeyConstraint("id", name="pk_job_replies"),
        sa.UniqueConstraint(
            *("job_id", "position", "life", "turn", "kind"), name="uq_job_replies_job_id_position_life_turn_kind"
        ),
    )
