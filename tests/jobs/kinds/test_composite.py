"""Experiments without a worker: what is refused, which jobs start when, and what becomes of them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from flask.testing import FlaskClient
from sqlalchemy import update

from jobs import finish, messages
from store import leases
from store.jobs import lifecycle
from store.records import Job
from tasks.context import AppContext
from tests.support.ended_jobs import EndedComposites
from tests.support.webapps import client_of, context_in, upload

ROWS = [{"prompt": f"{number} + 1?", "answer": str(number + 1)} for number in range(3)]
OPTIONS = {"model": "echo", "reward": "exact", "ground_truth": "answer"}
TWO: dict[str, Any] = {"one": {"n": 1}, "two": {"n": 2, "sampling.max_tokens": 4}}


@pytest.fixture
def context(database_url: str, broker: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AppContext:
    for name in ("validate", "advance", "finish"):
        monkeypatch.setattr(messages, name, lambda *_: None)
    return context_in(tmp_path, database_url=database_url, redis_url=broker)


@pytest.fixture
def client(context: AppContext) -> FlaskClient:
    return client_of(context)


class Experiments(EndedComposites):
    """Experiments over ROWS, whose ticks a test makes, and whose children end as it says."""

    def post(self, **options: Any) -> Any:
        content = b"".join(json.dumps(row).encode() + b"\n" for row in ROWS)
        file_id = upload(self.client, content, purpose="user_data").get_json()["id"]
        options = {"recipe": "rollout", "options": OPTIONS, "variants": TWO} | options
        return self.client.post("/v1/jobs", json={"recipe": "experiment", "options": options, "input_file_id": file_id})

    def complete(self, child: dict[str, Any]) -> dict[str, Any]:
        return self.end(self.begun(child), dict.fromkeys(range(1, len(ROWS) + 1), "completed"))

    def complete_all(self, job: dict[str, Any]) -> dict[str, Any]:
        """Complete all children, and then the experiment."""
        while self.look(job)["status"] == "in_progress":
            for child in self.children(job).values():
                if child["status"] == "validating":
                    self.complete(child)
            self.tick(job)
        assert finish.run(self.context, job["id"], "here/1/task")
        return self.look(job)

    def results(self, job: dict[str, Any]) -> dict[str, dict[str, Any]]:
        lines = self.artifacts(job)["results.jsonl"].splitlines()
        return {line["custom_id"]: line for line in map(json.loads, lines)}


@pytest.fixture
def experiments(context: AppContext, client: FlaskClient) -> Experiments:
    return Experiments(context, client)


def test_its_children_are_ordinary_jobs_with_the_options_of_their_variants_and_seeds_of_their_own(
    experiments: Experiments,
) -> None:
    job = experiments.started(repeats=2, tiers={"large": "echo"}, options=OPTIONS | {"model": "large"})
    assert job["request_counts"]["total"] == 4
    children = experiments.children(job)
    assert list(children) == ["one/0/0", "two/0/0", "one/1/0", "two/1/0"]
    assert sorted(job["batchyard"]["children"]) == sorted(child["id"] for child in children.values())
    for key, child in children.items():
        ours = child["batchyard"]
        assert (child["recipe"], child["status"], ours["variant"]) == ("rollout", "validating", key.split("/")[0])
        assert ours["seed"] == int(key.split("/")[1])
        assert ours["options"]["model"] == "echo"
        assert (child["expires_at"], ours["due_at"]) == (job["expires_at"], job["batchyard"]["due_at"])
        assert ours["input_sha256"] == job["batchyard"]["input_sha256"]
    assert children["two/1/0"]["batchyard"]["options"]["sampling"]["max_tokens"] == 4
    assert len({child["batchyard"]["config_sha256"] for child in children.values()}) == 4


def test_any_recipe_can_be_that_of_the_children(experiments: Experiments) -> None:
    tiers = {"tiny": "echo"}
    refine = {"tiers": ["tiny"], "gates": ["not-contains:x"]}
    job = experiments.started(
        recipe="refine", options=refine, tiers=tiers, variants={"one": {}, "more": {"policy.budget": 6}}
    )
    budgets = {
        key: (child["batchyard"]["options"]["tiers"][0]["model"], child["batchyard"]["options"]["policy"]["budget"])
        for key, child in experiments.children(job).items()
    }
    assert budgets == {"one/0/0": ("echo", 4), "more/0/0": ("echo", 6)}
    panel = {"model": "tiny", "agents": ["DEV", "QA"]}
    job = experiments.started(
        recipe="panel", options=panel, tiers=tiers, variants={"no": {"rounds": 0}, "two": {"rounds": 2}}
    )
    assert [child["batchyard"]["options"]["rounds"] for child in experiments.children(job).values()] == [0, 2]


def test_when_all_have_ended_it_has_a_line_for_each_and_a_comparison(experiments: Experiments) -> None:
    job = experiments.started(baseline="one", expect=["two.mean@2 > one.mean@1"])
    children = experiments.children(job)
    failed, completed = children["one/0/0"], children["two/0/0"]
    with experiments.context.database.write() as session:
        errors = [{"code": "missing_prompt", "line": 0, "message": "Row 0 has no prompt.", "param": None}]
        lifecycle.reject(session, failed["id"], errors)
    job = experiments.tick(job)
    assert (job["status"], job["request_counts"]["failed"]) == ("in_progress", 1)
    experiments.complete(completed)
    job = experiments.tick(job)
    assert job["status"] == "finalizing"
    assert finish.run(experiments.context, job["id"], "here/1/task")
    job = experiments.look(job)
    assert (job["status"], job["batchyard"]["report"]) == ("completed", {"status": "completed"})
    assert (job["request_counts"]["completed"], job["request_counts"]["failed"]) == (1, 1)
    results = experiments.results(job)
    assert results["one/0/0"]["error"] == {"code": "job_failed", "message": "Row 0 has no prompt."}
    assert results["two/0/0"]["result"]["job_id"] == completed["id"]
    artifacts = experiments.artifacts(job)
    assert {f"comparison.{suffix}" for suffix in ("json", "csv", "md")} <= artifacts.keys()
    assert {"final_report.json", "final_report.md", "view.json", "manifest.json", "metrics.json"} <= artifacts.keys()
    compared = {child["job_id"] for child in json.loads(artifacts["comparison.json"])["children"]}
    assert completed["id"] in compared
    assert job["batchyard"]["metrics"]["children"] == 2


def test_a_manifest_says_how_its_job_was_configured(experiments: Experiments) -> None:
    job = experiments.started()
    child = experiments.complete(experiments.children(job)["two/0/0"])
    manifest = json.loads(experiments.artifacts(child)["manifest.json"])
    assert manifest["options"]["n"] == 2 and manifest["options"]["sampling"]["max_tokens"] == 4
    assert (manifest["seed"], manifest["models"]["echo"]["engine"]) == (0, "echo")
    assert manifest["config_sha256"] == child["batchyard"]["config_sha256"]
    assert manifest["request_counts"] == child["request_counts"]


def test_no_more_children_run_at_once_than_it_says_and_a_tick_again_starts_none_twice(
    experiments: Experiments,
) -> None:
    job = experiments.started(parallel=1)
    for number in range(1, 3):
        experiments.tick(job)
        children = experiments.children(job)
        assert len(children) == number
        experiments.complete(list(children.values())[-1])
        experiments.tick(job)
    assert experiments.look(job)["status"] == "finalizing"


def test_a_tick_that_dies_anywhere_starts_no_child_twice(
    experiments: Experiments, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = experiments.begun(experiments.post().get_json())

    class Killed(BaseException):
        """The process dies here, and its lease runs out."""

    def dies(*_: Any) -> None:
        raise Killed

    for module, name, started in ((lifecycle, "create", 0), (messages, "validate", 2)):  # before and after commit
        with monkeypatch.context() as patch, pytest.raises(Killed):
            patch.setattr(module, name, dies)
            experiments.tick(job)
        assert len(experiments.children(job)) == started
        with experiments.context.database.write() as session:
            leases.end_leases(session, ["here/1/task"])
    experiments.tick(job)
    children = experiments.children(job)
    assert sorted(children) == ["one/0/0", "two/0/0"]
    assert experiments.complete_all(job)["request_counts"]["completed"] == 2
    assert experiments.children(job).keys() == children.keys()


def test_the_same_experiment_again_takes_what_has_completed_and_runs_what_is_missing(experiments: Experiments) -> None:
    first = experiments.started()
    done = experiments.complete(experiments.children(first)["one/0/0"])
    experiments.tick(first)
    assert experiments.client.post(f"/v1/jobs/{first['id']}/cancel").status_code == 200
    again = experiments.started()
    assert list(experiments.children(again)) == ["two/0/0"]
    assert again["batchyard"]["counters"] == {"taken": 1}
    ended = experiments.complete_all(again)
    result = experiments.results(ended)["one/0/0"]["result"]
    assert (result["job_id"], result["taken"]) == (done["id"], True)
    assert experiments.look(done) == done
    anew = experiments.started(reuse=False)
    assert len(experiments.children(anew)) == 2


def test_cancelling_it_cancels_its_children_and_it_ends_after_them(experiments: Experiments) -> None:
    job = experiments.started()
    children = experiments.children(job)
    experiments.complete(children["one/0/0"])
    experiments.client.post(f"/v1/jobs/{job['id']}/cancel")
    other = experiments.look(children["two/0/0"])
    assert other["status"] == "cancelling"
    assert experiments.tick(job)["status"] == "cancelling"
    messages.finish_ready(experiments.context)
    assert experiments.look(job)["status"] == "cancelling"
    assert finish.run(experiments.context, other["id"], "here/1/task")
    experiments.tick(job)
    assert finish.run(experiments.context, job["id"], "here/1/task")
    job = experiments.look(job)
    counts = job["request_counts"]
    assert (job["status"], counts["completed"], counts["cancelled"]) == ("cancelled", 1, 1)


def test_pausing_it_pauses_its_children_and_starts_none(experiments: Experiments, client: FlaskClient) -> None:
    job = experiments.started(parallel=1, repeats=2)
    (first,) = experiments.children(job).values()
    paused = client.post(f"/v1/jobs/{job['id']}/pause").get_json()
    assert paused["batchyard"]["paused_at"]
    assert experiments.look(first)["batchyard"]["paused_at"] == paused["batchyard"]["paused_at"]
    experiments.complete(first)
    experiments.tick(job)
    assert list(experiments.children(job)) == ["one/0/0"]
    assert client.post(f"/v1/jobs/{job['id']}/resume").get_json()["batchyard"]["paused_at"] is None
    experiments.tick(job)
    assert list(experiments.children(job)) == ["one/0/0", "two/0/0"]


def test_its_window_is_that_of_its_children(experiments: Experiments) -> None:
    job = experiments.started()
    with experiments.context.database.write() as session:
        session.execute(update(Job).values(expires_at=1))
        lifecycle.expire(session)
    for child in experiments.children(job).values():
        assert finish.run(experiments.context, child["id"], "here/1/task")
    experiments.tick(job)
    assert finish.run(experiments.context, job["id"], "here/1/task")
    job = experiments.look(job)
    assert (job["status"], job["request_counts"]["expired"]) == ("expired", 2)


def test_variants_that_only_judge_otherwise_share_the_answers_of_the_first(experiments: Experiments) -> None:
    job = experiments.started(variants={"exact": {}, "numeric": {"reward": "numeric"}})
    (first,) = experiments.children(job).values()
    experiments.complete(first)
    experiments.tick(job)
    second = experiments.children(job)["numeric/0/0"]
    assert second["batchyard"]["answers_from"] == first["id"]


def test_a_round_has_an_artifact_of_the_round_before_as_input(experiments: Experiments) -> None:
    job = experiments.started(rounds=2, round_input="results.jsonl", variants={"one": {}})
    (first,) = experiments.children(job).values()
    first = experiments.complete(first)
    experiments.tick(job)
    second = experiments.children(job)["one/0/1"]
    artifact = next(entry for entry in first["batchyard"]["artifacts"] if entry["name"] == "results.jsonl")
    assert second["batchyard"]["input_sha256"] == artifact["sha256"]
    assert second["input_file_id"] == artifact["file_id"]


REFUSED: list[tuple[dict[str, Any], str, str]] = [
    ({"recipe": "rolout"}, "options.recipe", "Did you mean 'rollout'?"),
    ({"recipe": "experiment"}, "options.recipe", "cannot be that of a child"),
    ({"variants": {"big": {"model": "echi"}}}, "options.variants.big.model", "Variant 'big': The model 'echi'"),
    ({"variants": {"big": {"sampling.temprature": 1}}}, "options.variants.big.sampling.temprature", "temperature"),
    ({"variants": {"big": {}}, "options": {"model": "echo", "m": 1}}, "options.options.m", "Variant 'big'"),
    (
        {"variants": {"big": {}, "same": {"n": 1}}},
        "options.variants.same",
        "'big' and 'same' are one configuration",
    ),
    ({"variants": {}}, "options.variants", "not empty"),
    ({"variants": {"a/b": {}}}, "options.variants.a/b.[key]", "a text that matches"),
    ({"baseline": "on"}, "options.baseline", "did you mean 'one'"),
    ({"rounds": 2}, "options.round_input", "go together"),
    ({"rounds": 2, "round_input": "x.svg"}, "options.round_input", "x.svg"),
    ({"repeats": 900}, "options.repeats", "1,000 are the most"),
    ({"expect": ["one.mean@1 ~ 3"]}, "options.expect.0", "'~' is no operator"),
    ({"pass": ["one.mean@1 > 3", "oen.x > 1"]}, "options.pass.1", "did you mean 'one'"),
    ({"limit": 3}, "options.limit", "Unknown parameter"),
]


def test_what_cannot_be_is_refused_with_the_variant_and_the_place(experiments: Experiments) -> None:
    for options, param, says in REFUSED:
        place, message = experiments.refused(**options)
        assert place == param
        assert says in message
    assert experiments.client.get("/v1/jobs").get_json()["data"] == []


def test_it_is_neither_judged_anew_nor_retried_but_created_again(experiments: Experiments) -> None:
    job = experiments.complete_all(experiments.started())
    for action in ("retry", "rescore"):
        answer = experiments.client.post(f"/v1/jobs/{job['id']}/{action}", json={})
        assert answer.status_code == 409
        assert "create it again" in answer.get_json()["error"]["message"]
    answer = experiments.client.post(f"/v1/jobs/{job['id']}/items/0", json={"text": "done"})
    assert (answer.status_code, "is a job itself" in answer.get_json()["error"]["message"]) == (409, True), answer.text


def test_its_page_lists_its_children_and_draws_the_comparison(experiments: Experiments, client: FlaskClient) -> None:
    visitor = client.application.test_client()
    key = client.environ_base["HTTP_AUTHORIZATION"].removeprefix("Bearer ")
    assert visitor.post("/sign-in", data={"key": key}).status_code == 303
    job = experiments.started()
    page = visitor.get(f"/jobs/{job['id']}?tab=jobs").text
    for child in experiments.children(job).values():
        assert f"/jobs/{child['id']}" in page
    assert 'aria-label="Children"' in page and '<span class="number">' in page and "tab=items" not in page
    experiments.complete_all(job)
    assert ">Report</h2>" in visitor.get(f"/jobs/{job['id']}").text
    page = visitor.get(f"/jobs/{job['id']}?tab=jobs").text
    assert page.count('class="state completed"') >= 3
    overview = visitor.get("/").text
    assert job["id"] in overview
    assert not any(child["id"] in overview for child in experiments.children(job).values())


def test_a_dry_run_counts_its_jobs_and_makes_none(experiments: Experiments, client: FlaskClient) -> None:
    content = b"".join(json.dumps(row).encode() + b"\n" for row in ROWS)
    file_id = upload(client, content, purpose="user_data").get_json()["id"]
    options = {"recipe": "rollout", "options": OPTIONS, "variants": TWO, "repeats": 3}
    body = {"recipe": "experiment", "options": options, "input_file_id": file_id}
    answer = client.post("/v1/jobs?dry_run=true", json=body).get_json()
    assert (answer["items"], answer["stages"], answer["eta_seconds"]) == (6, [], None)
    assert client.get("/v1/jobs").get_json()["data"] == []
