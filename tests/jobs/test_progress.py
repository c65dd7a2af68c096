"""The progress of a job stands in Redis under the name that a batch's has."""

from __future__ import annotations

import json

import pytest
from sqlalchemy import update

from jobs import progress
from store.records import Job
from tasks.context import AppContext
from tasks.scheduling import deadlines
from tasks.scheduling.forecast import Forecast
from tests.support.jobs import start_job


@pytest.mark.usefixtures("frozen_time")
def test_a_job_is_counted_in_items_and_its_eta_from_now(connected: AppContext, project: str) -> None:
    with connected.database.write() as session:
        job = start_job(session, project, total=9)
        session.execute(update(Job).where(Job.id == job.id).values(completed=4, failed=2, stuck=1))
    progress.publish(connected, job.id)
    value = json.loads(connected.redis.get(f"batch_job_status:{job.id}"))
    counts = {name: value[name] for name in ("total", "completed", "failed", "stuck", "expired", "cancelled")}
    assert counts == {"total": 9, "completed": 4, "failed": 2, "stuck": 1, "expired": 0, "cancelled": 0}
    assert (value["status"], value["recipe"], value["eta_seconds"]) == ("in_progress", "debate", None)
    at = value["updated_at"] + 100
    deadlines.publish(connected, job.id, Forecast(at, at, at))
    progress.publish(connected, job.id)
    value = json.loads(connected.redis.get(f"batch_job_status:{job.id}"))
    assert value["eta_seconds"] == pytest.approx(100, abs=5)
