"""Recipe rollout over /v1/jobs without a worker: what it says of itself, and what of its options is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from flask.testing import FlaskClient

from jobs import messages
from tests.support.webapps import client_of, context_in

ROW = {"prompt": "6 * 7?", "data_source": "openai/gsm8k", "reward_model": {"ground_truth": "42"}}
GRADER = {"type": "string_check", "operation": "eq", "input": "{{sample.output_text}}", "reference": "42"}


@pytest.fixture
def client(broker: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FlaskClient:
    monkeypatch.setattr(messages, "validate", lambda *_: None)
    return client_of(context_in(tmp_path, redis_url=broker))


def post(client: FlaskClient, query: str = "", **options: Any) -> dict[str, Any]:
    body = {"recipe": "rollout", "input": {"items": [ROW, ROW]}, "options": {"model": "echo", "n": 4, **options}}
    answer: dict[str, Any] = client.post(f"/v1/jobs{query}", json=body).get_json()
    return answer


def test_rollout_is_listed_with_what_judges_and_the_rewards(client: FlaskClient) -> None:
    listed = client.get("/v1/recipes").get_json()
    rollout = {recipe["name"]: recipe for recipe in listed["data"]}["rollout"]
    assert rollout["stages"] == ["sample"]
    assert rollout["judgement"] == ["reward", "extract", "keep", "skip_unanswered"]
    assert rollout["main"] == "rollouts.parquet"
    assert {reward["name"] for reward in listed["rewards"]} >= {"exact", "numeric", "regex", "gsm8k", "math"}


def test_the_number_of_requests_is_known_before_anything_runs(client: FlaskClient) -> None:
    (stage,) = post(client, "?dry_run=true")["stages"]
    assert (stage["name"], stage["expected"]) == ("sample", 8)


@pytest.mark.parametrize("reward", ["gsm8k", GRADER, {"openai/gsm8k": "exact"}])
def test_a_reward_has_a_name_or_is_a_grader_or_a_name_for_each_data_source(client: FlaskClient, reward: Any) -> None:
    job = post(client, reward=reward)
    assert job["object"] == "job", job
    assert job["batchyard"]["options"]["reward"] == reward


def test_the_model_of_a_grader_is_looked_up_and_has_to_keep_to_a_form(client: FlaskClient) -> None:
    asked = {"model": "echo", "input": [{"role": "user", "content": "{{sample.output_text}}?"}]}
    labels = {"type": "label_model", "labels": ["good", "bad"], "passing_labels": ["good"], **asked}
    dry = post(client, "?dry_run=true", reward=labels)
    assert [(stage["name"], stage["expected"]) for stage in dry["stages"]] == [("sample", 8), ("grade", 8)]
    error = post(client, reward=labels | {"model": "eco"})["error"]
    assert error["param"] == "options.reward.model" and "Did you mean 'echo'?" in error["message"]
    error = post(client, reward={"type": "score_model", **asked})["error"]
    assert "The engine 'echo' of model 'echo' has no structured output by 'json'" in error["message"]


def test_another_reward_asks_for_the_same_work(client: FlaskClient) -> None:
    one, other, more = post(client, reward="gsm8k"), post(client, reward="exact", keep="best"), post(client, n=8)
    assert one["batchyard"]["work_sha256"] == other["batchyard"]["work_sha256"] != more["batchyard"]["work_sha256"]
    assert one["batchyard"]["config_sha256"] != other["batchyard"]["config_sha256"]


def test_with_a_threshold_another_reward_is_other_work(client: FlaskClient) -> None:
    one, other = post(client, reward="gsm8k", threshold=1), post(client, reward="exact", threshold=1)
    same = post(client, reward="gsm8k", threshold=1, keep="best")
    assert one["batchyard"]["work_sha256"] == same["batchyard"]["work_sha256"] != other["batchyard"]["work_sha256"]


@pytest.mark.parametrize(
    ("options", "param", "says"),
    [
        ({"sampling": {"temperature": 0}}, "options.sampling.temperature", "ask for n = 1"),
        ({"sampling": {"n": 2}}, "options.sampling.n", "Unknown parameter"),
        (
            {"sampling": {"temprature": 1}},
            "options.sampling.temprature",
            "Did you mean 'options.sampling.temperature'?",
        ),
        ({"reward": "gsm9k"}, "options.reward", "Did you mean 'gsm8k'?"),
        ({"reward": {"acme/qa": "exakt"}}, "options.reward", "Did you mean 'exact'?"),
        ({"reward": GRADER | {"type": "python"}}, "options.reward", "runs code of clients, which Batchyard does not"),
        ({"extract": "boxt"}, "options.extract", "Did you mean 'boxed'?"),
        ({"model": "eco"}, "options.model", "Did you mean 'echo'?"),
        ({"n": 1025}, "options.n", "at most 1024"),
    ],
)
def test_what_cannot_be_is_refused_with_its_place(
    client: FlaskClient, options: dict[str, Any], param: str, says: str
) -> None:
    error = post(client, **options)["error"]
    assert error["param"].startswith(param)
    assert says in error["message"]
