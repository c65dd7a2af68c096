"""the sample that a batch with a plan answers first, and the limits at which a batch stops"""

import sqlalchemy as sa
from alembic import op

revision = "0032"
down_revision = "0031"


def upgrade() -> None:
    op.add_column("batches", sa.Column("sample_rows", sa.BigInteger(), nullable=True))
    op.add_column("batches", sa.Column("sample_segments", sa.BigInteger(), nullable=True))
    op.add_column("batches", sa.Column("stop_when", sa.JSON(), nullable=True))
    op.add_column("batches", sa.Column("refused", sa.BigInteger(), nullable=False, server_default="0"))
    op.add_column("batches", sa.Column("sampling", sa.Boolean(), nullable=False, server_default=sa.false()))
