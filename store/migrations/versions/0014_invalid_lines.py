"""what becomes of a batch with lines that are no valid requests"""

import sqlalchemy as sa
from alembic import op

revision = "0014"
down_revision = "0013"


def upgrade() -> None:
    op.add_column("batches", sa.Column("on_invalid", sa.String(8), nullable=False, server_default="fail"))
