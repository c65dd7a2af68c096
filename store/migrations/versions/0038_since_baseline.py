"""what came after the baseline, before the first release"""

import sqlalchemy as sa
from alembic import op

revision = "0038"
down_revision = "0032"


def upgrade() -> None:
    op.create_table(
        "model_changes",
        sa.Column("name", sa.String(256), primary_key=True),
        sa.Column("entry", sa.JSON(), nullable=False),
        sa.Column("removed", sa.Boolean(), nullable=False),
        sa.Column("changed_at", sa.Double(), nullable=False),
    )
    op.create_table(
        "watched_objects",
        sa.Column("schedule_id", sa.String(64), sa.ForeignKey("schedules.id"), primary_key=True),
        sa.Column("version", sa.String(64), primary_key=True),
        sa.Column("name", sa.String(), nullable=False),
        sa.Column("run_id", sa.String(64), nullable=False),
        sa.Column("told", sa.Boolean(), nullable=False),
        sa.Column("project_id", sa.String(64), sa.ForeignKey("projects.id"), nullable=False),
    )
    op.create_index("ix_watched_objects_schedule_id_told", "watched_objects", ["schedule_id", "told"])
    # A new primary key and columns that may be null: SQLite cannot change those in place.
    columns = "project_id, amount, currency, warn_at, when_exceeded, notice"
    rows = op.get_bind().execute(sa.text(f"SELECT {columns} FROM budgets")).mappings().all()
    op.drop_table("budgets")
    budgets = op.create_table(
        "budgets",
        sa.Column("project_id", sa.String(64), sa.ForeignKey("projects.id"), primary_key=True),
        sa.Column("key_id", sa.String(64), primary_key=True),
        sa.Column("amount", sa.BigInteger(), nullable=True),
        sa.Column("currency", sa.String(3), nullable=True),
        sa.Column("max_tokens", sa.BigInteger(), nullable=True),
        sa.Column("warn_at", sa.BigInteger(), nullable=False),
        sa.Column("when_exceeded", sa.String(8), nullable=False),
        sa.Column("notice", sa.String(32), nullable=True),
        sa.Column("version", sa.BigInteger(), nullable=False),
    )
    if rows:
        op.bulk_insert(budgets, [{**row, "key_id": "", "version": 0} for row in rows])
    for table in ("batches", "jobs"):
        op.add_column(table, sa.Column("callback_url", sa.String(2048), nullable=True))
    for table in ("batches", "parts"):
        op.add_column(table, sa.Column("looped", sa.BigInteger(), nullable=False, server_default="0"))
    op.add_column("batches", sa.Column("guard", sa.String(16), nullable=True))
    op.add_column("batches", sa.Column("verification", sa.JSON(), nullable=True))
    op.add_column("jobs", sa.Column("sample_rows", sa.BigInteger(), nullable=True))
    op.add_column("jobs", sa.Column("sampling", sa.Boolean(), nullable=False, server_default=sa.false()))
    op.add_column("jobs", sa.Column("stop_when", sa.JSON(), nullable=True))
