"""items of a job that were resolved after its end"""

import sqlalchemy as sa
from alembic import op

revision = "0017"
down_revision = "0016"


def upgrade() -> None:
    for name in ("amendments", "unwritten"):
        op.add_column("jobs", sa.Column(name, sa.BigInteger(), nullable=False, server_default="0"))
    op.create_index("ix_jobs_unwritten", "jobs", ["unwritten"])
