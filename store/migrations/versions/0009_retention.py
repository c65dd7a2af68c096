"""indexes for the deletion of old records"""

from alembic import op

revision = "0009"
down_revision = "0008"


def upgrade() -> None:
    op.create_index(op.f("ix_artifacts_file_id"), "artifacts", ["file_id"])
    op.create_index(op.f("ix_batches_input_file_id"), "batches", ["input_file_id"])
    op.create_index(op.f("ix_deliveries_event_id"), "deliveries", ["event_id"])
    op.create_index(op.f("ix_files_expires_at"), "files", ["expires_at"])
