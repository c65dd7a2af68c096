"""the name of a batch, who created it, and a key's label, expiry and last use"""

import sqlalchemy as sa
from alembic import op

revision = "0016"
down_revision = "0015"


def upgrade() -> None:
    op.add_column("batches", sa.Column("name", sa.String(512), nullable=True))
    for table in ("batches", "jobs"):
        op.add_column(table, sa.Column("created_by", sa.String(64), nullable=True))
    op.add_column("api_keys", sa.Column("label", sa.String(128), nullable=True))
    for name in ("last_used_at", "expires_at"):
        op.add_column("api_keys", sa.Column(name, sa.BigInteger(), nullable=True))
    op.execute(
        "UPDATE batches SET name = (SELECT filename FROM files WHERE files.id = batches.input_file_id"
        " AND files.project_id = batches.project_id) WHERE job_id IS NULL"
    )
