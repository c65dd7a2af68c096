"""since when an engine's speed cannot be measured yet, and how many requests it holds"""

import sqlalchemy as sa
from alembic import op

revision = "0013"
down_revision = "0012"


def upgrade() -> None:
    for name in ("began_at", "in_flight_limit"):
        op.add_column("speeds", sa.Column(name, sa.Double(), nullable=False, server_default="0"))
