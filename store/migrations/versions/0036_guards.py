"""guards of batches, and the answers that they have ended"""

import sqlalchemy as sa
from alembic import op

revision = "0036"
down_revision = "0035"


def upgrade() -> None:
    op.add_column("batches", sa.Column("guard", sa.String(16), nullable=True))
    for table in ("batches", "parts"):
        op.add_column(table, sa.Column("looped", sa.BigInteger(), nullable=False, server_default="0"))
