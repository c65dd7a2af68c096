"""idempotency keys and retries of batches, and indices for what is asked most"""

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"


def upgrade() -> None:
    op.add_column("batches", sa.Column("retry_of", sa.String(length=64), nullable=True))
    op.add_column("batches", sa.Column("idempotency_key", sa.String(length=255), nullable=True))
    op.add_column("batches", sa.Column("idempotency_sha256", sa.String(length=64), nullable=True))
    op.create_index(op.f("ix_batches_retry_of"), "batches", ["retry_of"], unique=False)
    op.create_index(
        op.f("ix_batches_project_id_idempotency_key"), "batches", ["project_id", "idempotency_key"], unique=True
    )
    op.create_index(op.f("ix_batches_project_id_status"), "batches", ["project_id", "status"], unique=False)
    op.create_index(op.f("ix_segments_batch_id_state"), "segments", ["batch_id", "state"], unique=False)
