"""Pages, API and terminal say what a batch does now, in the same words."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from sqlalchemy import select

from batchyard.cli import view
from store import keys
from store.records import Project
from tasks.scheduling import states
from tasks.scheduling.states import State
from tests.support.planned import plan_batch
from tests.support.webapps import context_in
from tests.webapp.pages.conftest import signed_in
from webapp import create_app


@pytest.mark.parametrize(
    ("state", "page_text", "terminal_text"),
    [
        (None, "Waiting for its turn", "waiting for its turn"),
        (State("running"), "Running", "running"),
        (
            State("starting_engine", usual_seconds=90.0),
            "Starting engine usually 1 min 30 s",
            "starting engine, which usually takes 1 min 30 s",
        ),
        (State("starting_engine"), "Starting engine", "starting engine"),
        (State("waiting", behind=1), "Waiting behind 1 batch", "waiting behind 1 batch"),
        (
            State("waiting", behind=7, behind_ids=("batch_0123456789", "batch_abcdef")),
            "Waiting behind 7 batches: h_0123456789, batch_abcdef and 5 more",
            "waiting behind 7 batches (batch_0123456789, batch_abcdef and 5 more)",
        ),
    ],
)
def test_a_batch_says_what_it_does(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    broker: str,
    state: State | None,
    page_text: str,
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
    for path in ("/", f"/batches/{batch.id}"):
        facts = re.search(r"<dt>Now</dt><dd>(.*?)</dd>", client.get(path).text, re.DOTALL)
        assert facts is not None
        text = " ".join(re.sub(r"<[^>]+>", "", facts[1]).split())
        assert text.replace("…", "") == page_text, path
