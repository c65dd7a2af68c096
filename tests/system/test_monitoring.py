"""The files of `deploy/` for Prometheus and Grafana fit the metrics of a running stack, in a real Prometheus."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, cast
from urllib.parse import urlsplit

import httpx
import openai
import pytest
import yaml

from tests.support.held_ports import hold
from tests.support.rows import until
from tests.support.stacks import ROOT, RunningStack, a_chat

FOLDER = ROOT / "deploy/prometheus"
PROMETHEUS = shutil.which("prometheus")

pytestmark = pytest.mark.skipif(PROMETHEUS is None, reason="no prometheus here; on Debian: apt install prometheus")


@pytest.fixture(scope="module")
def prometheus(stack: RunningStack, tmp_path_factory: pytest.TempPathFactory) -> Iterator[httpx.Client]:
    """A Prometheus with the shipped configuration that scrapes the shared stack once a second."""
    folder = tmp_path_factory.mktemp("prometheus")
    text = (FOLDER / "prometheus.yml").read_text()
    text = text.replace("127.0.0.1:8000", urlsplit(stack.url).netloc).replace("_interval: 10s", "_interval: 1s")
    (folder / "prometheus.yml").write_text(text)
    shutil.copy(FOLDER / "rules.yml", folder)
    port = hold()
    command = [str(PROMETHEUS), f"--config.file={folder}/prometheus.yml", f"--storage.tsdb.path={folder}/data"]
    with (folder / "log").open("w") as log:
        process = subprocess.Popen([*command, f"--web.listen-address=127.0.0.1:{port}"], stderr=log)
    try:
        with httpx.Client(base_url=f"http://127.0.0.1:{port}/api/v1", timeout=60) as client:
            deadline = time.monotonic() + 180
            while not (ready(port) and values(client, 'up{job="batchyard"} == 1')):
                assert time.monotonic() < deadline, (folder / "log").read_text()
                time.sleep(0.2)
            yield client
    finally:
        process.terminate()
        process.wait(90)


def ready(port: int) -> bool:
    """True if that Prometheus has started. It refuses connections first, and queries after that."""
    try:
        return httpx.get(f"http://127.0.0.1:{port}/-/ready", timeout=60).status_code == 200
    except httpx.ConnectError:
        return False


def values(client: httpx.Client, expression: str) -> list[dict[str, Any]]:
    """Return the result of a query. Fails if Prometheus cannot evaluate it."""
    answer = client.get("/query", params={"query": expression})
    assert answer.status_code == 200, f"{expression}: {answer.text}"
    return list(answer.json()["data"]["result"])


def board() -> list[str]:
    """Return the queries of the Grafana board."""
    panels = json.loads((ROOT / "deploy/grafana/batchyard.json").read_text())["panels"]
    return [target["expr"].replace("$__rate_interval", "1m") for panel in panels for target in panel.get("targets", [])]


@pytest.fixture(scope="module")
def busy(stack: RunningStack, prometheus: httpx.Client) -> Iterator[None]:
    """Some batches have run, some requests have failed, and one batch runs while Prometheus scrapes."""
    for model in ("echo", "failing"):
        stack.wait(stack.submit([a_chat(f"id-{number}", "hello there", model=model) for number in range(60)]))
    options = {"model": "echo", "reward": "exact", "ground_truth": "answer"}
    rows = [{"prompt": "hello", "answer": "hello"}]
    body = {"recipe": "rollout", "input": {"items": rows}, "options": options}
    job = stack.wait_for_job(cast(dict[str, Any], stack.client.post("/jobs", body=body, cast_to=object)))
    assert job["status"] == "completed", job["errors"]
    running = stack.submit([a_chat(f"id-{number}", "x", model="slow") for number in range(60_000)])
    stack.wait(running, until=lambda batch: batch.batchyard["eta_seconds"] is not None)
    deadline = time.monotonic() + 540
    rates = ('rate(batchyard_requests_total{model="slow"}[1m]) > 0', "rate(batchyard_live_requests_total[1m]) > 0")
    while not all(values(prometheus, rate) for rate in rates):
        assert time.monotonic() < deadline, "Prometheus has not looked at the running batch twice"
        ask_live(stack)
        time.sleep(0.2)
    yield
    with suppress(openai.ConflictError):  # it has ended by itself
        stack.client.batches.cancel(running.id)


def ask_live(stack: RunningStack) -> None:
    """Stream a short answer."""
    messages: list[Any] = [{"role": "user", "content": "hello there"}]
    assert list(stack.client.chat.completions.create(model="echo", messages=messages, stream=True))


def test_the_shipped_configuration_is_valid() -> None:
    checked = subprocess.run(
        [shutil.which("promtool") or "promtool", "check", "config", FOLDER / "prometheus.yml"],
        capture_output=True,
        text=True,
    )
    assert checked.returncode == 0, checked.stderr


@pytest.mark.usefixtures("busy")
def test_every_panel_of_the_board_shows_something(prometheus: httpx.Client) -> None:
    # Nothing was retried, no segment waits, no job runs or held anything back, no reward failed and this engine caches
    # nothing: those have nothing to show.
    unseen = "retries|oldest|cached|hungry|judgement|batchyard_job_items{"
    empty = [expression for expression in board() if not re.search(unseen, expression)]

    def all_show_something() -> bool:
        """Where the machine is busy, the stack may be late for a scrape, and then the panels are empty."""
        empty[:] = [expression for expression in empty if not values(prometheus, expression)]
        return not empty

    with suppress(AssertionError):
        until(all_show_something, 60)
    assert empty == []


@pytest.mark.usefixtures("busy")
def test_every_rule_is_evaluated_and_none_fires_for_a_healthy_stack(prometheus: httpx.Client) -> None:
    def all_rules() -> list[dict[str, Any]]:
        groups = prometheus.get("/rules").json()["data"]["groups"]
        return [rule for group in groups for rule in group["rules"]]

    until(lambda: all(rule["health"] != "unknown" for rule in all_rules()))  # they are evaluated one after the other
    rules = all_rules()
    assert len(rules) == len(yaml.safe_load((FOLDER / "rules.yml").read_text())["groups"][0]["rules"])
    assert [(rule["name"], rule["health"], rule.get("lastError")) for rule in rules if rule["health"] != "ok"] == []
    assert [rule["name"] for rule in rules if rule.get("state") == "firing" and rule["name"] == "BatchyardDown"] == []


@pytest.mark.usefixtures("busy")
def test_every_metric_that_rules_and_board_name_is_exported(stack: RunningStack) -> None:
    exported = httpx.get(f"{stack.url}/metrics", timeout=60).text
    named = set(re.findall(r"\bbatchyard_\w+", (FOLDER / "rules.yml").read_text() + " ".join(board())))
    missing = [name for name in named if not re.search(rf"^# TYPE {re.sub('_bucket$', '', name)} ", exported, re.M)]
    assert missing == []


@pytest.mark.usefixtures("busy")
def test_the_data_folder_holds_the_same_as_json(stack: RunningStack) -> None:
    deadline = time.monotonic() + 270
    file = stack.data / "metrics.json"
    while not _is_current(written := _read(file)):  # it is written every few seconds
        assert time.monotonic() < deadline, written
        time.sleep(0.5)
    assert written["queue"]["models"]
    assert {"at", "queue", "batches", "engines", "totals", "messages", "deliveries", "processes"} <= set(written)
    assert {"web", "worker", "beat", "redis", "ray"} <= set(written["processes"])


def _read(file: Path) -> dict[str, Any]:
    """Return the file's content; nothing if it is not there yet."""
    return dict(json.loads(file.read_text())) if file.is_file() else {}


def _is_current(written: dict[str, Any]) -> bool:
    """True if the totals count an error of the status 400, and the queue has a model."""
    errors = [entry for entry in written.get("totals", []) if entry["what"] == "error:status_400"]
    return bool(errors and written["queue"]["models"])
