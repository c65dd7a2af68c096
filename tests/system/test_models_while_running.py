"""Models are added, changed and removed while batches and live streams run."""

from __future__ import annotations

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import openai
import pytest

from tests.support.rows import until
from tests.support.stacks import RunningStack, a_chat
from tests.support.terminal import Result, batchyard

pytestmark = pytest.mark.stack

STREAMS = 20
ROWS = 40
"""All run at once, beside the streams."""
MODELS = """
[models.echo]
engine = "echo"
[models.echo.engine_args]
ms_per_token = 100
slots = 100
[models.gone]
engine = "echo"
"""


@pytest.fixture(scope="module")
def running() -> Iterator[RunningStack]:
    stack = RunningStack.start(MODELS, BATCHYARD_ALLOW_SIMULATED="1")
    try:
        yield stack
    finally:
        stack.kill()


def call(stack: RunningStack, method: str, path: str, body: Any = None) -> dict[str, Any]:
    response = httpx.request(
        method, f"{stack.url}/v1{path}", json=body, headers={"Authorization": f"Bearer {stack.key}"}, timeout=300
    )
    assert response.status_code == 200, response.text
    return dict(response.json())


def live(stack: RunningStack, model: str, text: str = "hello") -> str:
    answer = stack.client.chat.completions.create(model=model, messages=[{"role": "user", "content": text}])
    return answer.choices[0].message.content or ""


def is_known(stack: RunningStack, model: str) -> bool:
    """True if a live request is answered: the gateway looks for changed models every second, and answers 404 before."""
    try:
        return bool(live(stack, model))
    except openai.NotFoundError:
        return False


def test_changes_harm_neither_a_running_batch_nor_live_streams(running: RunningStack) -> None:
    live(running, "echo")
    text = " ".join(["word"] * 200)

    begun = [False] * STREAMS

    def stream(number: int) -> int:
        messages: Any = [{"role": "user", "content": text}]
        pieces = 0
        for piece in running.client.chat.completions.create(model="echo", messages=messages, stream=True):
            pieces += bool(piece.choices and piece.choices[0].delta.content)
            begun[number] = begun[number] or pieces > 0
        return pieces

    before = {model["id"]: model for model in call(running, "GET", "/models")["data"]}["echo"]["batchyard"]
    batch = running.submit([a_chat(f"id-{number}", text) for number in range(ROWS)])
    batch = running.wait(batch, until=lambda one: one.status == "in_progress")
    with ThreadPoolExecutor(STREAMS + 1) as pool:
        streams = [pool.submit(stream, number) for number in range(STREAMS)]
        until(lambda: all(begun))
        added = call(running, "POST", "/models", {"id": "later", "entry": {"engine": "echo"}})
        assert added["id"] == "later"
        known = pool.submit(until, lambda: is_known(running, "later"))  # streams may end before its engine starts
        changed = call(running, "PATCH", "/models/echo", {"entry": {"engine_args": {"slots": 90}}})
        assert changed["batchyard"]["config_sha256"] != before["config_sha256"]
        last = call(running, "POST", "/models", {"id": "last", "entry": {"engine": "echo"}})
        call(running, "DELETE", "/models/echo")
        assert last["id"] == "last" and not all(one.done() for one in streams)
        assert all(one.result(timeout=360) > 100 for one in streams)
        known.result()
    call(running, "DELETE", "/models/later")
    until(lambda: not is_known(running, "later"))
    batch = running.wait(batch)
    assert batch.status == "completed" and batch.request_counts.completed == ROWS
    manifest = json.loads(running.artifact(batch, "manifest.json"))
    assert before["config_sha256"] in json.dumps(manifest)
    refused = running.wait(running.submit([a_chat("a", "hello")]))
    assert refused.status == "failed" and refused.errors.data[0].code == "model_not_found"
    actions = [entry["type"] for entry in call(running, "GET", "/audit")["data"]]
    assert {"model.added", "model.changed", "model.removed"} <= set(actions)


def test_changes_outlast_a_restart_and_a_reload_reports_the_difference(
    running: RunningStack,
) -> None:
    file = running.data.parent / "models.toml"

    def on_host(*arguments: str) -> Result:
        options = ("--data", running.data, "--models", file)
        return batchyard("models", *arguments, *options, folder=running.data.parent, BATCHYARD_ALLOW_SIMULATED="1")

    added = on_host("add", "kept", "--engine", "echo", "-s", "max_segments=3")
    assert added.returncode == 0, added.stderr
    until(lambda: is_known(running, "kept"))
    file.write_text(file.read_text() + '[models.declared]\nengine = "echo"\n')
    reloaded = call(running, "POST", "/models/reload")
    assert (reloaded["added"], reloaded["removed"]) == (["declared"], [])
    until(lambda: is_known(running, "declared"))
    assert on_host("remove", "gone").returncode == 0
    exported = on_host("export").stdout
    assert "[models.kept]" in exported and "[models.gone]" not in exported
    before = {model["id"] for model in call(running, "GET", "/models")["data"]}
    running.kill()
    running.become(RunningStack.restart(running.data, **running.environment))
    assert {model["id"] for model in call(running, "GET", "/models")["data"]} == before
    assert before >= {"declared", "kept"} and "gone" not in before
    assert "hello" in live(running, "kept")
