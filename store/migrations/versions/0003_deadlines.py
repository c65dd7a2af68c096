"""deadlines: due times and SLA states, measured speeds, events and webhooks, schedules"""

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"


def upgrade() -> None:
    op.create_table(
        "speeds",
        sa.Column("model", sa.String(length=256), nullable=False),
        sa.Column("config_sha256", sa.String(length=64), nullable=False),
        sa.Column("request_class", sa.String(length=16), nullable=False),
        sa.Column("seconds", sa.Double(), nullable=False),
        sa.Column("requests", sa.Double(), nullable=False),
        sa.Column("bytes", sa.Double(), nullable=False),
        sa.Column("tokens", sa.Double(), nullable=False),
        sa.Column("squares", sa.Double(), nullable=False),
        sa.Column("parts", sa.Double(), nullable=False),
        sa.Column("lead_seconds", sa.Double(), nullable=False),
        sa.Column("leads", sa.Double(), nullable=False),
        sa.PrimaryKeyConstraint("model", "config_sha256", "request_class", name=op.f("pk_speeds")),
    )
    op.create_table(
        "schedules",
        sa.Column("id", sa.String(length=64), nullable=False),
        sa.Column("project_id", sa.String(length=64), nullable=False),
        sa.Column("name", sa.String(length=128), nullable=False),
        sa.Column("cron", sa.String(length=128), nullable=False),
        sa.Column("timezone", sa.String(length=64), nullable=False),
        sa.Column("input", sa.JSON(), nullable=False),
        sa.Column("input_sha256", sa.String(length=64), nullable=False),
        sa.Column("batch", sa.JSON(), nullable=False),
        sa.Column("overlap", sa.String(length=16), nullable=False),
        sa.Column("catch_up", sa.String(length=16), nullable=False),
        sa.Column("paused", sa.Boolean(), nullable=False),
        sa.Column("next_run_at", sa.BigInteger(), nullable=True),
        sa.Column("version", sa.BigInteger(), nullable=False),
        sa.Column("created_at", sa.BigInteger(), nullable=False),
        sa.ForeignKeyConstraint(["project_id"], ["projects.id"], name=op.f("fk_schedules_project_id")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_schedules")),
    )
    op.create_index(op.f("ix_schedules_input_sha256"), "schedules", ["input_sha256"], unique=False)
    op.create_index(op.f("ix_schedules_next_run_at"), "schedules", ["next_run_at"], unique=False)
    op.create_index(op.f("ix_schedules_project_id_id"), "schedules", ["project_id", "id"], unique=False)
    op.create_table(
        "webhooks",
        sa.Column("id", sa.String(length=64), nullable=False),
        sa.Column("project_id", sa.String(length=64), nullable=False),
        sa.Column("name", sa.String(length=128), nullable=False),
        sa.Column("url", sa.String(length=2048), nullable=False),
        sa.Column("event_types", sa.JSON(), nullable=False),
        sa.Column("secret", sa.String(length=128), nullable=False),
        sa.Column("old_secret", sa.String(length=128), nullable=True),
        sa.Column("old_secret_until", sa.BigInteger(), nullable=True),
        sa.Column("enabled", sa.Boolean(), nullable=False),
        sa.Column("created_at", sa.BigInteger(), nullable=False),
        sa.Column("updated_at", sa.BigInteger(), nullable=False),
        sa.ForeignKeyConstraint(["project_id"], ["projects.id"], name=op.f("fk_webhooks_project_id")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_webhooks")),
    )
    op.create_index(op.f("ix_webhooks_project_id_id"), "webhooks", ["project_id", "id"], unique=False)
    op.create_table(
        "events",
        sa.Column("id", sa.String(length=64), nullable=False),
        sa.Column("project_id", sa.String(length=64), nullable=False),
        sa.Column("batch_id", sa.String(length=64), nullable=False),
        sa.Column("type", sa.String(length=64), nullable=False),
        sa.Column("data", sa.JSON(), nullable=False),
        sa.Column("created_at", sa.BigInteger(), nullable=False),
        sa.ForeignKeyConstraint(["batch_id"], ["batches.id"], name=op.f("fk_events_batch_id")),
        sa.ForeignKeyConstraint(["project_id"], ["projects.id"], name=op.f("fk_events_project_id")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_events")),
    )
    op.create_index(op.f("ix_events_batch_id_type"), "events", ["batch_id", "type"], unique=False)
    op.create_index(op.f("ix_events_project_id_id"), "events", ["project_id", "id"], unique=False)
    op.create_table(
        "schedule_runs",
        sa.Column("id", sa.String(length=64), nullable=False),
        sa.Column("project_id", sa.String(length=64), nullable=False),
        sa.Column("schedule_id", sa.String(length=64), nullable=False),
        sa.Column("scheduled_at", sa.BigInteger(), nullable=True),
        sa.Column("missed_from", sa.BigInteger(), nullable=True),
        sa.Column("state", sa.String(length=16), nullable=False),
        sa.Column("batch_id", sa.String(length=64), nullable=True),
        sa.Column("reason", sa.String(), nullable=True),
        sa.Column("created_at", sa.BigInteger(), nullable=False),
        sa.ForeignKeyConstraint(["batch_id"], ["batches.id"], name=op.f("fk_schedule_runs_batch_id")),
        sa.ForeignKeyConstraint(["project_id"], ["projects.id"], name=op.f("fk_schedule_runs_project_id")),
        sa.ForeignKeyConstraint(["schedule_id"], ["schedules.id"], name=op.f("fk_schedule_runs_schedule_id")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_schedule_runs")),
        sa.UniqueConstraint("schedule_id", "scheduled_at", name=op.f("uq_schedule_runs_schedule_id_scheduled_at")),
    )
    op.create_index(op.f("ix_schedule_runs_batch_id"), "schedule_runs", ["batch_id"], unique=False)
    op.create_index(op.f("ix_schedule_runs_schedule_id_id"), "schedule_runs", ["schedule_id", "id"], unique=False)
    op.create_table(
        "deliveries",
        sa.Column("id", sa.String(length=64), nullable=False),
        sa.Column("project_id", sa.String(length=64), nullable=False),
        sa.Column("webhook_id", sa.String(length=64), nullable=False),
        sa.Column("event_id", sa.String(length=64), nullable=False),
        sa.Column("state", sa.String(length=16), nullable=False),
        sa.Column("attempts", sa.BigInteger(), nullable=False),
        sa.Column("next_attempt_at", sa.Double(), nullable=False),
        sa.Column("status_code", sa.BigInteger(), nullable=True),
        sa.Column("error", sa.String(), nullable=True),
        sa.Column("created_at", sa.BigInteger(), nullable=False),
        sa.Column("delivered_at", sa.BigInteger(), nullable=True),
        sa.ForeignKeyConstraint(["event_id"], ["events.id"], name=op.f("fk_deliveries_event_id")),
        sa.ForeignKeyConstraint(["project_id"], ["projects.id"], name=op.f("fk_deliveries_project_id")),
        sa.ForeignKeyConstraint(["webhook_id"], ["webhooks.id"], name=op.f("fk_deliveries_webhook_id")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_deliveries")),
    )
    op.create_index(
        op.f("ix_deliveries_state_next_attempt_at"), "deliveries", ["state", "next_attempt_at"], unique=False
    )
    op.create_index(op.f("ix_deliveries_webhook_id_id"), "deliveries", ["webhook_id", "id"], unique=False)
    op.add_column("batches", sa.Column("due_at", sa.BigInteger(), nullable=False, server_default="0"))
    op.add_column("batches", sa.Column("out_of_reach", sa.Boolean(), nullable=False, server_default=sa.text("false")))
    op.add_column("batches", sa.Column("sla", sa.String(length=16), nullable=False, server_default="on_track"))
    op.add_column("projects", sa.Column("tier", sa.String(length=64), nullable=True))
    op.add_column("projects", sa.Column("max_segments", sa.BigInteger(), nullable=True))
    op.add_column("projects", sa.Column("service", sa.Double(), nullable=False, server_default="0"))
    op.add_column("projects", sa.Column("service_at", sa.Double(), nullable=False, server_default="0"))
    op.add_column("segments", sa.Column("bytes", sa.BigInteger(), nullable=False, server_default="0"))
    op.add_column("segments", sa.Column("answered", sa.BigInteger(), nullable=False, server_default="0"))
    op.add_column("segments", sa.Column("request_class", sa.String(length=16), nullable=False, server_default="decode"))
    op.execute("UPDATE batches SET due_at = expires_at")
