"""answers without the form that was asked for"""

import sqlalchemy as sa
from alembic import op

revision = "0031"
down_revision = "0030"


def upgrade() -> None:
    for table in ("batches", "parts"):
        op.add_column(table, sa.Column("invalid", sa.BigInteger(), nullable=False, server_default="0"))
