"""erasure: content to remove, projects that are erased or keep nothing, and whose answers are cached"""

import sqlalchemy as sa
from alembic import op

revision = "0027"
down_revision = "0026"


def upgrade() -> None:
    op.create_table(
        "erased_content",
        sa.Column("sha256", sa.String(64), primary_key=True),
        sa.Column("erased_at", sa.Double(), nullable=False),
    )
    op.add_column("projects", sa.Column("zero_retention_minutes", sa.BigInteger(), nullable=True))
    op.add_column("projects", sa.Column("erasing_at", sa.BigInteger(), nullable=True))
    op.add_column("cached_answers", sa.Column("batch_id", sa.String(64), nullable=True))
    op.create_index("ix_cached_answers_batch_id", "cached_answers", ["batch_id"])
