"""/metrics of a deployment with jobs."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from batchyard.recipes import Check, Score
from jobs import progress
from store import projects
from tasks.scheduling import deadlines
from tests.support.jobs import create_job, start_job
from tests.support.planned import plan_batch
from tests.support.webapps import client_of, context_in


def test_failed_calls_of_a_reward_are_counted_by_its_name_and_are_no_requests(tmp_path: Path, broker: str) -> None:
    context = context_in(tmp_path, redis_url=broker)
    context.redis.flushall()
    for _ in range(2):
        progress.count_failed_judgement(context, Score("acme", "qa", "a", "b"))
    progress.count_failed_judgement(context, Check("polite", "a"))
    lines = client_of(context).get("/metrics").text.splitlines()
    assert 'batchyard_judgement_errors_total{name="acme"} 2.0' in lines
    assert 'batchyard_judgement_errors_total{name="polite"} 1.0' in lines
    assert not [line for line in lines if line.startswith("batchyard_request_errors_total{")]


def test_jobs_are_counted_by_recipe_with_the_least_time_that_they_have_to_spare(tmp_path: Path, broker: str) -> None:
    context = context_in(tmp_path, redis_url=broker)
    context.redis.flushall()
    with context.database.write() as session:
        project_id = projects.get_or_create(session, "default").id
        jobs = [start_job(session, project_id, total=5).id for _ in range(2)]
        create_job(session, project_id, recipe="rollout", completion_window="1h")
    batch = plan_batch(context, project_id, ["one"])
    at = time.time() + 600
    ends = {jobs[0]: at, jobs[1]: at + 600, batch.id: at}
    context.redis.hset(deadlines.FORECASTS, mapping={id_: json.dumps([end] * 3) for id_, end in ends.items()})
    shown = client_of(context).get("/metrics").text
    assert [id_ for id_ in ends if id_ in shown] == [], "a scrape needs no key"
    families = text_string_to_metric_families(shown)
    samples = {
        (sample.name, *sample.labels.values()): sample.value
        for family in families
        for sample in family.samples
        if sample.name.startswith(("batchyard_job", "batchyard_batch_"))
    }
    assert samples["batchyard_jobs", "debate", "in_progress"] == 2
    assert samples["batchyard_jobs", "rollout", "validating"] == 1
    assert samples["batchyard_job_items", "debate", "pending"] == 10
    assert samples["batchyard_job_items_restarted", "debate"] == 0
    assert samples["batchyard_job_spare_seconds", "debate"] == pytest.approx(86_400 - 1200, abs=20)
    assert ("batchyard_job_spare_seconds", "rollout") not in samples, "nobody knows when it ends"
    spare = [value for (name, *_), value in samples.items() if name == "batchyard_batch_spare_seconds"]
    assert spare == [pytest.approx(86_400 - 600, abs=20)]


def test_what_jobs_have_done_is_counted_by_recipe_and_model(tmp_path: Path, broker: str) -> None:
    context = context_in(tmp_path, redis_url=broker)
    context.redis.flushall()
    progress.count_items(context, "refine", {"completed": 3, "stuck": 1}, {"odd name": 7})
    progress.count_items(context, "refine", {"completed": 2}, {})
    for seconds in (0.003, 0.3, 99.0):
        progress.count_tick(context, seconds, {"mini": 0.25})
    lines = client_of(context).get("/metrics").text.splitlines()
    assert 'batchyard_job_items_total{recipe="refine",state="completed"} 5.0' in lines
    assert 'batchyard_job_items_total{recipe="refine",state="stuck"} 1.0' in lines
    assert 'batchyard_job_counter_total{name="odd name",recipe="refine"} 7.0' in lines
    assert 'batchyard_hungry_seconds_total{model="mini"} 0.75' in lines
    buckets = {"0.005": 1, "0.2": 1, "0.5": 2, "30.0": 2, "+Inf": 3}
    for bound, ticks in buckets.items():
        assert f'batchyard_job_advance_seconds_bucket{{le="{bound}"}} {ticks}.0' in lines
    assert "batchyard_job_advance_seconds_sum 99.303" in lines
