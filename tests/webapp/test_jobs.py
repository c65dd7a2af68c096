"""/v1/recipes and /v1/jobs without a worker: what is refused, and what a new job says of itself."""

from __future__ import annotations

import dataclasses
import io
import json
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from flask.testing import FlaskClient

from batchyard.models import ModelSpec
from jobs import validation
from jobs.kinds import item_checks
from store import speeds
from store.jobs import lifecycle
from store.speeds import Measurement
from tasks.context import AppContext
from tasks.scheduling import deadlines
from tests.support.messages import SentMessages
from tests.support.webapps import client_of, context_in, upload

pytestmark = pytest.mark.usefixtures("sent")

OPTIONS = {"model": "echo"}
JOB: dict[str, Any] = {"recipe": "debate", "options": OPTIONS, "input": {"prompts": ["Why?", "How?"]}}


@pytest.fixture
def context(database_url: str, broker: str, tmp_path: Path, recipes: Path) -> AppContext:
    return context_in(tmp_path, database_url=database_url, redis_url=broker, recipes=str(recipes))


@pytest.fixture
def client(context: AppContext) -> FlaskClient:
    return client_of(context)


@pytest.fixture(scope="module")
def refusing(broker: str, tmp_path_factory: pytest.TempPathFactory, recipes: Path) -> FlaskClient:
    """A client of tests that make nothing: they share its context."""
    return client_of(context_in(tmp_path_factory.mktemp("refusing"), redis_url=broker, recipes=str(recipes)))


def refused(client: FlaskClient, **changes: Any) -> tuple[str, str, str]:
    """Return code, param and message with which a job with these changes is refused."""
    answer = client.post("/v1/jobs", json=JOB | changes)
    assert answer.status_code == 400, answer.text
    error = answer.get_json()["error"]
    return error["code"], error["param"], error["message"]


def input_file(client: FlaskClient, name: str, content: bytes, purpose: str = "user_data") -> str:
    return str(upload(client, content, name=name, purpose=purpose).get_json()["id"])


def test_recipes_are_listed_with_the_schema_of_their_options_and_what_they_may_name(client: FlaskClient) -> None:
    listed = client.get("/v1/recipes").get_json()
    by_name = {recipe["name"]: recipe for recipe in listed["data"]}
    debate = by_name["debate"]
    assert debate["summary"] == "Argue n times, and let a judge choose."
    assert (debate["stages"], by_name["steps"]["stages"]) == (["argue", "judge"], ["step-0"])
    assert debate["judgement"] == ["reward"]
    assert debate["options"]["properties"]["n"]["maximum"] == 9
    assert {"retries", "seeds", "template"} <= debate["options"]["properties"].keys()
    assert debate["main"] == "results.jsonl"
    assert len(debate["sha256"]) == 64
    acme = {"name": "acme", "data_sources": ["acme/qa"], "columns": ["reward_model.ground_truth"]}
    assert acme in listed["rewards"]
    assert {"name": "no-apology"} in listed["gates"]


def test_a_new_job_has_the_defaults_of_its_recipe_and_is_sent_to_a_worker(
    client: FlaskClient, sent: SentMessages
) -> None:
    answer = client.post("/v1/jobs", json=JOB | {"name": "first", "metadata": {"team": "a"}, "seed": 7}, buffered=True)
    job = answer.get_json()
    assert (answer.status_code, job["object"], job["status"]) == (200, "job", "validating")
    assert (job["recipe"], job["name"], job["metadata"]) == ("debate", "first", {"team": "a"})
    assert job["expires_at"] - job["created_at"] == 86400
    assert job["request_counts"] == dict.fromkeys(("total", "completed", "failed", "stuck", "expired", "cancelled"), 0)
    ours = job["batchyard"]
    assert ours["options"] | {"n": 3, "temperature": 0.8, "retries": 2, "model": "echo"} == ours["options"]
    assert (ours["seed"], ours["simulated"], ours["models"]) == (7, True, {"echo": "echo"})
    assert (ours["stages"], ours["artifacts"], ours["warnings"], ours["eta_seconds"]) == ([], [], [], None)
    assert sent.ids("validate_job") == [job["id"]]
    assert client.get(f"/v1/jobs/{job['id']}").get_json() == job


def test_inline_items_become_a_file_that_can_be_read(client: FlaskClient) -> None:
    items = [{"custom_id": "a", "prompt": "Why?", "nested": {"deep": [1]}}, {"prompt": "ä"}]
    job = client.post("/v1/jobs", json=JOB | {"input": {"items": items}}).get_json()
    content = client.get(f"/v1/files/{job['input_file_id']}/content").data
    assert [json.loads(line) for line in content.splitlines()] == items
    assert client.get(f"/v1/files/{job['input_file_id']}").get_json()["purpose"] == "user_data"


@pytest.mark.parametrize(
    ("changes", "code", "param", "says"),
    [
        ({"recipe": "debates"}, "recipe_not_found", "recipe", "Did you mean 'debate'?"),
        ({"recipe": None}, "invalid_type", "recipe", "null is not a text"),
        ({"options": {}}, "missing_required_parameter", "options.model", "options.model"),
        ({"options": {**OPTIONS, "temprature": 1}}, "unknown_parameter", "options.temprature", "'options.temperature'"),
        (
            {"options": {**OPTIONS, "judge": {"model": "echo", "neer": 1}}},
            "unknown_parameter",
            "options.judge.neer",
            "'options.judge.near'",
        ),
        ({"options": {**OPTIONS, "n": 10}}, "invalid_value", "options.n", "at most 9"),
        ({"options": {"model": "echi"}}, "model_not_found", "options.model", "Did you mean 'echo'?"),
        ({"options": {**OPTIONS, "judge": {"model": "e"}}}, "model_not_found", "options.judge.model", "Served: echo"),
        ({"options": {**OPTIONS, "reward": "acmee"}}, "reward_not_found", "options.reward", "Did you mean 'acme'?"),
        (
            {"options": {**OPTIONS, "reward": {"a": "b"}}},
            "reward_not_found",
            "options.reward.a",
            "Available: exact, numeric",
        ),
        ({"options": {**OPTIONS, "gates": ["no-apologi"]}}, "gate_not_found", "options.gates.0", "'no-apology'"),
        ({"options": {**OPTIONS, "temperature": 0}}, "invalid_value", "options.temperature", "are the same"),
        ({"recipe": "steps", "options": {"steps": 0}}, "recipe_error", "options", "no stage"),
        ({"input": None}, "missing_required_parameter", "input_file_id", "'input'"),
        ({"input_file_id": "file-1"}, "invalid_value", "input_file_id", "either"),
        ({"input": {}}, "invalid_value", "input", "name one of"),
        ({"input": {"prompts": []}}, "invalid_value", "input.prompts", "1 to 1000"),
        ({"input": {"prompts": ["a"] * 1001}}, "invalid_value", "input.prompts", "1 to 1000"),
        ({"input": {"items": ["a"]}}, "invalid_type", "input.items.0", "not an object"),
        ({"input": {"artifact": {"name": "a"}}}, "invalid_value", "input.artifact", "'job_id'"),
        ({"input": {"artifact": {"job_id": "job_1", "name": "a"}}}, "invalid_value", "input.artifact", "job_1"),
        ({"input": {"artifact": {"batch_id": "batch_1", "name": "a"}}}, "invalid_value", "input.artifact", "batch_1"),
        ({"completion_window": "1s"}, "invalid_value", "completion_window", "supported are"),
        ({"seed": -1}, "invalid_value", "seed", "at least 0, less than 9007199254740992"),
        ({"optoins": {}}, "unknown_parameter", "optoins", "'options'"),
        ({"depends_on": [{"id": "job_1"}]}, "invalid_value", "depends_on.0.id", "job_1"),
        ({"depends_on": [{"id": "job_1", "when": "after"}]}, "invalid_value", "depends_on.0.when", "afterok"),
        ({"depends_on": [{"id": "job_1", "when": ["afterok"]}]}, "invalid_type", "depends_on.0.when", "afterok"),
        ({"options": {**OPTIONS, "n": 3.5}}, "invalid_type", "options.n", "not a whole number"),
        ({"depends_on": [{"id": "job_1"}] * 17}, "invalid_value", "depends_on", "at most 16"),
        ({"post_process": [{"step": "scor"}]}, "invalid_value", "post_process.0", "there are: export, parquet, score"),
        ({"options": {**OPTIONS, "template": "a\0"}}, "invalid_value", "options.template", "NUL"),
    ],
)
def test_what_cannot_be_is_refused_with_its_place_and_a_remedy(
    refusing: FlaskClient, sent: SentMessages, changes: dict[str, Any], code: str, param: str, says: str
) -> None:
    actual = refused(refusing, **changes)
    assert actual[:2] == (code, param)
    assert says in actual[2]
    assert refusing.get("/v1/jobs").get_json()["data"] == []
    assert sent.ids("validate_job") == []


def test_one_refusal_names_every_wrong_option(refusing: FlaskClient) -> None:
    _, param, message = refused(refusing, options={"n": 1, "temperature": 3, "tempo": 1})
    assert param == "options.model"
    assert all(name in message for name in ("options.model", "options.n", "options.temperature", "options.tempo"))


@pytest.mark.parametrize("depth", [65, 190])
def test_what_is_nested_too_deep_is_refused(refusing: FlaskClient, depth: int) -> None:
    nested: Any = "a"
    for _ in range(depth):
        nested = [nested]
    assert refused(refusing, options={"system": nested})[1] == "options"
    assert refused(refusing, input={"items": [{"a": nested}]})[1] == "input.items.0"


def test_an_input_file_has_a_purpose_and_a_format(client: FlaskClient) -> None:
    def of_file(file_id: str) -> dict[str, Any]:
        return {"input": None, "input_file_id": file_id}

    assert refused(client, **of_file("file-1"))[1] == "input_file_id"
    assert "'user_data' or 'batch'" in refused(client, **of_file(input_file(client, "a.txt", b"a", "vision")))[2]
    assert ".parquet" in refused(client, **of_file(input_file(client, "a.pdf", b"a")))[2]
    for purpose in ("user_data", "batch"):
        file_id = input_file(client, "in.txt", b"Why?\nHow?\n", purpose)
        job = client.post("/v1/jobs", json=JOB | of_file(file_id)).get_json()
        assert (job["input_file_id"], job["status"]) == (file_id, "validating")


def test_a_dry_run_says_what_the_job_would_be_and_makes_none(
    client: FlaskClient, context: AppContext, sent: SentMessages
) -> None:
    file_id = input_file(client, "in.csv", b'prompt\nWhy?\nHow?\n"a\nb"\n')
    body = {"recipe": "debate", "options": {**OPTIONS, "n": 2}, "input_file_id": file_id}
    plan = client.post("/v1/jobs?dry_run=true", json=body).get_json()
    assert (plan["object"], plan["items"], plan["same_as"], plan["eta_seconds"]) == ("job.dry_run", 3, None, None)
    endpoint = "/v1/chat/completions"
    assert plan["stages"] == [
        {"name": "argue", "endpoint": endpoint, "expected": 6, "least": 6, "most": 6},
        {"name": "judge", "endpoint": endpoint, "expected": None, "least": 0, "most": None},
    ]
    assert client.get("/v1/jobs").get_json()["data"] == sent.ids("validate_job") == []
    job = client.post("/v1/jobs", json=body).get_json()
    assert job["batchyard"]["config_sha256"] == plan["config_sha256"]
    again = client.post("/v1/jobs?dry_run=1", json=body).get_json()
    assert again["same_as"] == job["id"]
    limited = client.post("/v1/jobs?dry_run=true", json=body | {"options": {**OPTIONS, "limit": 2}}).get_json()
    assert (limited["items"], limited["same_as"]) == (2, None)
    assert client.post("/v1/jobs?dry_run=perhaps", json=body).get_json()["error"]["param"] == "dry_run"


def test_a_dry_run_shows_all_columns_of_a_template_in_their_order(client: FlaskClient) -> None:
    rows = [{"text": text, "genre": "sad", "answer": "1"} for text in ("a", "b")]
    options = {"model": "echo", "template": "{*}", "ground_truth": "answer", "reward": "exact"}
    body = {"recipe": "rollout", "options": options, "input": {"items": rows}}
    plan = client.post("/v1/jobs?dry_run=true", json=body).get_json()
    first = plan["requests"][0]["body"]["messages"]
    assert first == [{"role": "user", "content": "genre: sad\ntext: a"}]


def measure(context: AppContext, *models: str) -> None:
    """Measure ten requests a second, and 8 in flight, for each of these models."""
    measurement = Measurement(
        seconds=60, requests=600, bytes=60_000, tokens=5400, squares=150_000, in_flight=8, limit=8
    )
    with context.database.write() as session:
        for model in models:
            for _ in range(3):
                speeds.measure(
                    speeds.locked(session, model, context.models[model].config_sha256, "decode"), measurement
                )


@pytest.fixture
def two_models(context: AppContext) -> AppContext:
    models = context.models | {"other": ModelSpec(name="other", engine="echo")}
    return dataclasses.replace(context, models=models, settings=context.settings.model_copy(update={"max_segments": 2}))


def dry_run(client: FlaskClient, recipe: str, **options: Any) -> tuple[float | None, list[str]]:
    """Return the ETA and the codes of the warnings."""
    body = {"recipe": recipe, "options": options, "input": {"prompts": ["Why?"] * 100}}
    plan = client.post("/v1/jobs?dry_run=true", json=body).get_json()
    assert plan["object"] == "job.dry_run", plan
    return plan["eta_seconds"], [warning["code"] for warning in plan["warnings"]]


def test_a_dry_run_says_when_the_job_would_be_done_once_its_models_are_measured(two_models: AppContext) -> None:
    client = client_of(two_models)
    panel = {"model": "echo", "agents": ["DEV", "QA"], "rounds": 1}
    assert dry_run(client, "panel", **panel) == (None, ["not_measured"])
    measure(two_models, "echo")
    for options, requests in ((panel, 600), (panel | {"rounds": 0}, 200), (panel | {"rounds": 2}, 1000)):
        seconds, warnings = dry_run(client, "panel", **options)
        assert seconds == pytest.approx(requests / 10, abs=5)
        assert warnings == []
    streamed, _ = dry_run(client, "panel", **panel)
    barriers, _ = dry_run(client, "panel", **panel, streaming=False)
    assert streamed is not None and barriers is not None and streamed < barriers < 1.2 * streamed
    assert dry_run(client, "steps", steps=1) == (None, ["few_segments", "eta_unknown"])
    judge = {"model": "echo", "allow_author": True, "structured": False}
    assert dry_run(client, "panel", **panel, judge=judge) == (None, ["eta_unknown"])


def test_a_dry_run_has_a_range_where_the_answers_decide_how_many_requests_there_are(context: AppContext) -> None:
    client = client_of(context)
    refine = {"tiers": [{"model": "echo", "budget": 3}], "reviewer": "echo", "gates": ["contains:so"]}
    body = {"recipe": "refine", "options": refine, "input": {"prompts": ["Why?"] * 100}}
    plan = client.post("/v1/jobs?dry_run=true", json=body).get_json()
    assert (plan["eta_earliest_seconds"], plan["eta_latest_seconds"], plan["on_time"]) == (None, None, None)
    measure(context, "echo")
    plan = client.post("/v1/jobs?dry_run=true", json=body).get_json()
    bounds = {stage["name"]: (stage["expected"], stage["least"], stage["most"]) for stage in plan["stages"]}
    assert bounds == {"answer": (None, 100, 300), "review": (None, 100, 600)}
    assert plan["eta_seconds"] is None and plan["on_time"] is True
    assert plan["eta_earliest_seconds"] == pytest.approx(20, abs=5)
    assert plan["eta_latest_seconds"] == pytest.approx(90, abs=15)
    assert "range" in plan["warnings"][0]["message"]
    body = {"recipe": "steps", "options": {"steps": 1}, "input": {"prompts": ["Why?"] * 100}}
    open_end = client.post("/v1/jobs?dry_run=true", json=body).get_json()
    assert open_end["stages"][0]["least"] == 100 and open_end["stages"][0]["most"] is None
    assert open_end["eta_earliest_seconds"] and open_end["eta_latest_seconds"] is None is open_end["on_time"]


def test_the_models_of_a_job_work_side_by_side_and_want_segments_enough(two_models: AppContext) -> None:
    client = client_of(two_models)
    agents = [{"role": "DEV", "model": "echo"}, {"role": "QA", "model": "other"}]
    measure(two_models, "echo")
    panel = {"model": "echo", "agents": agents, "rounds": 1}
    assert dry_run(client, "panel", **panel) == (None, ["few_segments", "not_measured"])
    measure(two_models, "other")
    seconds, warnings = dry_run(client, "panel", **panel)
    assert seconds == pytest.approx(30, abs=5)  # each model has half of the requests
    assert warnings == ["few_segments"]


def test_what_is_due_before_a_job_counts_in_its_dry_run(context: AppContext, client: FlaskClient) -> None:
    measure(context, "echo")
    alone, _ = dry_run(client, "rollout", model="echo", n=2)
    context.redis.set(deadlines.BACKLOG, json.dumps({"echo": [[int(time.time()) + 60, 500.0], [2**40, 9000.0]]}))
    behind, _ = dry_run(client, "rollout", model="echo", n=2)
    context.redis.delete(deadlines.BACKLOG)
    assert alone == pytest.approx(20, abs=5)
    assert behind == pytest.approx(alone + 500, abs=1)


def test_a_job_with_barriers_has_as_many_items_as_fit_into_memory(
    client: FlaskClient, context: AppContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert item_checks.MAX_BARRIER_ITEMS == 50_000
    monkeypatch.setattr(item_checks, "MAX_BARRIER_ITEMS", 1)
    jobs = [client.post("/v1/jobs", json=JOB | {"options": {**OPTIONS, "streaming": on}}).get_json() for on in (0, 1)]
    for job in jobs:
        assert validation.run(context, job["id"], "here/1/task")
    barriers, streaming = (client.get(f"/v1/jobs/{job['id']}").get_json() for job in jobs)
    assert (barriers["status"], streaming["status"]) == ("failed", "in_progress")
    (error,) = barriers["errors"]["data"]
    assert (error["code"], error["param"]) == ("too_many_items", "options.streaming")
    assert "1 are the most, and the job has 2; leave 'streaming' out, or split the input" in error["message"]


def test_a_job_has_the_same_work_whatever_judges_it(client: FlaskClient) -> None:
    def hashes(**options: Any) -> tuple[str, str]:
        plan = client.post("/v1/jobs?dry_run=true", json=JOB | {"options": OPTIONS | options}).get_json()
        return plan["config_sha256"], plan["work_sha256"]

    plain, rewarded, other = hashes(), hashes(reward="acme"), hashes(n=4)
    assert hashes(n=3) == plain  # the default, written out
    assert rewarded[0] != plain[0]
    assert rewarded[1] == plain[1]
    assert other[1] != plain[1]


@pytest.mark.races
def test_the_same_key_and_body_make_one_job_also_at_the_same_moment(client: FlaskClient, context: AppContext) -> None:
    def post(body: dict[str, Any]) -> Any:
        own = client.application.test_client()
        own.environ_base.update(client.environ_base)
        return own.post("/v1/jobs", json=body, headers={"Idempotency-Key": "k"})

    with ThreadPoolExecutor(4) as threads:
        answers = list(threads.map(post, [JOB] * 4))
    assert {answer.status_code for answer in answers} == {200}
    assert len({answer.get_json()["id"] for answer in answers}) == 1
    other = post(JOB | {"seed": 1})
    assert (other.status_code, other.get_json()["error"]["code"]) == (409, "idempotency_key_reused")
    assert post(JOB | {"idempotency_key": "other"}).get_json()["error"]["param"] == "idempotency_key"
    assert len(client.get("/v1/jobs").get_json()["data"]) == 1


def test_jobs_are_listed_newest_first_page_by_page_and_by_what_they_are(
    client: FlaskClient, context: AppContext
) -> None:
    ids = [client.post("/v1/jobs", json=JOB).get_json()["id"] for _ in range(3)]
    other = client.post("/v1/jobs", json=JOB | {"recipe": "steps", "options": {}}).get_json()
    cancelled = client.post(f"/v1/jobs/{ids[0]}/cancel").get_json()
    assert cancelled["status"] == "cancelling"

    def listed(**params: Any) -> list[str]:
        page = client.get("/v1/jobs", query_string=params).get_json()
        return [job["id"] for job in page["data"]]

    assert listed() == [other["id"], *reversed(ids)]
    assert listed(recipe="steps") == [other["id"]]
    assert listed(status="cancelling") == [ids[0]]
    assert listed(parent_id=ids[0]) == []
    page = client.get("/v1/jobs?limit=2").get_json()
    assert page["has_more"]
    assert [job["id"] for job in page["data"]] == listed()[:2]
    assert listed(after=page["last_id"]) == listed()[2:]
    for wrong in ({"status": "done"}, {"after": "job_1"}, {"limit": 0}):
        assert client.get("/v1/jobs", query_string=wrong).get_json()["error"]["param"] in wrong


def test_another_projects_job_is_not_there(client: FlaskClient, context: AppContext) -> None:
    job_id = client.post("/v1/jobs", json=JOB).get_json()["id"]
    stranger = client_of(context, project="other")
    for method, path in (
        *(("GET", f"/v1/jobs/{{}}{own}") for own in ("", "/results", "/item_events", "/items", "/items/0", "/events")),
        ("POST", "/v1/jobs/{}/cancel"),
    ):
        theirs, nobodys = (stranger.open(path.format(id), method=method) for id in (job_id, f"{job_id[:-6]}ffffff"))
        assert theirs.status_code == nobodys.status_code == 404
        assert theirs.text.replace(job_id, "ID") == nobodys.text.replace(f"{job_id[:-6]}ffffff", "ID")
    assert stranger.get("/v1/jobs").get_json()["data"] == []
    assert stranger.get("/v1/jobs", query_string={"after": job_id}).status_code == 400
    theirs = {"input_file_id": client.get(f"/v1/jobs/{job_id}").get_json()["input_file_id"], "input": None}
    assert refused(stranger, **theirs)[1] == "input_file_id"


def test_a_job_without_items_yet_has_an_empty_list_and_no_item(client: FlaskClient) -> None:
    path = f"/v1/jobs/{client.post('/v1/jobs', json=JOB).get_json()['id']}"
    assert client.get(f"{path}/items").get_json()["data"] == []
    assert client.get(f"{path}/results").data == b""
    assert client.get(f"{path}/results?after=1").get_json()["error"]["param"] == "after"
    assert client.get(f"{path}/items/0").get_json()["error"]["param"] == "number"
    assert client.get(f"{path}/items?state=done").get_json()["error"]["param"] == "state"
    assert [event["type"] for event in client.get(f"{path}/events").get_json()["data"]] == ["job.created"]


def test_an_invalid_job_says_why_in_its_errors_and_its_events(client: FlaskClient, context: AppContext) -> None:
    job_id = client.post("/v1/jobs", json=JOB).get_json()["id"]
    error = {"code": "missing_prompt", "line": 3, "message": "The row has no prompt.", "param": None}
    with context.database.write() as session:
        lifecycle.reject(session, job_id, [error])
    job = client.get(f"/v1/jobs/{job_id}").get_json()
    assert (job["status"], job["errors"]) == ("failed", {"object": "list", "data": [error]})
    happened = client.get(f"/v1/jobs/{job_id}/events").get_json()["data"]
    assert [event["type"] for event in happened] == ["job.created", "job.failed"]
    again = client.post(f"/v1/jobs/{job_id}/cancel")
    assert (again.status_code, again.headers["x-should-retry"]) == (409, "false")


def test_inputs_of_jobs_count_against_the_bytes_in_flight(
    database_url: str, broker: str, tmp_path: Path, recipes: Path
) -> None:
    context = context_in(
        tmp_path, database_url=database_url, redis_url=broker, recipes=str(recipes), max_bytes_in_flight=60
    )
    client = client_of(context)
    first = client.post("/v1/jobs", json=JOB)
    assert first.status_code == 200
    second = client.post("/v1/jobs", json=JOB)
    assert (second.status_code, second.headers["Retry-After"]) == (429, "30")


def test_a_job_waits_for_others_and_for_the_artifact_that_it_reads(
    client: FlaskClient, context: AppContext, sent: SentMessages
) -> None:
    first = client.post("/v1/jobs", json=JOB, buffered=True).get_json()["id"]
    file_id = upload(client, b"{}").get_json()["id"]
    batch = {"input_file_id": file_id, "endpoint": "/v1/chat/completions", "completion_window": "24h"}
    second = client.post("/v1/batches", json=batch).get_json()["id"]
    body = JOB | {
        "input": {"artifact": {"job_id": first, "name": "results.jsonl"}},
        "depends_on": [{"id": second, "when": "afterany"}],
    }
    assert client.post("/v1/jobs?dry_run=true", json=body).get_json()["items"] is None
    waiting = client.post("/v1/jobs", json=body, buffered=True).get_json()
    assert (waiting["status"], waiting["input_file_id"], sent.ids("validate_job")) == ("waiting", None, [first])
    assert waiting["batchyard"]["depends_on"] == [
        {"id": second, "when": "afterany"},
        {"id": first, "when": "afterok", "artifact": "results.jsonl"},
    ]
    stranger = client_of(context, project="other")
    assert refused(stranger, depends_on=[{"id": first}])[1] == "depends_on.0.id"
    assert refused(stranger, input=body["input"])[1] == "input.artifact"
    assert ".parquet" in refused(client, input={"artifact": {"job_id": first, "name": "view"}})[2]
    assert client.post(f"/v1/jobs/{waiting['id']}/cancel").get_json()["status"] == "cancelling"


def test_a_job_is_started_with_prompts_in_one_step(client: FlaskClient, sent: SentMessages) -> None:
    body = {"recipe": "debate", "options": OPTIONS, "prompts": "Why?\n\nHow?\n", "metadata": {"team": "a"}}
    answer = client.post("/start", json=body | {"post_process": [{"step": "parquet"}]}, buffered=True)
    started = answer.get_json()
    assert (answer.status_code, started["batch_id"], sent.ids("validate_job")) == (202, None, [started["job_id"]])
    job = client.get(started["status_url"]).get_json()
    assert (job["id"], job["input_file_id"], job["metadata"]) == (started["job_id"], started["file_id"], {"team": "a"})
    assert job["batchyard"]["post_process"] == [{"step": "parquet"}]
    content = client.get(f"/v1/files/{started['file_id']}/content").data
    assert [json.loads(line) for line in content.splitlines()] == [{"prompt": "Why?"}, {"prompt": "How?"}]


def test_a_job_is_started_with_a_form_and_its_file_as_it_is(client: FlaskClient) -> None:
    table = b"a,b\n1,2\n"
    options = json.dumps(OPTIONS | {"template": "What is {a} + {b}?"})
    form = {"recipe": "debate", "options": options, "file": (io.BytesIO(table), "sums.csv")}
    started = client.post("/start", data=form, content_type="multipart/form-data").get_json()
    file = client.get(f"/v1/files/{started['file_id']}").get_json()
    assert (file["filename"], file["purpose"]) == ("sums.csv", "user_data")
    assert client.get(f"/v1/files/{started['file_id']}/content").data == table


@pytest.mark.parametrize(
    ("changes", "param"),
    [
        ({"recipe": "debates"}, "recipe"),
        ({"options": {"modle": "echo"}}, "options.model"),
        ({"model": "echo"}, "model"),
        ({"template": "{a}"}, "template"),
        ({"recipe": None}, "recipe"),
        ({"prompts": ["", " "]}, "prompts"),
        ({"prompts": None}, "prompts"),
    ],
)
def test_what_cannot_be_started_is_refused(refusing: FlaskClient, changes: dict[str, Any], param: str) -> None:
    body = {"recipe": "debate", "options": OPTIONS, "prompts": ["Why?"]} | changes
    answer = refusing.post("/start", json=body)
    assert (answer.status_code, answer.get_json()["error"]["param"]) == (400, param)


def test_a_run_is_compared_with_a_job_of_the_project_and_the_recipe_only(
    client: FlaskClient, context: AppContext
) -> None:
    options = {"model": "echo", "template": "{question}"}
    job = {"recipe": "evaluate", "input": {"items": [{"question": "1 + 1?", "answer": "2"}]}, "options": options}
    own, theirs = (
        each.post("/v1/jobs", json=job).get_json()["id"] for each in (client, client_of(context, project="b"))
    )
    assert client.post("/v1/jobs", json=job | {"options": options | {"compare_with": own}}).status_code == 200
    for earlier in (theirs, "job_0"):
        _, param, message = refused(client, **job | {"options": options | {"compare_with": earlier}})
        assert param == "options.compare_with" and message.startswith(f"No job found with id '{earlier}'.")
    debate = client.post("/v1/jobs", json=JOB).get_json()["id"]
    _, _, message = refused(client, **job | {"options": options | {"compare_with": debate}})
    assert message.startswith(f"Job '{debate}' is of recipe 'debate', not of 'evaluate'.")
    variants = {"a": {}, "b": {"compare_with": theirs}}
    experiment = {"recipe": "evaluate", "options": options, "variants": variants}
    _, param, message = refused(client, **job | {"recipe": "experiment", "options": experiment})
    assert param == "options.variants.b.compare_with" and f"No job found with id '{theirs}'." in message
