"""what a speed was measured at, and how long starts, first answers and finishing take"""

import sqlalchemy as sa
from alembic import op

revision = "0010"
down_revision = "0009"

FULL = 256
"""Requests in flight of a speed that was measured before: engines were as full as most are by default."""


def upgrade() -> None:
    for name in ("request_seconds", "request_squares"):
        op.add_column("speeds", sa.Column(name, sa.Double(), nullable=False, server_default="0"))
    op.execute(f"UPDATE speeds SET request_seconds = seconds * {FULL}")
    for name in ("lead_seconds", "leads"):
        op.drop_column("speeds", name)
    op.create_table(
        "durations",
        sa.Column("kind", sa.String(16), nullable=False),
        sa.Column("name", sa.String(256), nullable=False),
        sa.Column("variant", sa.String(256), nullable=False),
        *(
            sa.Column(name, sa.Double(), nullable=False)
            for name in ("number", "units", "seconds", "units_squared", "units_seconds", "seconds_squared")
        ),
        sa.PrimaryKeyConstraint("kind", "name", "variant", name="pk_durations"),
    )
