"""Code on forms: it runs as it stands."""

from __future__ import annotations

import json
import shlex
from pathlib import Path

import pytest
from flask.testing import FlaskClient

from store import keys
from store.records import Job
from tasks.context import AppContext
from webapp.pages import snippets

OPTIONS = {
    "model": "echo",
    "template": "Say {it's}",
    "reward": "exact",
    "ground_truth": "answer",
    "sampling": {"temperature": 0.5, "stop": ["a", "b"]},
}


def test_the_code_of_a_job_creates_it(
    client: FlaskClient, served: str, context: AppContext, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "my rows.jsonl").write_text('{"it\'s": "one"}\n')
    monkeypatch.chdir(tmp_path)
    with context.database.write() as session:
        monkeypatch.setenv("BATCHYARD_API_KEY", keys.create(session, "default").key)
    body = {"recipe": "rollout", "options": OPTIONS, "name": "it's mine", "seed": 3}
    with client.application.test_request_context(base_url=served):
        code = snippets.job(body, "my rows.jsonl")
    exec(code["Python"])
    with context.database.read() as session:
        job = session.query(Job).one()
    assert (job.name, job.recipe, job.seed, job.options["sampling"]["temperature"]) == ("it's mine", "rollout", 3, 0.5)
    assert shlex.split(code["Terminal"].replace("\\\n", "")) == [
        *("batchyard", "rollout", "my rows.jsonl", "--seed", "3", "--name", "it's mine"),
        *("model=echo", "template=Say {it's}", "reward=exact", "ground_truth=answer"),
        *("sampling.temperature=0.5", 'sampling.stop=["a", "b"]'),
    ]
    sent = shlex.split(code["curl"])
    assert "file=@my rows.jsonl" in sent and json.loads(sent[-1]) == {**body, "input_file_id": "FILE_ID"}
