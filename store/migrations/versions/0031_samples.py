"""the sample that a batch with a plan answers first"""

import sqlalchemy as sa
from alembic import op

revision = "0031"
down_revision = "0030"


def upgrade() -> None:
    op.add_column("batches", sa.Column("sample_rows", sa.Integer(), nullable=True))
    op.add_column("batches", sa.Column("sample_segments", sa.Integer(), nullable=True))
    op.add_column("batches", sa.Column("sampling", sa.Boolean(), nullable=False, server_default=sa.false()))
