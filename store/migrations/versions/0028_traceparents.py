"""the span above that of a batch or a job"""

import sqlalchemy as sa
from alembic import op

revision = "0028"
down_revision = "0027"


def upgrade() -> None:
    for table in ("batches", "jobs"):
        op.add_column(table, sa.Column("traceparent", sa.String(55), nullable=True))
