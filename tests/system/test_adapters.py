"""Rows of a model and of its adapters in one file, on real vLLM: one engine, and the answers of `vllm serve`."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest

from batchyard.models import vllm_installed
from inference.engines.adapters import CONFIG
from inference.engines.weights import model_sha256
from tests.support import vllm_engines
from tests.support.stacks import RunningStack, a_chat

pytestmark = [pytest.mark.vllm, pytest.mark.skipif(not vllm_installed(), reason="vLLM is not installed")]
NAMES = ("mini", *vllm_engines.NAMES)
QUESTIONS = [
    *("Sort these numbers: 42, 7, 19", "Sort in ascending order: 81, 5, 77, 12", "What is 37 + 58?"),
    *(f"Sort these numbers: {index}, {97 - index}, {3 * index + 1}, {50 - index}" for index in range(20)),
]


def text(answer: dict[str, Any]) -> str:
    return str(answer["choices"][0]["message"]["content"])


Answered = tuple[Any, dict[str, Any]]


@pytest.fixture(scope="module")
def rows() -> list[dict[str, Any]]:
    return [
        a_chat(f"{index} {name}", question, model=name, temperature=0, max_tokens=32)
        for index, question in enumerate(QUESTIONS)
        for name in NAMES
    ]


@pytest.fixture(scope="module")
def answered(vllm_stack: RunningStack, rows: list[dict[str, Any]]) -> Answered:
    """The batch of all rows, and each row's answer."""
    batch = vllm_stack.wait(vllm_stack.submit(rows), seconds=200)
    assert (batch.status, batch.request_counts.completed) == ("completed", len(rows)), batch.errors
    return batch, {line["custom_id"]: line["response"]["body"] for line in vllm_stack.lines(batch.output_file_id)}


def test_rows_of_a_model_and_its_adapters_share_a_file_and_an_engine(
    vllm_stack: RunningStack, answered: Answered
) -> None:
    batch, answers = answered
    assert [text(answers[f"0 {name}"]) for name in NAMES] == ["7, 19, 42", "42, 19, 7", "[7, 19, 42]"]
    assert [answers[f"2 {name}"]["model"] for name in NAMES] == list(NAMES)
    assert text(answers["2 mini"]) == text(answers["2 brackets"]) == "95"
    assert len({text(answer) for answer in answers.values()}) > len(QUESTIONS)

    (model,) = json.loads(vllm_stack.artifact(batch, "manifest.json"))["models"].values()
    (engine,) = model["engines"]
    for name in NAMES[1:]:
        assert engine[f"adapter_sha256 {name}"] == model_sha256(str(vllm_engines.ADAPTERS / name), CONFIG)
    queue: Any = vllm_stack.client.get("/queue", cast_to=object)
    assert [engine["model"] for engine in queue["engines"] if engine["model"] in NAMES] == ["mini"]


@pytest.mark.exhaustive
def test_their_answers_are_those_of_vllm_serve(
    rows: list[dict[str, Any]], answered: Answered, vllm_serve: httpx.Client
) -> None:
    def ask(row: dict[str, Any]) -> httpx.Response:
        return vllm_serve.post(row["url"], json=row["body"]).raise_for_status()

    with ThreadPoolExecutor(16) as threads:
        theirs = [text(answer.json()) for answer in threads.map(ask, rows)]
    _, answers = answered
    assert [text(answers[row["custom_id"]]) for row in rows] == theirs
