"""answers that were cut off or are empty"""

import sqlalchemy as sa
from alembic import op

revision = "0029"
down_revision = "0028"


def upgrade() -> None:
    for table in ("batches", "parts"):
        for column in ("cut_off", "empty"):
            op.add_column(table, sa.Column(column, sa.BigInteger(), nullable=False, server_default="0"))
