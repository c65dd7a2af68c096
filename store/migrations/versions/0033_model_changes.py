"""changes of the served models while they run"""

import sqlalchemy as sa
from alembic import op

revision = "0033"
down_revision = "0032"


def upgrade() -> None:
    op.create_table(
        "model_changes",
        sa.Column("name", sa.String(256), primary_key=True),
        sa.Column("entry", sa.JSON(), nullable=False),
        sa.Column("removed", sa.Boolean(), nullable=False),
        sa.Column("changed_at", sa.Double(), nullable=False),
    )
