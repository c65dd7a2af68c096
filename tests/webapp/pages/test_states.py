"""Pages, API and terminal say what a batch does now, in the same words."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import select, update

from batchyard.cli import view
from store import keys
from store.records import Batch, Project, now
from tasks.scheduling import states
from tasks.scheduling.states import BatchActivity
from tests.support.planned import plan_batch
from tests.support.webapps import context_in
from tests.webapp.pages.conftest import signed_in
from webapp import create_app


@pytest.mark.parametrize(
    ("state", "page_text", "list_text", "terminal_text"),
    [
        (None, "Waiting for its turn", "waiting", "waiting for its turn"),
        (BatchActivity("running"), "Running", "running", "running"),
        (
            BatchActivity("starting_engine", usual_seconds=90.0),
            "Starting engine usually 1 min 30 s",
            "starting engine",
            "starting engine, which usually takes 1 min 30 s",
        ),
        (BatchActivity("starting_engine"), "Starting engine", "starting engine", "starting engine"),
        (BatchActivity("waiting", behind=1), "Waiting behind 1 batch", "waiting behind 1", "waiting behind 1 batch"),
        (
            BatchActivity("waiting", behind=7, behind_ids=("batch_0123456789", "batch_abcdef")),
            "Waiting behind 7 batches: h_0123456789, batch_abcdef and 5 more",
            "waiting behind 7",
            "waiting behind 7 batches (batch_0123456789, batch_abcdef and 5 more)",
        ),
    ],
)
def test_a_batch_says_what_it_does(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    broker: str,
    state: BatchActivity | None,
    page_text: str,
    list_text: str,
    terminal_text: str,
) -> None:
    monkeypatch.setenv("REDIS_URL", broker)
    context = context_in(tmp_path)
    with context.database.write() as session:
        key = keys.create(session, "default", admin=True).key
        project_id = session.scalars(select(Project.id)).one()
    batch = plan_batch(context, project_id, ["one", "two"])
    states.publish(context, {batch.id: state} if state else {})
    client = signed_in(create_app(context).test_client(), key)
    answer = client.get(f"/v1/batches/{batch.id}", headers={"Authorization": f"Bearer {key}"}).get_json()
    assert answer["batchyard"]["state"]["name"] == (state.name if state else "waiting")
    assert terminal_text in view.facts(answer)
    assert terminal_text in view.progress(answer)
    page, listed = client.get(f"/batches/{batch.id}").text, client.get("/").text
    facts = re.search(r"<dt>Now</dt><dd>(.*?)</dd>", page, re.DOTALL)
    assert facts is not None
    text = " ".join(re.sub(r"<[^>]+>", "", facts[1]).split())
    assert text.replace("…", "") == page_text
    row = listed.partition(f'<tr id="{batch.id}"')[2].partition("</tr>")[0]
    assert f'">{list_text}</span>' in row


def test_a_batch_that_waits_says_why_what_is_before_it_and_what_runs_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, broker: str
) -> None:
    monkeypatch.setenv("REDIS_URL", broker)
    context = context_in(tmp_path)
    with context.database.write() as session:
        key = keys.create(session, "default", admin=True).key
        project_id = session.scalars(select(Project.id)).one()
    runs, waits, mine = (plan_batch(context, project_id, ["one"]) for _ in range(3))
    with context.database.write() as session:
        session.execute(update(Batch).values(due_at=now() + 7230))
        session.execute(update(Batch).where(Batch.id == waits.id).values(name="nightly <evals>"))
    client = signed_in(create_app(context).test_client(), key)

    def why(batch: Batch, state: BatchActivity) -> str:
        states.publish(context, {batch.id: state})
        page = client.get(f"/batches/{batch.id}").text
        return " ".join(re.sub(r"<[^>]+>", "", page.partition('<div class="why">')[2].partition("</div>")[0]).split())

    line: dict[str, Any] = {"model": "echo", "running": 1}
    text = why(mine, BatchActivity("waiting", 3, (runs.id, waits.id), next_id=waits.id, **line))
    assert "The engines of model echo are busy with 1 batch, and 2 waiting batches are due before it." in text
    assert "Batches run in the order of their due times. nightly &lt;evals&gt; runs next." in text
    assert text.endswith("in.jsonl due in 2 h nightly &lt;evals&gt; due in 2 h and 1 more")
    assert (
        why(waits, BatchActivity("waiting", 1, (runs.id,), next_id=waits.id, **line))
        .partition("due times.")[2]
        .startswith(" It runs next.")
    )
    text = why(mine, BatchActivity("waiting", 2, (), running=2, infeasible=True))
    assert "2 batches use all slots of this deployment. It cannot end within its window" in text
    assert text.endswith("A batch of another project runs next.")
