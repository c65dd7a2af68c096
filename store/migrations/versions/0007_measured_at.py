"""when a model was last measured"""

import sqlalchemy as sa
from alembic import op

revision = "0007"
down_revision = "0006"


def upgrade() -> None:
    op.add_column("speeds", sa.Column("measured_at", sa.Double(), nullable=False, server_default="0"))
