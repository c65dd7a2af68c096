"""Live requests on the pages: on their model's, and on batches that share its engines with them."""

from __future__ import annotations

import re
import time
from pathlib import Path

import pytest
from sqlalchemy import select

from batchyard.cli import view
from inference.residents.status import ResidentStatus
from store import batches, keys
from store.records import Project
from tasks.context import AppContext
from tasks.execution import engine_status, tally
from tasks.live import traffic
from tasks.live.traffic import Counts
from tests.support.planned import plan_batch
from tests.support.webapps import context_in
from tests.webapp.pages.conftest import signed_in
from webapp import create_app


@pytest.fixture
def context(tmp_path: Path, broker: str, monkeypatch: pytest.MonkeyPatch) -> AppContext:
    """A context whose model `echo` has answered live requests a minute ago. Its time stands still."""
    now = time.time()
    monkeypatch.setattr(time, "time", lambda: now)
    context = context_in(tmp_path, redis_url=broker)
    context.redis.flushall()
    status = ResidentStatus(name="e", model="echo", state="busy", seen_at=time.time(), live_in_flight=2, batch_limit=7)
    engine_status.publish(context, {"e": status})
    counts = Counts()
    for _ in range(60):
        times = {"first": [0.04], "queue": [0.001], "gap": [0.02]}
        counts.add("default", failed=False, output_tokens=90, milliseconds=500, seconds=times)  # type: ignore[arg-type]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(time, "time", lambda: now - 60)
        traffic.count(context, "echo", counts)
        tally.count(context, "echo", {"output_tokens": 600})
    return context


def text_of(page: str) -> str:
    return " ".join(re.sub(r"<[^>]+>", " ", page).split())


def test_a_model_shows_its_live_requests_beside_its_batches(context: AppContext) -> None:
    with context.database.write() as session:
        key = keys.create(session, "default").key
    page = signed_in(create_app(context).test_client(), key).get("/models/echo").text
    text = text_of(page)
    assert "2 in its engine, 0 waiting" in text and "Slots available to batches 7 requests" in text
    row = text_of(page.partition(">live</th>")[2].partition("</tr>")[0]).split()
    assert " ".join(row[3:]) in ("40 ms 40 ms 20 ms 20 ms 1 ms 1 ms", "40 ms 40 ms 20 ms 20 ms 0.99 ms 0.99 ms")
    assert "Output tokens per second in each of the last 10 minutes" in page
    values = text_of(page.partition("Values: Output tokens")[2].partition("</tbody>")[0])
    assert values.endswith("90 10"), "of the last minute, live requests and batches"


def test_a_batch_says_what_live_requests_take_of_its_model(context: AppContext) -> None:
    with context.database.write() as session:
        key = keys.create(session, "default", admin=True).key
        project_id = session.scalars(select(Project.id)).one()
    batch = plan_batch(context, project_id, ["one", "two"])
    client = signed_in(create_app(context).test_client(), key)
    document = client.get(f"/v1/batches/{batch.id}", headers={"Authorization": f"Bearer {key}"}).get_json()
    (share,) = document["batchyard"]["live_shares"].values()
    assert 0.25 <= share <= 0.5, "30 seconds of the last one to two minutes"
    phrase = f"live requests take about {100 * share:.0f} % of echo's time"
    assert phrase in view.facts(document)
    assert re.search(r"live requests take about \d\d % of echo&#39;s time", client.get(f"/batches/{batch.id}").text)
    with context.database.write() as session:
        batches.transition(session, batch.id, "in_progress", "cancelling")
        batches.transition(session, batch.id, "cancelling", "cancelled")
    document = client.get(f"/v1/batches/{batch.id}", headers={"Authorization": f"Bearer {key}"}).get_json()
    assert document["batchyard"]["live_shares"] == {}, "it has ended"
