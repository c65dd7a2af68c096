"""An engine that is killed is seen everywhere: by API, webhooks, terminal, pages, metrics, log and manifest."""

from __future__ import annotations

import json
import os
import re
import signal
import time
from collections.abc import Iterator
from typing import Any, cast

import httpx
import psutil
import pytest

from tests.support.receivers import Receiver, listening
from tests.support.rows import until
from tests.support.stacks import RunningStack, a_chat
from tests.support.terminal import batchyard

ROWS = 100


@pytest.fixture(scope="module")
def receiver() -> Iterator[Receiver]:
    with listening(Receiver()) as receiver:
        yield receiver


@pytest.fixture(scope="module")
def webhook(faulty: RunningStack, receiver: Receiver) -> Iterator[dict[str, Any]]:
    """A webhook for deaths of engines, with its secret."""
    body = {"url": receiver.url(), "name": "on-call", "event_types": ["engine.died"]}
    created = cast(dict[str, Any], faulty.client.post("/webhook_endpoints", cast_to=object, body=body))
    yield created
    faulty.client.delete(f"/webhook_endpoints/{created['id']}", cast_to=object)


@pytest.fixture(scope="module")
def killed(faulty: RunningStack, webhook: dict[str, Any]) -> Any:
    """A completed batch, whose engine was killed while it ran."""
    others = {process for process in faulty.processes("ray") if is_engine(process)}
    rows = [a_chat(f"id-{number}", f"hello {number}", model="mortal") for number in range(ROWS)]
    batch, (engine,) = faulty.stopped_amid(
        lambda: faulty.submit(rows),
        lambda batch: batch.request_counts.completed > 0,
        lambda: [process for process in faulty.processes("ray") if is_engine(process) and process not in others],
    )
    engine.send_signal(signal.SIGKILL)
    return faulty.wait(batch)


def is_engine(process: psutil.Process) -> bool:
    try:
        return any("ray::EngineActor" in word for word in process.cmdline()[:1])
    except psutil.Error:
        return False


def get(stack: RunningStack, path: str) -> dict[str, Any]:
    return cast(dict[str, Any], stack.client.get(path, cast_to=object))


def pages(stack: RunningStack) -> httpx.Client:
    """A browser that has signed in."""
    client = httpx.Client(base_url=stack.url, follow_redirects=True, timeout=60)
    token = re.search(r'name="csrf" value="([^"]*)"', client.get("/sign-in").text)
    client.post("/sign-in", data={"key": stack.key, "csrf": token[1] if token else ""})
    return client


def words(html: str) -> str:
    return " ".join(re.sub(r"<[^>]+>", " ", html).split())


def is_listed(stack: RunningStack, model: str) -> bool:
    """True if a line of `batchyard models` matches."""
    return bool(re.search(model, batchyard("models", "--data", stack.data, folder=stack.data.parent).stdout))


def test_a_killed_engine_is_an_event(faulty: RunningStack, killed: Any) -> None:
    assert (killed.status, killed.request_counts.completed) == ("completed", ROWS)
    (event,) = [
        event for event in get(faulty, f"/batches/{killed.id}/events")["data"] if event["type"] == "engine.died"
    ]
    data = event["data"]
    assert (data["id"], data["model"], data["replica"], data["deaths"]) == (killed.id, "mortal", 0, 1)
    assert data["reason"] and 0 < data["requests"] <= 8 and data["next"] == "runs_alone"


def test_a_webhook_receives_it(killed: Any, webhook: dict[str, Any], receiver: Receiver) -> None:
    delivery = receiver.wait(1)[0]
    event = delivery.unwrap(webhook["signing_secret"])
    assert (event.type, event.data.id) == ("engine.died", killed.id)
    assert json.loads(delivery.body)["data"]["reason"] == killed.batchyard["last_engine_death"]["reason"]


def test_the_batch_its_manifest_and_the_terminal_have_the_reason(faulty: RunningStack, killed: Any) -> None:
    ours = killed.batchyard
    assert ours["engine_deaths"] == 1
    reason = ours["last_engine_death"]["reason"]
    of_model = json.loads(faulty.artifact(killed, "manifest.json"))["models"]["mortal"]
    assert (of_model["engine_deaths"], of_model["engine_death_reasons"]) == (1, {reason: 1})
    shown = batchyard("status", killed.id, "--data", faulty.data, folder=faulty.data.parent).stdout
    assert " ".join(reason.split()).rstrip(".") in shown
    until(lambda: is_listed(faulty, r"mortal +- +echo +(idle|busy) "))


def test_the_log_of_the_worker_names_the_batch_and_the_reason(faulty: RunningStack, killed: Any) -> None:
    lines = [json.loads(line) for line in (faulty.data / "logs/worker.log").open() if line.startswith('{"time"')]
    (line,) = [
        line for line in lines if line["message"].startswith("engine died") and line.get("batch_id") == killed.id
    ]
    assert (line["model"], line["level"]) == ("mortal", "error")
    assert line["reason"] == killed.batchyard["last_engine_death"]["reason"]


def test_the_metrics_count_it(faulty: RunningStack, killed: Any) -> None:
    metrics = httpx.get(f"{faulty.url}/metrics", timeout=60).text
    assert re.search(r'^batchyard_engine_deaths_total{model="mortal"} [12]\.0$', metrics, re.M), "see the next test"


def test_the_page_of_the_batch_has_the_whole_reason(faulty: RunningStack, killed: Any) -> None:
    text = words(pages(faulty).get(f"/batches/{killed.id}").text)
    assert "replica 0" in text


@pytest.mark.exhaustive
def test_the_death_of_an_idle_engine_is_an_event_and_stands_where_others_do(
    faulty: RunningStack, killed: Any, webhook: dict[str, Any], receiver: Receiver
) -> None:
    def idle() -> list[dict[str, Any]]:
        return [engine for engine in faulty.engines("mortal") if engine["state"] == "idle"]

    faulty.wait(faulty.submit([a_chat("a", "hello", model="mortal")]))
    deadline = time.monotonic() + 180
    while not (engines := idle()):
        assert time.monotonic() < deadline
        time.sleep(0.1)
    os.kill(engines[0]["process"]["pid"], signal.SIGKILL)
    body = json.loads(receiver.wait(2)[1].body)
    assert (body["type"], body["data"]["model"], body["data"]["requests"]) == ("engine.died", "mortal", 0)
    (model,) = [model for model in get(faulty, "/models?engines=true")["data"] if model["id"] == "mortal"]
    assert model["batchyard"]["last_failure"]["reason"] == body["data"]["reason"]
    metrics = httpx.get(f"{faulty.url}/metrics", timeout=60).text
    assert 'batchyard_engine_deaths_total{model="mortal"} 2.0' in metrics.splitlines()


# tests/tasks/execution/test_deaths.py and tests/webapp/pages/test_deaths.py say so of engines that die when told to,
# and test_faults.py has a model on hold.
@pytest.mark.exhaustive
def test_an_engine_that_only_dies_holds_its_model_and_is_not_forgotten_when_the_batch_is_cancelled(
    faulty: RunningStack,
) -> None:
    rows = [a_chat(f"id-{number}", f"x {number}", model="doomed") for number in range(20)]

    def is_at_risk(batch: Any) -> bool:
        return batch.batchyard["held"] is not None and batch.batchyard["sla"] == "at_risk"

    batch = faulty.wait(faulty.submit(rows), until=is_at_risk)
    assert "died" in batch.batchyard["held"]["reason"]
    text = words(pages(faulty).get(f"/batches/{batch.id}").text)
    assert "on track" not in text.partition("History")[0]
    until(lambda: is_listed(faulty, r"doomed +- +echo +on hold "))
    faulty.client.batches.cancel(batch.id)
    faulty.wait(batch)
    deadline = time.monotonic() + 270
    while "No engine has answered since" not in (text := words(pages(faulty).get("/models/doomed").text)):
        assert time.monotonic() < deadline, text
        time.sleep(0.05)
    (model,) = [model for model in get(faulty, "/models?engines=true")["data"] if model["id"] == "doomed"]
    assert model["batchyard"]["last_failure"]["deaths"] >= 4
