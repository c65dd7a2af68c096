"""/metrics and /v1/queue: the backlog and the running work, for Prometheus and for people."""

from __future__ import annotations

import json
import time
from typing import Any

import httpx
import openai
from prometheus_client.parser import text_string_to_metric_families

from tests.contract.conftest import refusal
from tests.support.rows import until
from tests.support.stacks import RunningStack, a_chat


def samples(http: httpx.Client) -> dict[tuple[str, frozenset[tuple[str, str]]], float]:
    answer = httpx.get(f"{http.base_url}/metrics", timeout=60)  # Prometheus has no key
    assert answer.headers["content-type"].startswith("text/plain")
    families = text_string_to_metric_families(answer.text)
    return {(s.name, frozenset(s.labels.items())): s.value for family in families for s in family.samples}


def total(http: httpx.Client, name: str, **labels: str) -> float:
    return samples(http).get((name, frozenset(labels.items())), 0.0)


def test_answers_and_tokens_are_counted_by_model(stack: RunningStack, http: httpx.Client) -> None:
    before = total(http, "batchyard_requests_total", model="other", outcome="completed")
    tokens = total(http, "batchyard_tokens_total", model="other", kind="output")
    batch = stack.wait(stack.submit([a_chat(f"id-{number}", "x", model="other") for number in range(7)]))
    assert total(http, "batchyard_requests_total", model="other", outcome="completed") == before + 7
    assert total(http, "batchyard_tokens_total", model="other", kind="output") == tokens + batch.usage.output_tokens


def test_answers_without_the_form_that_was_asked_for_are_counted(stack: RunningStack, http: httpx.Client) -> None:
    before = total(http, "batchyard_flawed_answers_total", model="other", flaw="invalid")
    asked: Any = {"model": "other", "structured_outputs": {"json": {"required": ["n"]}}}
    texts = ['{"n": 1}', '{"m": 1}', '{"m": 1}', "n"]
    batch = stack.wait(stack.submit([a_chat(f"id-{number}", text, **asked) for number, text in enumerate(texts)]))
    assert (batch.request_counts.completed, batch.batchyard["invalid"]) == (4, 3)
    assert json.loads(stack.artifact(batch, "manifest.json"))["usage"]["invalid"] == 3
    assert total(http, "batchyard_flawed_answers_total", model="other", flaw="invalid") == before + 3


def test_requests_are_timed_in_the_batch_its_manifest_and_the_metrics(stack: RunningStack, http: httpx.Client) -> None:
    def reached(bound: str) -> float:
        labels = {"model": "slow", "request_class": "decode"}
        return total(http, "batchyard_request_seconds_bucket", le=bound, **labels)

    before = [reached(bound) for bound in ("0.1", "0.5", "+Inf")]
    summed = total(http, "batchyard_request_seconds_sum", model="slow", request_class="decode")
    # Those in the engine at once are a third: where it stands still for a while, only they take longer.
    batch = stack.wait(stack.submit([a_chat(f"id-{number}", "x", model="slow") for number in range(48)]))
    latency = batch.batchyard["latency"]
    assert latency["requests"] == latency["models"]["slow"]["classes"]["decode"]["requests"] == 48
    assert 0.19 < latency["p50"] <= latency["p95"] <= latency["p99"] < 10
    assert latency["p50"] < 1.2, "a request's own time: 48 of them after one another take 9.6 s"
    assert json.loads(stack.artifact(batch, "manifest.json"))["latency"] == latency
    after = [reached(bound) for bound in ("0.1", "0.5", "+Inf")]
    assert after[0] == before[0] and after[1] > before[1] and after[2] == before[2] + 48
    sum_ = total(http, "batchyard_request_seconds_sum", model="slow", request_class="decode") - summed
    assert 48 * 0.2 <= sum_ < 48 * 10


def test_a_running_batch_is_in_the_queue_and_leaves_it(stack: RunningStack, http: httpx.Client) -> None:
    def segments() -> list[tuple[int, int]]:
        models = http.get("/v1/queue").json()["models"]
        return [(m["running_segments"], m["pending_segments"]) for m in models if m["model"] == "endless"]

    until(lambda: segments() == [])  # another test's may not have ended yet
    batch = stack.submit_endless()
    until(lambda: segments() == [(1, 0)])
    assert http.get("/v1/queue").json()["batches"]["in_progress"] >= 1
    assert total(http, "batchyard_segments", model="endless", state="running") == 1
    assert total(http, "batchyard_batches", status="in_progress") >= 1
    stack.wait(stack.client.batches.cancel(batch.id))
    assert segments() == []


def test_requests_are_timed_by_route_and_not_by_path(stack: RunningStack, http: httpx.Client) -> None:
    for name in ("a", "b"):
        http.get(f"/v1/files/file-{name}")
    http.request("BREW", "/v1/files")
    routes = [dict(labels) for name, labels in samples(http) if name == "batchyard_http_request_seconds_count"]
    assert {"method": "GET", "route": "/v1/files/<file_id>", "status": "404"} in routes
    assert "BREW" not in {labels["method"] for labels in routes}


def test_the_queue_of_another_project_has_nothing_of_this_one(
    stack: RunningStack, http: httpx.Client, other_project: openai.OpenAI
) -> None:
    def theirs() -> dict[str, Any]:
        return dict(other_project.get("/queue", cast_to=httpx.Response).json())

    batch = stack.submit_endless()
    until(lambda: bool(http.get("/v1/queue").json()["engines"]))
    until(lambda: sum(theirs()["batches"].values()) == 0)  # another test's may not have ended yet
    until(lambda: http.get("/v1/queue").json()["batches"]["in_progress"] >= 1)
    assert (theirs()["engines"], theirs()["messages"], theirs()["models"]) == (None, None, [])
    stack.wait(stack.client.batches.cancel(batch.id))


def test_an_engine_says_since_when_it_is_up_and_how_much_memory_it_has(stack: RunningStack, http: httpx.Client) -> None:
    said: dict[str, Any] = {}

    def has_answered() -> bool:
        stack.wait(stack.submit([a_chat("id-0", "x", model="echo")]))
        engines = http.get("/v1/queue").json()["engines"]
        said.update(next((engine for engine in engines if engine["model"] == "echo"), {}))
        return said.get("started_at") is not None

    until(has_answered)
    assert said["started_at"] <= time.time() and said["start_seconds"] >= 0
    assert said["memory_bytes"] > 1_000_000 and (said["gpus"], said["gpu_ids"]) == (0, [])
    assert (said["cache_use"], said["prefix_tokens"], said["prefix_hits"]) == (None, None, None)


def test_the_queue_needs_a_key(http: httpx.Client) -> None:
    answer = httpx.get(f"{http.base_url}/v1/queue", timeout=60)
    assert (answer.status_code, refusal(answer)["code"]) == (401, "invalid_api_key")


def test_an_autoscaler_reads_how_many_replicas_are_needed(stack: RunningStack, http: httpx.Client) -> None:
    stack.wait(stack.submit([a_chat("id-0", "x", model="echo")]))
    demand: dict[str, Any] = {}

    def needs_none() -> bool:
        demand.update((entry["model"], entry) for entry in http.get("/v1/demand").json()["models"])
        return bool(demand.get("echo", {}).get("replicas_needed") == 0)

    # Worked out every few seconds: the batch may have been unfinished the last time.
    until(lambda: samples(http).get(("batchyard_replicas_needed", frozenset({("model", "echo")}))) == 0)
    until(needs_none)
    assert demand["echo"]["replicas"] == 1
    assert set(demand) == {model["id"] for model in http.get("/v1/models").json()["data"]}


def test_the_demand_is_for_administrators(http: httpx.Client) -> None:
    key = http.post("/v1/keys", json={"project": "curious"}).json()["key"]
    answer = http.get("/v1/demand", headers={"Authorization": f"Bearer {key}"})
    assert (answer.status_code, refusal(answer)["code"]) == (403, "insufficient_permissions")
