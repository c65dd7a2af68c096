"""cached answers, and what each project's may take"""

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"


def upgrade() -> None:
    op.add_column("projects", sa.Column("cache_bytes", sa.BigInteger(), nullable=True))
    op.create_table(
        "cached_answers",
        sa.Column("project_id", sa.String(length=64), nullable=False),
        sa.Column("key", sa.String(length=64), nullable=False),
        sa.Column("body", sa.LargeBinary(), nullable=False),
        sa.Column("input_tokens", sa.BigInteger(), nullable=False),
        sa.Column("cached_tokens", sa.BigInteger(), nullable=False),
        sa.Column("output_tokens", sa.BigInteger(), nullable=False),
        sa.Column("bytes", sa.BigInteger(), nullable=False),
        sa.Column("used_at", sa.Double(), nullable=False),
        sa.ForeignKeyConstraint(["project_id"], ["projects.id"], name=op.f("fk_cached_answers_project_id")),
        sa.PrimaryKeyConstraint("project_id", "key", name=op.f("pk_cached_answers")),
    )
    op.create_index(
        op.f("ix_cached_answers_project_id_used_at_bytes"),
        "cached_answers",
        ["project_id", "used_at", "bytes"],
        unique=False,
    )
