"""the most bytes that a project's files may have, and the index of their sum"""

import sqlalchemy as sa
from alembic import op

revision = "0030"
down_revision = "0029"


def upgrade() -> None:
    op.add_column("projects", sa.Column("max_stored_bytes", sa.BigInteger(), nullable=True))
    op.create_index("ix_files_project_id_expires_at_bytes", "files", ["project_id", "expires_at", "bytes"])
