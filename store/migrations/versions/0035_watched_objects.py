"""objects of folders that schedules watch"""

import sqlalchemy as sa
from alembic import op

revision = "0035"
down_revision = "0034"


def upgrade() -> None:
    op.create_table(
        "watched_objects",
        sa.Column("schedule_id", sa.String(64), nullable=False),
        sa.Column("version", sa.String(64), nullable=False),
        sa.Column("name", sa.String(), nullable=False),
        sa.Column("run_id", sa.String(64), nullable=False),
        sa.Column("told", sa.Boolean(), nullable=False),
        sa.Column("project_id", sa.String(64), nullable=False),
        sa.ForeignKeyConstraint(["schedule_id"], ["schedules.id"], name=op.f("fk_watched_objects_schedule_id")),
        sa.ForeignKeyConstraint(["project_id"], ["projects.id"], name=op.f("fk_watched_objects_project_id")),
        sa.PrimaryKeyConstraint("schedule_id", "version", name=op.f("pk_watched_objects")),
    )
    op.create_index(
        op.f("ix_watched_objects_schedule_id_told"), "watched_objects", ["schedule_id", "told"], unique=False
    )
