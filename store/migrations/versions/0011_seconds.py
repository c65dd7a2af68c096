"""the time of a batch's requests in their engine: of each one, and what it adds up to"""

import sqlalchemy as sa
from alembic import op

revision = "0011"
down_revision = "0010"


def upgrade() -> None:
    op.add_column("batches", sa.Column("latencies", sa.JSON(), nullable=True))
    op.add_column("batches", sa.Column("seconds_sha256", sa.String(64), nullable=True))
    op.create_index(op.f("ix_batches_seconds_sha256"), "batches", ["seconds_sha256"])
