"""what the newest verification of a batch has shown"""

import sqlalchemy as sa
from alembic import op

revision = "0037"
down_revision = "0036"


def upgrade() -> None:
    op.add_column("batches", sa.Column("verification", sa.JSON(), nullable=True))
