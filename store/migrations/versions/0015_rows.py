"""what became of each request of an ended batch, and where its lines are"""

import sqlalchemy as sa
from alembic import op

revision = "0015"
down_revision = "0014"


def upgrade() -> None:
    op.add_column("batches", sa.Column("rows_sha256", sa.String(64), nullable=True))
    op.create_index(op.f("ix_batches_rows_sha256"), "batches", ["rows_sha256"])
