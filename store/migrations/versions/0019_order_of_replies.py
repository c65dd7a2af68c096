"""the order of replies to a job's items"""

from alembic import op

revision = "0019"
down_revision = "0018"


def upgrade() -> None:
    op.create_index("ix_job_replies_job_id_id", "job_replies", ["job_id", "id"])
