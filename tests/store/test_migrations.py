"""A database of an earlier version keeps what it holds, and what was true of it stays true."""

from __future__ import annotations

from pathlib import Path

import pytest
from alembic import command
from alembic.config import Config
from sqlalchemy import text
from sqlalchemy.exc import IntegrityError

import store
from store.database import Database

BATCH = {
    **{
        "project_id": "proj_1",
        "endpoint": "/v1/chat/completions",
        "completion_window": "24h",
        "input_file_id": "file-1",
    },
    **{"input_sha256": "0" * 64, "models": "{}", "post_process": "[]", "sla": "on_track"},
}
NUMBERS = (
    *("created_at", "expires_at", "due_at", "total", "completed", "failed", "expired", "cancelled", "input_tokens"),
    *("cached_tokens", "output_tokens", "shared_requests", "shared_input_tokens", "shared_output_tokens", "epoch"),
)


def upgrade(database: Database, revision: str) -> None:
    config = Config()
    config.set_main_option("script_location", str(Path(store.__file__).parent / "migrations"))
    with database._migration() as connection:
        config.attributes["connection"] = connection
        command.upgrade(config, revision)


def insert(database: Database, table: str, **values: object) -> None:
    columns = ", ".join(f'"{name}"' for name in values)
    places = ", ".join(f":{name}" for name in values)
    with database.write() as session:
        session.execute(text(f"INSERT INTO {table} ({columns}) VALUES ({places})"), values)


@pytest.fixture
def older(empty_database_url: str) -> Database:
    """A database of the version before jobs: a planned batch, one that is not, and an event that was delivered."""
    database = Database(empty_database_url)
    upgrade(database, "0011")
    insert(database, "projects", id="proj_1", name="default", created_at=1, service=0.0, service_at=0.0)
    flags = {"simulated": False, "out_of_reach": False}
    for batch_id, status, plan_sha256 in (("batch_1", "in_progress", "1" * 64), ("batch_2", "validating", None)):
        own = {"id": batch_id, "status": status, "plan_sha256": plan_sha256}
        insert(database, "batches", **BATCH, **own, **flags, **dict.fromkeys(NUMBERS, 1))
    event = {"id": "evt_1", "project_id": "proj_1", "batch_id": "batch_1", "type": "batch.late", "data": "{}"}
    insert(database, "events", **event, created_at=1)
    webhook = {"id": "wh_1", "project_id": "proj_1", "name": "one", "url": "https://example.com", "event_types": "[]"}
    insert(database, "webhooks", **webhook, secret="x", enabled=True, created_at=1, updated_at=1)
    delivery = {"id": "dlv_1", "project_id": "proj_1", "webhook_id": "wh_1", "event_id": "evt_1", "state": "delivered"}
    insert(database, "deliveries", **delivery, attempts=1, next_attempt_at=1.0, created_at=1)
    return database


def test_batches_that_have_a_plan_are_planned_and_none_is_open(older: Database) -> None:
    older.upgrade()
    with older.read() as session:
        rows = session.execute(text("SELECT id, planned, open, job_id FROM batches ORDER BY id")).all()
    assert [tuple(row) for row in rows] == [("batch_1", True, False, None), ("batch_2", False, False, None)]


def test_events_and_their_deliveries_stay_and_refer_to_each_other(older: Database) -> None:
    older.upgrade()
    joined = "SELECT events.batch_id, job_id, deliveries.id FROM deliveries JOIN events ON events.id = event_id"
    with older.read() as session:
        kept = session.execute(text(joined)).all()
    assert [tuple(row) for row in kept] == [("batch_1", None, "dlv_1")]
    with pytest.raises(IntegrityError), older.write() as session:
        session.execute(text("DELETE FROM events"))
    with pytest.raises(IntegrityError), older.write() as session:
        session.execute(text("UPDATE events SET batch_id = 'batch_nope'"))
    older.close()


def test_what_batches_of_one_model_have_used_is_listed_without_a_cost(older: Database) -> None:
    upgrade(older, "0019")
    amounts = (
        "completed = 5, failed = 1, input_tokens = 30, cached_tokens = 25, output_tokens = 9, completed_at = 86401"
    )
    shared = "shared_requests = 2, shared_input_tokens = 10, shared_output_tokens = 3"
    with older.write() as session:
        session.execute(text(f"UPDATE batches SET model = 'mini', {amounts}, {shared} WHERE id = 'batch_1'"))
    older.upgrade()
    with older.read() as session:
        rows = session.execute(
            text(
                "SELECT batch_id, model, day, project_id, requests, failed, shared_requests, input_tokens,"
                " cached_tokens, output_tokens, currency FROM usage"
            )
        ).all()
    assert [tuple(row) for row in rows] == [("batch_1", "mini", 1, "proj_1", 6, 1, 2, 20, 20, 6, None)]
    older.close()
