"""work that ends: one record per result chunk, attempts of a batch's own work, models on hold"""

import sqlalchemy as sa
from alembic import op

revision = "0008"
down_revision = "0007"


def upgrade() -> None:
    # A chunk that was recorded twice would be merged twice.
    op.execute("DELETE FROM parts WHERE id NOT IN (SELECT MIN(id) FROM parts GROUP BY segment_id, sha256)")
    op.drop_index("ix_parts_segment_id", "parts")
    op.create_index("ix_parts_segment_id_sha256", "parts", ["segment_id", "sha256"], unique=True)
    op.add_column("batches", sa.Column("attempts", sa.BigInteger(), nullable=False, server_default="0"))
    op.add_column("batches", sa.Column("attempt_error", sa.String(), nullable=True))
    op.create_table(
        "holds",
        sa.Column("model", sa.String(256), nullable=False),
        sa.Column("reason", sa.String(), nullable=False),
        sa.Column("since", sa.BigInteger(), nullable=False),
        sa.Column("attempts", sa.BigInteger(), nullable=False),
        sa.Column("retry_at", sa.Double(), nullable=False),
        sa.PrimaryKeyConstraint("model", name="pk_holds"),
    )
