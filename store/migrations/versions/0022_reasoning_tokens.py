"""reasoning tokens of answers"""

import sqlalchemy as sa
from alembic import op

revision = "0022"
down_revision = "0021"


def upgrade() -> None:
    for table in ("batches", "parts"):
        op.add_column(table, sa.Column("reasoning_tokens", sa.BigInteger(), nullable=False, server_default="0"))
