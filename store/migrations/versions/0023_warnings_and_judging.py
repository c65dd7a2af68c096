"""warnings of batches; jobs that only judge"""

import sqlalchemy as sa
from alembic import op

revision = "0023"
down_revision = "0022"


def upgrade() -> None:
    op.add_column("batches", sa.Column("warnings", sa.JSON(), nullable=True))
    op.add_column("jobs", sa.Column("only_judges", sa.Boolean(), nullable=False, server_default=sa.false()))
    # Until now a job that took the answers of one of the same work issued no request.
    jobs = sa.table("jobs", *map(sa.column, ("id", "answers_from", "work_sha256", "only_judges")))
    source = jobs.alias("source")
    same = sa.select(source.c.id).where(source.c.id == jobs.c.answers_from, source.c.work_sha256 == jobs.c.work_sha256)
    op.execute(jobs.update().where(same.exists()).values(only_judges=sa.true()))
