"""what engines have computed of each batch by model and day, with its tariff, and budgets of projects"""

import sqlalchemy as sa
from alembic import op

revision = "0020"
down_revision = "0019"


def upgrade() -> None:
    sums = ("requests", "failed", "shared_requests", "input_tokens", "cached_tokens", "output_tokens")
    op.create_table(
        "usage",
        sa.Column("batch_id", sa.String(64), nullable=False),
        sa.Column("model", sa.String(256), nullable=False),
        sa.Column("day", sa.BigInteger(), nullable=False),
        sa.Column("project_id", sa.String(64), nullable=False),
        sa.Column("job_id", sa.String(64), nullable=True),
        sa.Column("key_id", sa.String(64), nullable=True),
        *(sa.Column(name, sa.BigInteger(), nullable=False) for name in (*sums, "bytes", "milliseconds")),
        sa.Column("currency", sa.String(3), nullable=True),
        *(sa.Column(f"{name}_price", sa.BigInteger(), nullable=True) for name in ("input", "cached", "output", "hour")),
        sa.ForeignKeyConstraint(["project_id"], ["projects.id"], name=op.f("fk_usage_project_id")),
        sa.PrimaryKeyConstraint("batch_id", "model", "day", name=op.f("pk_usage")),
    )
    op.create_index(op.f("ix_usage_day"), "usage", ["day"])
    op.create_index(op.f("ix_usage_job_id"), "usage", ["job_id"])
    op.create_index(op.f("ix_usage_project_id_day"), "usage", ["project_id", "day"])
    op.create_table(
        "budgets",
        sa.Column("project_id", sa.String(64), nullable=False),
        sa.Column("amount", sa.BigInteger(), nullable=False),
        sa.Column("currency", sa.String(3), nullable=False),
        sa.Column("warn_at", sa.BigInteger(), nullable=False),
        sa.Column("when_exceeded", sa.String(8), nullable=False),
        sa.Column("notice", sa.String(32), nullable=True),
        sa.ForeignKeyConstraint(["project_id"], ["projects.id"], name=op.f("fk_budgets_project_id")),
        sa.PrimaryKeyConstraint("project_id", name=op.f("pk_budgets")),
    )
    # Of several models nobody knows any more which one has computed what.
    op.execute(
        "INSERT INTO usage (batch_id, model, day, project_id, job_id, key_id, requests, failed, shared_requests,"
        " input_tokens, cached_tokens, output_tokens, bytes, milliseconds)"
        " SELECT id, model, COALESCE(completed_at, expired_at, cancelled_at, failed_at, in_progress_at, created_at)"
        " / 86400, project_id, job_id, created_by, completed + failed, failed, shared_requests,"
        " input_tokens - shared_input_tokens,"
        " CASE WHEN cached_tokens < input_tokens - shared_input_tokens THEN cached_tokens"
        " ELSE input_tokens - shared_input_tokens END, output_tokens - shared_output_tokens, 0, 0"
        " FROM batches WHERE model IS NOT NULL AND completed + failed > 0"
    )
