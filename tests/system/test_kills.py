"""An engine of vLLM that is killed while it answers: on every endpoint each line is answered once."""

from __future__ import annotations

import signal
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from openai.types import Batch

from batchyard.endpoints import catalog
from batchyard.endpoints.base import Endpoint
from batchyard.models import vllm_installed
from inference.residents import directory
from tests.conftest import StartStack
from tests.support import encoders
from tests.support.stacks import ROOT, RunningStack
from tests.support.vllm_engines import engine_core, tagged

sys.path.append(str(ROOT / "examples/models"))

pytestmark = [
    pytest.mark.vllm,
    pytest.mark.timeout(900),
    pytest.mark.skipif(not vllm_installed(), reason="vLLM is not installed"),
]
ROWS = {catalog.CHAT: 200, catalog.COMPLETIONS: 200}
"""The rows of a batch, so many that it takes some seconds; of other endpoints, whose answers are shorter, 1,000."""
GREEDY = {"temperature": 0, "max_tokens": 8}
LONGER = {"temperature": 0, "max_tokens": 80, "ignore_eos": True}


def messages(text: str) -> list[dict[str, str]]:
    return [{"role": "user", "content": text}]


BODIES: dict[str, dict[Endpoint, Callable[[str], dict[str, Any]]]] = {
    "mini": {
        catalog.CHAT: lambda text: {"messages": messages(text), **LONGER},
        catalog.COMPLETIONS: lambda text: {"prompt": text, **LONGER},
        catalog.RESPONSES: lambda text: {"input": text, "max_output_tokens": 8, "temperature": 0},
        catalog.MESSAGES: lambda text: {"messages": messages(text), **GREEDY},
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
def others(start_stack: StartStack, tmp_path_factory: pytest.TempPathFactory) -> RunningStack:
    """A stack of the models but `mini`, with small engines, which hold few requests at once."""
    from decider import make

    decider = tmp_path_factory.mktemp("decider")
    make(decider)
    entries = []
    for name, bodies in list(BODIES.items())[1:]:
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
    return start_stack("".join(entries), BATCHYARD_MAX_SEGMENTS="8")


def kill_engine(stack: RunningStack, model: str) -> bool:
    """Kill the process in which vLLM computes for a model. False if there is none."""
    # The owner has the tag in its own environment, which /proc does not show of what a process sets itself.
    processes = tagged(stack.processes("ray"), f"/{directory.PREFIX}{model}:")
    if processes:
        engine_core(processes).send_signal(signal.SIGKILL)
    return bool(processes)


def killed_in_the_middle(stack: RunningStack, model: str, entries: Sequence[Endpoint]) -> dict[Endpoint, Batch]:
    """Return a batch for each endpoint, whose engine was killed while the batch had some answers and lacked others.

    They run side by side, so one kill may serve them all. A batch that ends before it is hit is submitted again.
    """
    batches = {entry: submitted(stack, model, entry) for entry in entries}
    unhit = set(entries)
    deadline = time.monotonic() + 1200
    while unhit:
        assert time.monotonic() < deadline, f"not hit: {[entry.path for entry in unhit]}"
        time.sleep(0.05)
        answered = {entry: answers(stack, batches[entry]) for entry in unhit}
        middle = {entry for entry in unhit if 0 < answered[entry] < rows(entry) * 3 / 4}
        soon_over = any(answered[entry] > rows(entry) / 4 for entry in middle)
        if (middle == unhit or soon_over) and kill_engine(stack, model):
            unhit -= middle
        for entry in unhit:
            if answered[entry] == rows(entry):
                batches[entry] = submitted(stack, model, entry)
    return batches


def rows(entry: Endpoint) -> int:
    return ROWS.get(entry, 1000)


def answers(stack: RunningStack, batch: Batch) -> int:
    counts = stack.client.batches.retrieve(batch.id).request_counts
    return counts.completed if counts else 0


def submitted(stack: RunningStack, model: str, entry: Endpoint) -> Batch:
    """Submit a batch of texts to an endpoint."""
    bodies = [{"model": model, **BODIES[model][entry](f"text {number}")} for number in range(rows(entry))]
    lines = [
        {"custom_id": f"r{number}", "method": "POST", "url": entry.path, "body": body}
        for number, body in enumerate(bodies)
    ]
    return stack.submit(lines, endpoint=entry.path)


def groups() -> list[Any]:
    """Return models with two endpoints each, whose batches run side by side.

    A death is the same for all endpoints but for the form in which vLLM's handler of each says it.
    """
    params = [pytest.param("mini", [catalog.CHAT], id=catalog.CHAT.path)]
    for model, bodies in BODIES.items():
        entries = [entry for entry in bodies if entry is not catalog.CHAT]
        for start in range(0, len(entries), 2):
            pair = entries[start : start + 2]
            name = " ".join(entry.path for entry in pair)
            params.append(pytest.param(model, pair, id=name))
    return params


@pytest.mark.exhaustive  # tests/inference/engines/vllm/test_killed.py kills vLLM amid rows, test_faults.py engines
@pytest.mark.parametrize(("model", "entries"), groups())
def test_a_killed_engine_leaves_each_line_of_every_endpoint_with_one_answer(
    request: pytest.FixtureRequest, model: str, entries: Sequence[Endpoint]
) -> None:
    stack: RunningStack = request.getfixturevalue("vllm_stack" if model == "mini" else "others")
    batches = killed_in_the_middle(stack, model, entries)
    ended = {entry: stack.wait(batch, seconds=400) for entry, batch in batches.items()}
    for entry, batch in ended.items():
        counts = batch.request_counts
        assert (batch.status, counts.completed, counts.failed) == ("completed", rows(entry), 0), entry.path
        lines = stack.lines(batch.output_file_id)
        assert [line["custom_id"] for line in lines] == [f"r{n}" for n in range(rows(entry))], entry.path
        assert {line["response"]["status_code"] for line in lines} == {200}
    assert sum(batch.batchyard["engine_deaths"] for batch in ended.values()) >= 1
