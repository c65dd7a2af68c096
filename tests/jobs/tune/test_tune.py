"""Tunes without a worker: who may start one, what is refused, which jobs a cell has, and what becomes of it."""

from __future__ import annotations

import json
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from flask.testing import FlaskClient
from sqlalchemy import update

from batchyard.models import Adapter, ModelSpec
from jobs import finish, messages
from jobs.tune import measuring
from jobs.tune.measuring import Wave
from store.jobs import composites, lifecycle
from store.records import Job
from tasks.context import AppContext
from tasks.execution.engine_status import EngineStatus
from tasks.port import running_models
from tasks.scheduling import deadlines, dispatch
from tests.support.ended_jobs import EndedComposites
from tests.support.stacks import ROOT
from tests.support.webapps import client_of, context_in, on_sqlite, upload

ROWS = [{"prompt": f"word {number}"} for number in range(3)]
TWO: dict[str, Any] = {"models": ["echo"], "set": {"engine_args.slots": [4, 8]}, "repeats": 2}


@pytest.fixture
def stopped(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The models whose engines were told to stop."""
    models: list[str] = []
    monkeypatch.setattr(messages, "stop_engine", models.append)
    return models


@pytest.fixture
def context(
    database_url: str, broker: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stopped: list[str]
) -> AppContext:
    for name in ("validate", "advance", "finish"):
        monkeypatch.setattr(messages, name, lambda *_: None)
    return context_in(tmp_path, database_url=database_url, redis_url=broker)


class Tunes(EndedComposites):
    """Tunes over ROWS, whose ticks a test makes, and whose jobs end as it says."""

    def post(self, **options: Any) -> Any:
        content = b"".join(json.dumps(row).encode() + b"\n" for row in ROWS)
        file_id = upload(self.client, content, purpose="user_data").get_json()["id"]
        body = {"recipe": "tune", "options": TWO | options, "input_file_id": file_id}
        return self.client.post("/v1/jobs", json=body)

    def running(self, tune: dict[str, Any]) -> dict[str, dict[str, Any]]:
        return {key: job for key, job in self.children(tune).items() if job["status"] in ("validating", "in_progress")}

    def run(self, tune: dict[str, Any], state: str = "completed") -> dict[str, Any]:
        """End all rows of all jobs that run, and let the tune go on."""
        for job in self.running(tune).values():
            job = self.begun(job)
            self.end(job, dict.fromkeys(range(1, job["request_counts"]["total"] + 1), state))
        return self.tick(tune)

    def results(self, tune: dict[str, Any]) -> dict[str, dict[str, Any]]:
        """Finish a tune, and return its result lines by cell."""
        assert finish.run(self.context, tune["id"], "here/1/task")
        lines = map(json.loads, self.artifacts(self.look(tune))["results.jsonl"].splitlines())
        return {line["custom_id"]: line for line in lines}


@pytest.fixture
def tunes(context: AppContext) -> Tunes:
    return Tunes(context, client_of(context, admin=True))


def test_its_cells_run_one_after_the_other_each_with_a_warm_up_and_equal_jobs_side_by_side(
    tunes: Tunes, stopped: list[str]
) -> None:
    tune = tunes.started(concurrency=[2], warm_up=1, options={"sampling.max_tokens": 5})
    assert (tune["request_counts"]["total"], tune["batchyard"]["admitted"]) == (2, 1)
    first = "echo-x2+slots-4"
    assert list(tunes.running(tune)) == [f"{first}/0/0"]
    tune = tunes.run(tune)
    assert sorted(tunes.running(tune)) == [f"{first}/1/0", f"{first}/1/1"]
    tune = tunes.run(tune)
    assert sorted(tunes.running(tune)) == [f"{first}/2/0", f"{first}/2/1"]
    assert (tune["request_counts"]["completed"], stopped) == (0, [])
    tune = tunes.run(tune)
    jobs = tunes.children(tune)
    models = {next(iter(job["batchyard"]["models"])) for job in jobs.values()}
    assert len(models) == 1 and stopped == list(models)
    assert tune["request_counts"]["completed"] == 1
    for key, job in jobs.items():
        options = job["batchyard"]["options"]
        assert (job["recipe"], options["fresh"], options["retries"]) == ("batch", True, 0)
        assert options["sampling"]["max_tokens"] == 5
        assert options["limit"] == (1 if "/0/" in key else None)
        assert options["model"] in models
    tune = tunes.tick(tune)
    assert list(tunes.running(tune)) == ["echo-x2+slots-8/0/0"]
    while tune["status"] == "in_progress":
        tune = tunes.tick(tunes.run(tune, "failed"))
    results = tunes.results(tune)
    assert list(results) == [first, "echo-x2+slots-8"]
    cell = results[first]["result"]["cell"]
    assert (cell["state"], cell["overrides"], len(cell["repeats"])) == ("completed", {"engine_args.slots": 4}, 2)
    assert (cell["repeats"][0]["rows"], cell["repeats"][0]["ok"]) == (6, 6)
    assert {"tune.json", "summary.csv", "report.md", "view.json"} <= tunes.artifacts(tunes.look(tune)).keys()


def test_a_derived_model_is_known_as_long_as_jobs_on_it_run_and_no_client_can_name_it(tunes: Tunes) -> None:
    tune = tunes.started()
    (job,) = tunes.running(tune).values()
    name = job["batchyard"]["options"]["model"]
    base, _, digits = name.partition("~")
    context = tunes.context
    with context.database.read() as session:
        specs, limits = running_models(context, session), dispatch.limits(context, session)
    assert (base, len(digits), specs[name].engine_args) == ("echo", 8, {"slots": 4})
    assert limits.models[name] == 2 and name in limits.fills
    deadlines.tick(context)
    assert name not in [model["id"] for model in tunes.client.get("/v1/models").get_json()["data"]]
    assert tunes.client.get(f"/v1/models/{name}").status_code == 404
    body = {"recipe": "batch", "options": {"model": name}, "input": {"prompts": ["hello"]}}
    refusal = tunes.client.post("/v1/jobs", json=body)
    assert (refusal.status_code, refusal.get_json()["error"]["code"]) == (400, "model_not_found")
    tunes.run(tune)
    for _ in range(2):
        tune = tunes.run(tune)
    with context.database.read() as session:
        assert list(composites.derived_models(session)) == []


def test_only_administrators_start_one(tunes: Tunes, context: AppContext) -> None:
    tenant = Tunes(context, client_of(context))
    answer = tenant.post()
    assert (answer.status_code, "admin key" in answer.get_json()["error"]["message"]) == (403, True)
    job = {"recipe": "tune", "options": TWO}
    schedule = {"name": "often", "cron": "0 3 * * *", "input": {"template": '{"prompt": "hello"}\n'}, "job": job}
    refused = tunes.client.post("/v1/schedules", json=schedule)
    assert (refused.status_code, "has no schedule" in refused.get_json()["error"]["message"]) == (400, True)
    assert tunes.client.get("/v1/jobs").get_json()["data"] == []


@on_sqlite
def test_a_cell_sets_no_more_than_an_administrator_may_set_over_http(tunes: Tunes, context: AppContext) -> None:
    calls = {"set": {"engine_args.call_log": ["/etc/passwd"]}}
    answer = tunes.post(**calls)
    error = answer.get_json()["error"]
    assert (answer.status_code, error["code"], error["param"]) == (
        *(403, "key_not_allowed"),
        "options.set.engine_args.call_log",
    )
    assert "BATCHYARD_TRUST_ADMINISTRATORS=1" in error["message"]
    trusting = replace(context, settings=context.settings.model_copy(update={"trust_administrators": True}))
    assert Tunes(trusting, client_of(trusting, admin=True)).post(**calls).status_code == 200


@on_sqlite
@pytest.mark.parametrize(
    ("options", "param", "says"),
    [
        ({"models": ["eco"]}, "options.models.0", "Did you mean 'echo'?"),
        ({"set": {"max_inflight": [1]}}, "options.set", "did you mean max_in_flight?"),
        ({"set": {"engine_args.slot": [4]}}, "options.set", "did you mean slots?"),
        ({"set": {"engine_args.slots": [0]}}, "options.set", "more than 0"),
        ({"set": {"adapters": [{"more": {"source": "/etc"}}]}}, "options.set", "another adapters is another model"),
        ({"set": {"replicas": [1, 1]}}, "options.set", "are one configuration"),
        ({"budget": "soon"}, "options.budget", "is no duration"),
        ({"options": {"sampling.max_token": 3}}, "options.options.sampling.max_token", "max_tokens"),
        ({"options": {"model": "echo"}}, "options.options", "leave it out"),
    ],
)
def test_what_cannot_be_is_refused_with_its_place_and_the_nearest_name(
    tunes: Tunes, options: dict[str, Any], param: str, says: str
) -> None:
    place, message = tunes.refused(**options)
    assert place == param
    assert says in message


@on_sqlite
@pytest.mark.vllm
def test_a_dry_run_refuses_a_name_that_vllm_does_not_know(context: AppContext) -> None:
    entry = {"name": "v", "engine": "vllm", "source": str(ROOT / "examples/models/nano")}
    context.models["v"] = ModelSpec.model_validate(entry)
    tunes = Tunes(context, client_of(context, admin=True))
    for name, status in (("max_num_seq", 400), ("max_num_seqs", 200)):
        options = TWO | {"models": ["v"], "set": {f"engine_args.{name}": [32]}}
        body = {"recipe": "tune", "options": options, "input": {"items": ROWS}}
        answer = tunes.client.post("/v1/jobs?dry_run=true", json=body)
        assert answer.status_code == status, answer.text
        assert status == 200 or "did you mean max_num_seqs?" in answer.get_json()["error"]["message"]


@on_sqlite
def test_an_adapter_is_refused_with_the_base_whose_engine_answers_it(tunes: Tunes, context: AppContext) -> None:
    echo = context.models["echo"]
    context.models["echo"] = echo.model_copy(update={"adapters": {"french": Adapter()}})
    refusal = tunes.post(models=["french"]).get_json()["error"]
    assert (refusal["param"], "name 'echo'" in refusal["message"]) == ("options.models.0", True)


def test_a_dry_run_names_its_cells(tunes: Tunes) -> None:
    body = {"recipe": "tune", "options": TWO, "input": {"items": ROWS}}
    outlook = tunes.client.post("/v1/jobs?dry_run=true", json=body).get_json()
    assert outlook["items"] == 2
    assert outlook["cells"][0] == {
        **{"name": "echo+slots-4", "model": "echo", "concurrency": 1},
        "overrides": {"engine_args.slots": 4},
    }
    assert tunes.client.get("/v1/jobs").get_json()["data"] == []


def test_a_cell_of_which_no_row_is_answered_is_recorded_with_its_reason_and_the_others_run(tunes: Tunes) -> None:
    tune = tunes.started()
    tune = tunes.run(tune, "failed")
    assert tune["request_counts"]["failed"] == 1
    tune = tunes.tick(tune)
    assert list(tunes.running(tune)) == ["echo+slots-8/0/0"]
    while tune["status"] == "in_progress":
        tune = tunes.tick(tunes.run(tune))
    cells = {name: line["result"]["cell"] for name, line in tunes.results(tune).items()}
    assert [cell["state"] for cell in cells.values()] == ["failed", "completed"]
    assert cells["echo+slots-4"]["error"] == "no row of the warm-up was answered; no_answer: None."
    assert cells["echo+slots-4"]["evidence"] == ["no_answer: None."]
    assert tunes.look(tune)["status"] == "completed"


@on_sqlite
def test_the_remedy_of_a_failed_cell_is_tried_as_one_more_cell(
    tunes: Tunes, stopped: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        Wave, "evidence", lambda *_: ("engine_unavailable: torch.OutOfMemoryError: CUDA out of memory",)
    )
    tune = tunes.started(repair=True, repeats=1, set={}, batch=[6])
    assert tune["request_counts"]["total"] == 1
    tune = tunes.run(tune, "failed")
    counts = tune["request_counts"]
    assert (tune["status"], counts["total"], counts["failed"]) == ("in_progress", 2, 1)
    tune = tunes.tick(tune)
    (key,) = tunes.running(tune)
    while tune["status"] == "in_progress":
        tune = tunes.tick(tunes.run(tune))
    failed, repaired = (line["result"]["cell"] for line in tunes.results(tune).values())
    assert repaired["cell"]["name"] == key.split("/")[0]
    assert (repaired["cell"]["repair_of"], repaired["overrides"]) == (failed["cell"]["name"], {"engine_args.slots": 3})
    assert (failed["state"], repaired["state"], len(set(stopped))) == ("failed", "completed", 2)


def test_a_cell_ends_with_its_time_and_all_of_them_with_theirs(tunes: Tunes) -> None:
    tune = tunes.started(cell_budget="20m", budget="1h")
    tune = tunes.run(tune)
    (job,) = tunes.running(tune).values()
    assert job["expires_at"] == min(own["created_at"] for own in tunes.children(tune).values()) + 1200
    job = tunes.begun(job)
    with tunes.context.database.write() as session:
        session.execute(update(Job).where(Job.id == job["id"]).values(expires_at=1))
        lifecycle.expire(session)
    tunes.end(job, {}, "expired")
    tune = tunes.tick(tune)
    assert tune["request_counts"]["failed"] == 1
    with tunes.context.database.write() as session:
        session.execute(update(Job).where(Job.id == tune["id"]).values(in_progress_at=int(time.time()) - 3600))
    tune = tunes.tick(tune)
    assert tune["status"] == "finalizing"
    cells = {name: line["result"]["cell"] for name, line in tunes.results(tune).items()}
    assert [cell["state"] for cell in cells.values()] == ["over_budget", "not_run"]
    assert "0 of 3 rows of repeat 1 had ended" in cells["echo+slots-4"]["error"]


@on_sqlite
def test_the_next_cell_waits_until_the_engines_of_the_last_one_are_stopped(
    tunes: Tunes, stopped: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    known: dict[str, Any] = {"capacity": 4, "start_seconds": 1.5, "peak_memory_bytes": 1000}
    alive = [EngineStatus(name="engine:x", model="x", state="idle", answered=9, seen_at=time.time(), **known)]
    monkeypatch.setattr(measuring, "engines", lambda *_: alive)
    tune = tunes.started(repeats=1)
    for _ in range(3):
        tune = tunes.tick(tunes.run(tune))
    assert (tune["request_counts"]["completed"], tunes.running(tune)) == (1, {})
    assert len(set(stopped)) == 1 and len(stopped) > 1
    alive.clear()
    tune = tunes.tick(tune)
    assert list(tunes.running(tune)) == ["echo+slots-8/0/0"]
    while tune["status"] == "in_progress":
        tune = tunes.tick(tunes.run(tune))
    cell = tunes.results(tune)["echo+slots-4"]["result"]["cell"]
    assert (cell["capacity"], cell["start_seconds"], cell["peak_memory"]) == (4, 1.5, 1000)


@on_sqlite
def test_cancelling_it_cancels_its_jobs_and_stops_the_engine(tunes: Tunes, stopped: list[str]) -> None:
    tune = tunes.started()
    (job,) = tunes.running(tune).values()
    tunes.client.post(f"/v1/jobs/{tune['id']}/cancel")
    assert tunes.tick(tune)["status"] == "cancelling"
    assert finish.run(tunes.context, job["id"], "here/1/task")
    tunes.tick(tune)
    assert stopped == [job["batchyard"]["options"]["model"]]
    assert finish.run(tunes.context, tune["id"], "here/1/task")
    assert tunes.look(tune)["status"] == "cancelled"


@on_sqlite
def test_equal_requests_are_all_computed(tunes: Tunes) -> None:
    from batchyard.recipes import Item
    from batchyard.recipes.program import Request
    from jobs.intake.requests import PreparedRequest, Preparer

    body = {"model": "echo", "messages": [{"role": "user", "content": "1"}], "temperature": 0}
    request = Request("answer", "/v1/chat/completions", 1, 0, "echo", body, {}, None)
    prints = []
    for shares in (True, False):
        prepared = Preparer(tunes.context.models, shares_answers=shares).prepare(Item(0, "a", {}), 0, request)
        assert isinstance(prepared, PreparedRequest)
        prints.append(prepared.fingerprint)
    assert prints[0] is not None and prints[1] is None


@on_sqlite
def test_its_page_lists_the_jobs_of_its_cells_and_draws_the_report(tunes: Tunes) -> None:
    tune = tunes.started(repeats=1)
    while tune["status"] == "in_progress":
        tune = tunes.tick(tunes.run(tune))
    tunes.results(tune)
    visitor: FlaskClient = tunes.client.application.test_client()
    key = tunes.client.environ_base["HTTP_AUTHORIZATION"].removeprefix("Bearer ")
    visitor.post("/sign-in", data={"key": key})
    page = visitor.get(f"/jobs/{tune['id']}").text
    assert "echo+slots-8" in page and "report.md" in page
