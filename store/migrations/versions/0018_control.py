"""when and by whom batches and jobs were paused, their priority, and who did what is an event"""

import sqlalchemy as sa
from alembic import op

revision = "0018"
down_revision = "0017"


def upgrade() -> None:
    for table in ("batches", "jobs"):
        op.add_column(table, sa.Column("paused_at", sa.BigInteger(), nullable=True))
        op.add_column(table, sa.Column("paused_by", sa.String(128), nullable=True))
    op.add_column("batches", sa.Column("priority", sa.BigInteger(), nullable=False, server_default="0"))
    op.add_column("events", sa.Column("key_id", sa.String(64), nullable=True))
    op.add_column("events", sa.Column("key_name", sa.String(128), nullable=True))
