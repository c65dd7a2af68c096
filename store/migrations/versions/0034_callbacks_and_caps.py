"""callbacks of batches and jobs, and budgets of keys"""

import sqlalchemy as sa
from alembic import op

revision = "0034"
down_revision = "0033"


def upgrade() -> None:
    for table in ("batches", "jobs"):
        op.add_column(table, sa.Column("callback_url", sa.String(2048), nullable=True))
    # A new primary key and columns that may be null: SQLite cannot change those in place.
    columns = "project_id, amount, currency, warn_at, when_exceeded, notice"
    rows = op.get_bind().execute(sa.text(f"SELECT {columns} FROM budgets")).mappings().all()
    op.drop_table("budgets")
    budgets = op.create_table(
        "budgets",
        sa.Column("project_id", sa.String(64), nullable=False),
        sa.Column("key_id", sa.String(64), nullable=False),
        sa.Column("amount", sa.BigInteger(), nullable=True),
        sa.Column("currency", sa.String(3), nullable=True),
        sa.Column("max_tokens", sa.BigInteger(), nullable=True),
        sa.Column("warn_at", sa.BigInteger(), nullable=False),
        sa.Column("when_exceeded", sa.String(8), nullable=False),
        sa.Column("notice", sa.String(32), nullable=True),
        sa.Column("version", sa.BigInteger(), nullable=False),
        sa.ForeignKeyConstraint(["project_id"], ["projects.id"], name=op.f("fk_budgets_project_id")),
        sa.PrimaryKeyConstraint("project_id", "key_id", name=op.f("pk_budgets")),
    )
    if rows:
        op.bulk_insert(budgets, [{**row, "key_id": "", "version": 0} for row in rows])
