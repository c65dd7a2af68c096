"""shared answers: how many requests got one, and the tokens that were not computed for them"""

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"

COLUMNS = ("shared_requests", "shared_input_tokens", "shared_output_tokens")


def upgrade() -> None:
    for table in ("batches", "parts"):
        for column in COLUMNS:
            op.add_column(table, sa.Column(column, sa.BigInteger(), nullable=False, server_default="0"))
