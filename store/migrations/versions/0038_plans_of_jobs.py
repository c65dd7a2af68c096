"""jobs that answer a sample of their items first"""

import sqlalchemy as sa
from alembic import op

revision = "0038"
down_revision = "0037"


def upgrade() -> None:
    op.add_column("jobs", sa.Column("sample_rows", sa.BigInteger(), nullable=True))
    op.add_column("jobs", sa.Column("sampling", sa.Boolean(), nullable=False, server_default=sa.false()))
