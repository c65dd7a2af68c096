"""An engine of vLLM that is killed while it answers: on every endpoint each line is answered once."""

from __future__ import annotations

import signal
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import psutil
import pytest
from openai.types import Batch

from batchyard.endpoints import catalog
from batchyard.endpoints.base import Endpoint
from batchyard.models import vllm_installed
from tests.support import encoders
from tests.support.stacks import ROOT, RunningStack

sys.path.append(str(ROOT / "examples/models"))

pytestmark = [
    pytest.mark.vllm,
    pytest.mark.timeout(900),
    pytest.mark.skipif(not vllm_installed(), reason="vLLM is not installed"),
]
ROWS = 1000
GREEDY = {"temperature": 0, "max_tokens": 8}


def chat(text: str) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": text}], **GREEDY}


BODIES: dict[str, dict[Endpoint, Callable[[str], dict[str, Any]]]] = {
    "mini": {
        catalog.CHAT: chat,
        catalog.COMPLETIONS: lambda text: {"prompt": text, **GREEDY},
        catalog.RESPONSES: lambda text: {"input": text, "max_output_tokens": 8, "temperature": 0},
        catalog.MESSAGES: chat,
        catalog.GENERATE: lambda text: {"token_ids": [*text.encode()], "sampling_params": GREEDY},
        catalog.TOKENIZE: lambda text: {"prompt": text},
    },
    "embed": {
        catalog.EMBEDDINGS: lambda text: {"input": text},
        catalog.POOLING: lambda text: {"input": text},
    },
    "rerank": {
        catalog.SCORE: lambda text: {"queries": text, "documents": encoders.DOCUMENTS},
        catalog.RERANK: lambda text: {"query": text, "documents": encoders.DOCUMENTS},
    },
    "sentiment": {catalog.CLASSIFY: lambda text: {"input": text}},
    "decider": {
        catalog.SYSTEMONE: lambda text: {
            "state": text,
            "questions": {"a": {"type": "choice", "criteria": {"good": None, "bad": None}}},
        }
    },
}
"""The bodies of each model's endpoints, made of a text, without `model`."""


@pytest.fixture(scope="module")
def real(start_stack: Callable[..., RunningStack], tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningStack]:
    """A stack of small engines, which hold few requests at once."""
    from decider import make

    decider = tmp_path_factory.mktemp("decider")
    make(decider)
    entries = []
    for name, bodies in BODIES.items():
        source = decider if name == "decider" else ROOT / "examples/models" / name
        entries.append(
            f"""
[models.{name}]
engine = "vllm"
source = "{source}"
endpoints = {[entry.path for entry in bodies]}
max_in_flight = 8
[models.{name}.engine_args]
dtype = "float32"
max_model_len = 128
kv_cache_memory_bytes = {32 * 2**20}
"""
        )
    stack = start_stack("".join(entries), BATCHYARD_MAX_SEGMENTS="8")
    yield stack
    stack.kill()


class Cores:
    """The processes in which vLLM computes, by the model whose test saw them first."""

    def __init__(self, stack: RunningStack) -> None:
        self._stack = stack
        self._model_of: dict[psutil.Process, str] = {}

    def of(self, model: str) -> list[psutil.Process]:
        """Return those of a model: the others were there before its first batch."""
        for process in self._stack.processes("ray"):
            if "EngineCor" in _name(process):
                self._model_of.setdefault(process, model)
        return [process for process, of in self._model_of.items() if of == model and process.is_running()]

    def kill(self, model: str) -> int:
        """Kill those of a model, and return how many they were."""
        cores = self.of(model)
        for core in cores:
            core.send_signal(signal.SIGKILL)
            del self._model_of[core]
        return len(cores)


@pytest.fixture(scope="module")
def cores(real: RunningStack) -> Cores:
    return Cores(real)


def _name(process: psutil.Process) -> str:
    try:
        return process.name()
    except psutil.Error:
        return ""


def killed_in_the_middle(
    stack: RunningStack, cores: Cores, model: str, entries: Sequence[Endpoint]
) -> dict[Endpoint, Batch]:
    """Return a batch for each endpoint, whose engine was killed while the batch had some answers and lacked others.

    They run side by side, so one kill may serve them all. A batch that ends before it is hit is submitted again.
    """
    batches = {entry: submitted(stack, model, entry) for entry in entries}
    unhit = set(entries)
    deadline = time.monotonic() + 400
    while unhit:
        assert time.monotonic() < deadline, f"not hit: {[entry.path for entry in unhit]}"
        time.sleep(0.05)
        answered = {entry: answers(stack, batches[entry]) for entry in unhit}
        middle = {entry for entry in unhit if 0 < answered[entry] < ROWS * 3 / 4}
        if (middle == unhit or any(answered[entry] > ROWS / 4 for entry in middle)) and cores.kill(model):
            unhit -= middle
        for entry in unhit:
            if answered[entry] == ROWS:
                batches[entry] = submitted(stack, model, entry)
    return batches


def answers(stack: RunningStack, batch: Batch) -> int:
    counts = stack.client.batches.retrieve(batch.id).request_counts
    return counts.completed if counts else 0


def submitted(stack: RunningStack, model: str, entry: Endpoint) -> Batch:
    """Submit a batch of texts to an endpoint."""
    bodies = [{"model": model, **BODIES[model][entry](f"text {number}")} for number in range(ROWS)]
    lines = [
        {"custom_id": f"r{number}", "method": "POST", "url": entry.path, "body": body}
        for number, body in enumerate(bodies)
    ]
    return stack.submit(lines, endpoint=entry.path)


def groups() -> Iterator[Any]:
    """Yield a model and two endpoints of it whose batches run side by side. `make test` has the first two."""
    for model, bodies in BODIES.items():
        entries = list(bodies)
        for start in range(0, len(entries), 2):
            pair = entries[start : start + 2]
            marks = () if entries[start] is catalog.CHAT else pytest.mark.exhaustive
            yield pytest.param(model, pair, id=" ".join(entry.path for entry in pair), marks=marks)


@pytest.mark.parametrize(("model", "entries"), groups())
def test_a_killed_engine_leaves_each_line_of_every_endpoint_with_one_answer(
    real: RunningStack, cores: Cores, model: str, entries: Sequence[Endpoint]
) -> None:
    batches = killed_in_the_middle(real, cores, model, entries)
    ended = [real.wait(batch, seconds=400) for batch in batches.values()]
    cores.of(model)
    for batch in ended:
        counts = batch.request_counts
        assert (batch.status, counts.completed, counts.failed) == ("completed", ROWS, 0), batch.endpoint
        answers = real.lines(batch.output_file_id)
        assert [line["custom_id"] for line in answers] == [f"r{n}" for n in range(ROWS)], batch.endpoint
        assert {line["response"]["status_code"] for line in answers} == {200}
    assert sum(batch.batchyard["engine_deaths"] for batch in ended) >= 1
