"""limits at which jobs pause"""

import sqlalchemy as sa
from alembic import op

revision = "0039"
down_revision = "0038"


def upgrade() -> None:
    op.add_column("jobs", sa.Column("stop_when", sa.JSON(), nullable=True))
