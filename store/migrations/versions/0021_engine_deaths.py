"""deaths of engines, by batch and by model"""

import sqlalchemy as sa
from alembic import op

revision = "0021"
down_revision = "0020"


def upgrade() -> None:
    op.add_column("batches", sa.Column("engine_deaths", sa.JSON(), nullable=True))
    op.create_table(
        "engine_failures",
        sa.Column("model", sa.String(256), nullable=False),
        sa.Column("reason", sa.String(), nullable=False),
        sa.Column("at", sa.BigInteger(), nullable=False),
        sa.Column("requests", sa.BigInteger(), nullable=False),
        sa.Column("next", sa.String(16), nullable=False),
        sa.Column("deaths", sa.BigInteger(), nullable=False),
        sa.Column("engines", sa.JSON(), nullable=False),
        sa.Column("answered", sa.Boolean(), nullable=False),
        sa.PrimaryKeyConstraint("model", name=op.f("pk_engine_failures")),
    )
