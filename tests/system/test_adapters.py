"""Rows of a model and of its adapters in one file, on real vLLM: one engine, and the answers of `vllm serve`."""

from __future__ import annotations

import json
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest

from batchyard.models import vllm_installed
from inference.engines.adapters import CONFIG
from inference.engines.weights import model_sha256
from tests.support import vllm_commands
from tests.support.stacks import ROOT, RunningStack, a_chat

pytestmark = [pytest.mark.vllm, pytest.mark.skipif(not vllm_installed(), reason="vLLM is not installed")]
MINI, ADAPTERS = ROOT / "examples/models/mini", ROOT / "examples/models/adapters"
MODELS = f"""
[models.mini]
engine = "vllm"
source = "{MINI}"
adapters.descending.source = "{ADAPTERS / "descending"}"
adapters.brackets.source = "{ADAPTERS / "brackets"}"
[models.mini.engine_args]
dtype = "float32"
max_model_len = 256
kv_cache_memory_bytes = {64 * 2**20}
"""
NAMES = ("mini", "descending", "brackets")
QUESTIONS = [
    *("Sort these numbers: 42, 7, 19", "Sort in ascending order: 81, 5, 77, 12", "What is 37 + 58?"),
    *(f"Sort these numbers: {index}, {97 - index}, {3 * index + 1}, {50 - index}" for index in range(20)),
]


def text(answer: dict[str, Any]) -> str:
    return str(answer["choices"][0]["message"]["content"])


def test_rows_of_a_model_and_its_adapters_share_a_file_and_an_engine_and_answer_as_vllm_serve_does(
    start_stack: Callable[..., RunningStack], tmp_path: Path
) -> None:
    stack = start_stack(MODELS)
    rows = [
        a_chat(f"{index} {name}", question, model=name, temperature=0, max_tokens=32)
        for index, question in enumerate(QUESTIONS)
        for name in NAMES
    ]
    batch = stack.wait(stack.submit(rows), seconds=200)
    assert (batch.status, batch.request_counts.completed) == ("completed", len(rows)), batch.errors
    answers = {line["custom_id"]: line["response"]["body"] for line in stack.lines(batch.output_file_id)}
    assert [text(answers[f"0 {name}"]) for name in NAMES] == ["7, 19, 42", "42, 19, 7", "[7, 19, 42]"]
    assert [answers[f"2 {name}"]["model"] for name in NAMES] == list(NAMES)
    assert text(answers["2 mini"]) == text(answers["2 brackets"]) == "95"

    (model,) = json.loads(stack.artifact(batch, "manifest.json"))["models"].values()
    (engine,) = model["engines"]
    for name in NAMES[1:]:
        assert engine[f"adapter_sha256 {name}"] == model_sha256(str(ADAPTERS / name), CONFIG)
    queue: Any = stack.client.get("/queue", cast_to=object)
    assert [engine["model"] for engine in queue["engines"]] == ["mini"]
    stack.kill()

    modules = [f"{name}={ADAPTERS / name}" for name in NAMES[1:]]
    # One place more than adapters: on the CPU vLLM gives rows of the base the weights in the last one.
    flags = vllm_commands.flags(MINI, "mini", enable_lora=True, max_loras=3, max_lora_rank=8, lora_modules=modules)
    with vllm_commands.serving(tmp_path / "serve.log", *flags) as server, ThreadPoolExecutor(16) as threads:

        def ask(row: dict[str, Any]) -> httpx.Response:
            return server.post(row["url"], json=row["body"]).raise_for_status()

        theirs = [text(answer.json()) for answer in threads.map(ask, rows)]
    assert [text(answers[row["custom_id"]]) for row in rows] == theirs
    assert len(set(theirs)) > len(QUESTIONS)
