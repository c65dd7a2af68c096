"""`up --server`: in front of servers that run, without a models file, torch or vLLM."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import pytest

from tests.support.servers import Server, serving
from tests.support.stacks import RunningStack, a_chat

pytestmark = pytest.mark.stack
UNINSTALLED = ("torch", "transformers", "vllm")


@pytest.fixture
def without_engines(tmp_path: Path) -> Path:
    """A folder of modules that say they are not installed."""
    for name in UNINSTALLED:
        (tmp_path / f"{name}.py").write_text(f"raise ModuleNotFoundError(\"No module named '{name}'\")")
    return tmp_path


def test_all_models_of_all_servers_answer_batches_and_live_requests(without_engines: Path) -> None:
    path = f"{without_engines}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"
    folder = Path(tempfile.mkdtemp(prefix="by-"))
    with serving(Server(serves="acme/one"), Server(serves="acme/one"), Server(serves="two:8b")) as servers:
        options = [word for server in servers for word in ("--server", server.url)]
        stack = RunningStack.restart(folder / "data", options=options, models=False, PYTHONPATH=path)
        try:
            rows = [a_chat(str(number), f"say {number}", model="acme/one") for number in range(100)]
            batch = stack.wait(stack.submit([*rows, a_chat("two", "say two", model="two:8b")]))
            assert (batch.status, batch.request_counts.completed) == ("completed", 101)
            assert all(len(server.asked) > 0 for server in servers)
            messages = [{"role": "user", "content": "live"}]
            answer = stack.client.chat.completions.create(model="two:8b", messages=messages)  # type: ignore[arg-type]
            assert (answer.model, answer.choices[0].message.content) == ("two:8b", "live")
            assert stack.client.models.retrieve("acme/one").id == "acme/one"
            assert not (folder / "models.toml").exists()
        finally:
            stack.kill()
