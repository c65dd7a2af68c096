"""files that arrive in parts"""

import sqlalchemy as sa
from alembic import op

revision = "0024"
down_revision = "0023"


def upgrade() -> None:
    op.create_table(
        "uploads",
        sa.Column("id", sa.String(64), primary_key=True),
        sa.Column("project_id", sa.String(64), sa.ForeignKey("projects.id"), nullable=False),
        sa.Column("filename", sa.String(512), nullable=False),
        sa.Column("purpose", sa.String(32), nullable=False),
        sa.Column("bytes", sa.BigInteger(), nullable=False),
        sa.Column("status", sa.String(16), nullable=False),
        sa.Column("created_at", sa.BigInteger(), nullable=False),
        sa.Column("expires_at", sa.BigInteger(), nullable=False, index=True),
        sa.Column("file_expires_after", sa.BigInteger(), nullable=True),
        sa.Column("part_ids", sa.JSON(), nullable=True),
        sa.Column("file_id", sa.String(64), nullable=True),
    )
    op.create_table(
        "upload_parts",
        sa.Column("id", sa.String(64), primary_key=True),
        sa.Column("upload_id", sa.String(64), sa.ForeignKey("uploads.id"), nullable=False),
        sa.Column("bytes", sa.BigInteger(), nullable=False),
        sa.Column("sha256", sa.String(64), nullable=False, index=True),
        sa.Column("created_at", sa.BigInteger(), nullable=False),
        sa.UniqueConstraint("upload_id", "sha256"),
    )
