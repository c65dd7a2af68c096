"""/models: the models served in a table, and the page of each with its measurements."""

from __future__ import annotations

import re
import time

import pytest
from flask.testing import FlaskClient
from sqlalchemy import select, update

from batchyard.comparing import histogram
from store import holds, keys, speeds
from store.records import Batch, Project
from store.speeds import Measurement
from tasks.context import AppContext
from tasks.execution import engine_status
from tasks.execution.engine_status import EngineStatus
from tasks.scheduling import deadlines
from tests.support.planned import answers, append, plan_batch, started
from tests.webapp.pages.conftest import signed_in
from webapp import create_app
from webapp.pages.formats import NOTHING


def test_each_model_is_a_row_that_leads_to_its_page(client: FlaskClient) -> None:
    table = client.get("/models").text
    assert '<a href="/models/echo"><bdi>echo</bdi></a>' in table and "Not measured" not in table
    page = client.get("/models/echo").text
    assert "Not measured yet." in page
    for shown in (table, page):
        assert "simulated" in shown and "Engines unknown: Redis is unreachable." in shown
    assert client.get("/models/nowhere").status_code == 404


def test_a_model_that_is_gone_says_so_where_its_batches_are_shown(client: FlaskClient, context: AppContext) -> None:
    with context.database.write() as session:
        key = keys.create(session, "default").key
        project_id = session.scalars(select(Project.id)).one()
    batch = plan_batch(context, project_id, ["one", "two"])
    del context.models["echo"]
    deadlines.tick(context)
    answer = client.get(f"/v1/batches/{batch.id}", headers={"Authorization": f"Bearer {key}"}).get_json()
    held = answer["batchyard"]["held"]
    assert (held["model"], held["attempts"], held["retry_at"]) == ("echo", 0, None)
    for path in ("/", f"/batches/{batch.id}", "/models"):
        page = client.get(path).text
        assert "not served any more" in page, path
        assert "cannot run" not in page, path
    queue = client.get("/v1/queue", headers={"Authorization": f"Bearer {key}"}).get_json()
    assert [model["held"] for model in queue["models"]] == [held["reason"]]


def test_the_measured_speed_is_shown_and_only_that_of_this_configuration(
    client: FlaskClient, context: AppContext
) -> None:
    measured = Measurement(10.0, requests=40, bytes=4000.0, tokens=2000, squares=0.0, in_flight=256)
    with context.database.write() as session:
        speeds.measure(speeds.locked(session, "echo", context.models["echo"].config_sha256, "decode"), measured)
        speeds.measure(speeds.locked(session, "echo", "0" * 64, "prefill"), measured)
    page = client.get("/models/echo").text
    row = re.sub(r"<[^>]+>|\s+", " ", page.partition("<tbody>")[2].partition("</tbody>")[0]).split()
    assert row == ["answer-heavy", "4.0", "200", NOTHING, NOTHING]


def test_the_time_of_a_request_is_that_of_recent_batches(client: FlaskClient, context: AppContext) -> None:
    assert "Per request" not in client.get("/models/echo").text
    with context.database.read() as session:
        project_id = session.scalars(select(Project.id)).one()
    batch = plan_batch(context, project_id, ["one", "two"])
    append(context, started(context.database, batch), answers([1, 2], seconds=[0.02, 3.0]))
    for path in ("/models/echo", f"/batches/{batch.id}"):
        page = " ".join(re.sub(r"<[^>]+>", " ", client.get(path).text).split())
        assert "Per request p50 20 ms, p95 3 s, p99 3 s" in page, path
    assert "20 ms in the engine" in client.get(f"/batches/{batch.id}").text


def test_a_batch_of_several_models_shows_the_time_of_each(client: FlaskClient, context: AppContext) -> None:
    with context.database.write() as session:
        project_id = session.scalars(select(Project.id)).one()
    batch = plan_batch(context, project_id, ["one"])
    with context.database.write() as session:
        half, two = histogram.of([0.5]), histogram.of([2.0, 2.0])
        latencies = {"echo": {"decode": half}, "<other>": {"prefill": two}}
        session.execute(update(Batch).values(latencies=latencies))
    page = client.get(f"/batches/{batch.id}").text
    table = page.partition('aria-label="Time per request')[2].partition("</table>")[0].partition("<tbody>")[2]
    rows = [re.sub(r"<[^>]+>|\s+", " ", row).split() for row in table.split("</tr>")[:2]]
    assert [row[:3] for row in rows] == [["&lt;other&gt;", "prompt-heavy", "2"], ["echo", "answer-heavy", "1"]]


def test_only_an_administrator_sees_each_engine_and_nobody_its_internal_name(
    client: FlaskClient, context: AppContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    state = EngineStatus(name="engine:echo:0.1.0:0f27e:t60:3", model="echo", state="idle", seen_at=1.0)
    monkeypatch.setattr("tasks.metrics._messages", lambda _context: {})
    monkeypatch.setattr("tasks.execution.tally.read", lambda _context: {})
    monkeypatch.setattr(engine_status, "read", lambda _context: [state])
    with context.database.write() as session:
        plain = keys.create(session, "plain").key
    stranger = signed_in(create_app(context).test_client(), plain)
    for path in ("/", "/models/echo"):
        ours, theirs = client.get(path).text, stranger.get(path).text
        assert ("eplica 3" in ours, "eplica 3" in theirs, "engine:echo" in ours + theirs) == (True, False, False), path
    assert '<span class="state idle">idle</span>' in theirs


def test_an_administrator_sees_what_each_engine_does_and_the_browser_is_told_of_changes_only(
    client: FlaskClient, context: AppContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = time.time()
    engine = EngineStatus(
        name="engine:echo:0",
        model="echo",
        state="busy",
        answered=7,
        in_flight=3,
        idle_seconds=0.0,
        seen_at=now,
        preemptions=4,
        started_at=now - 90,
        start_seconds=24.0,
        capacity=256,
        memory_bytes=3 << 30,
        peak_memory_bytes=4 << 30,
        peak_gpu_memory_bytes=70 << 30,
        gpus=2.0,
        gpu_ids=["0", "3"],
        cache_use=0.25,
        prefix_tokens=200,
        prefix_hits=50,
    )
    engines = [engine]
    totals = {("input_tokens", "echo"): 1000, ("cached_tokens", "echo"): 600}
    monkeypatch.setattr("tasks.metrics._messages", lambda _context: {})
    monkeypatch.setattr("tasks.execution.tally.read", lambda _context: totals)
    monkeypatch.setattr(engine_status, "read", lambda _context: engines)
    page = client.get("/models/echo").text
    words = " ".join(re.sub(r"<[^>]+>", " ", page).split())
    for part in (
        *("State busy", "Up since 1 min ago start took 24 s", "In flight 3 batch size 256 7 sent so far"),
        *(
            "Memory 3.0 GiB 4.0 GiB at most",
            "GPUs 2 number 0, 3 70.0 GiB at most",
            "KV cache in use 25.0 %",
            "Prefix cache hits 25.0 %",
            "Preemptions 4",
        ),
        "Prefix cache hits 60.0 % of all input tokens",
    ):
        assert part in words, words
    poll = re.search(r'hx-get="([^"]+)"', page)
    assert poll is not None
    assert client.get(poll[1], headers={"HX-Request": "true"}).status_code == 204
    engines[0] = engine.model_copy(update={"in_flight": 0, "seen_at": now - 100})
    changed = client.get(poll[1], headers={"HX-Request": "true"}).text
    assert '<span class="state">was busy</span>' in changed and "<html" not in changed
    engines.clear()
    assert "No engine is up" in client.get("/models/echo").text


def test_why_no_engine_starts_is_said_with_since_when_and_when_it_is_tried_again(
    client: FlaskClient, context: AppContext
) -> None:
    with context.database.read() as session:
        project_id = session.scalars(select(Project.id)).one()
    plan_batch(context, project_id, ["one"])
    with context.database.write() as session:
        for _ in range(2):
            holds.hold(session, "echo", "no <kernel> for this GPU")
    words = " ".join(re.sub(r"<[^>]+>", " ", client.get("/models/echo").text).split())
    assert "cannot run: no &lt;kernel&gt; for this GPU Tried 2 times since" in words, words
    assert re.search(r"the next attempt is (in \d+ s|due now)", words)
