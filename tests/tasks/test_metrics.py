"""A snapshot of the deployment: what it says of jobs, in both databases."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from sqlalchemy import update

from inference.residents.status import ResidentStatus
from store.jobs import lifecycle
from store.records import Job
from tasks import metrics
from tasks.context import AppContext
from tasks.execution import engine_status
from tasks.scheduling import deadlines
from tests.support.jobs import create_job, start_job


def test_jobs_that_have_not_ended_are_counted_with_their_items(connected: AppContext, project: str) -> None:
    with connected.database.write() as session:
        for counts in ({"admitted": 7, "completed": 3, "failed": 1, "stuck": 1, "restarted": 4}, {"admitted": 2}):
            job = start_job(session, project, total=10)
            session.execute(update(Job).where(Job.id == job.id).values(**counts))
        stopped = start_job(session, project, total=5, recipe="rollout")
        values = {"status": "finalizing", "admitted": 3, "completed": 2, "cancelled_items": 3}
        session.execute(update(Job).where(Job.id == stopped.id).values(**values))
        ended = start_job(session, project, total=6, recipe="rollout")
        session.execute(update(Job).where(Job.id == ended.id).values(status="completed", completed=6))
        create_job(session, project)
    recipes = {
        (entry.recipe, entry.status): entry for entry in metrics.collect(connected, with_processes=False).recipes
    }
    assert {key: entry.jobs for key, entry in recipes.items()} == {
        ("debate", "in_progress"): 2,
        ("debate", "validating"): 1,
        ("rollout", "finalizing"): 1,
    }
    running, finishing = recipes["debate", "in_progress"], recipes["rollout", "finalizing"]
    assert {state: number for state, number in running.items.items() if number} == {
        "pending": 11,
        "live": 4,
        "completed": 3,
        "failed": 1,
        "stuck": 1,
    }
    assert running.restarted == 4
    assert {state: number for state, number in finishing.items.items() if number} == {"completed": 2, "cancelled": 3}


def test_the_file_in_the_data_folder_has_the_engines_as_json(
    new_context: Callable[..., AppContext], broker: str, tmp_path: Path
) -> None:
    connected = new_context(redis_url=broker, data=tmp_path / "data")
    connected.redis.flushall()
    engine = ResidentStatus(name="engine-a", model="echo", state="busy", in_flight=3, seen_at=time.time())
    engine_status.publish(connected, {engine.name: engine})
    metrics.write(connected)
    written = json.loads((connected.settings.data / metrics.FILE).read_text())
    (shown,) = written["engines"]
    assert (shown["name"], shown["state"], shown["in_flight"]) == ("engine-a", "busy", 3)


@pytest.mark.usefixtures("frozen_time")
def test_of_the_jobs_due_first_the_times_are_known(
    connected: AppContext, project: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(metrics, "MOST", 2)
    with connected.database.write() as session:
        jobs = [start_job(session, project, completion_window=window).id for window in ("24h", "1h", "2h")]
        ended = start_job(session, project, completion_window="1h")
        assert lifecycle.transition(session, ended.id, "in_progress", "finalizing", outcome="completed")
        assert lifecycle.transition(session, ended.id, "finalizing", "completed")
    at = time.time() + 600
    connected.redis.hset(deadlines.FORECASTS, jobs[1], json.dumps([at, at, at]))
    first, second = metrics.collect(connected, with_processes=False).jobs
    assert (first.job_id, second.job_id) == (jobs[1], jobs[2])
    assert first.due_seconds == pytest.approx(3600, abs=10)
    assert first.eta_seconds == pytest.approx(600, abs=10)
    assert second.eta_seconds is None
