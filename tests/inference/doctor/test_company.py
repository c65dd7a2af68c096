"""`doctor --reproducible`: whether answers depend on the requests that run beside them."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from batchyard.models import ModelSpec, vllm_installed
from inference.doctor import company, starting
from inference.doctor.folder import Finding
from inference.engine import EngineAnswer
from inference.engines.echo import Echo
from tests.support.stacks import ROOT

with_vllm = pytest.mark.skipif(not vllm_installed(), reason="vLLM is not installed")


class Crowded(Echo):
    """Answers some requests otherwise when many came together: the text of some, the log-probability of others."""

    running = most = 0

    async def answer(self, endpoint: str, body: dict[str, Any]) -> EngineAnswer:
        self.running += 1
        self.most = max(self.most, self.running)
        await asyncio.sleep(0)  # the others come
        answer = await super().answer(endpoint, body)
        if self.most > 50 and answer.body is not None and "seed" in body:
            choice = answer.body["choices"][0]
            if body["seed"] < 3:
                choice["message"]["content"] += "!"
            elif body["seed"] < 10:
                choice["logprobs"] = {"content": []}
        self.running -= 1
        self.most = self.most if self.running else 0
        return answer


def checked(engine: type[Echo], *endpoints: str, seconds: float = 600.0, **arguments: Any) -> Finding:
    spec = ModelSpec(name="m", engine="echo", engine_args=arguments, **({"endpoints": endpoints} if endpoints else {}))
    return asyncio.run(company.check(engine(spec, 600.0), seconds))


@pytest.mark.long
@pytest.mark.parametrize("endpoint", [*company.ASKED])
def test_answers_that_do_not_depend_on_others_are_found_equal_with_a_bound(endpoint: str) -> None:
    found = checked(Echo, endpoint)
    assert (found.check, found.result, found.remedy) == ("same answers", "ok", "")
    assert found.detail.startswith("0 of 200 answers differ, and the log-probabilities of 0 others; expect 0.0 to 1.8")


def test_answers_and_log_probabilities_that_do_are_counted_and_the_first_is_named() -> None:
    found = checked(Crowded)
    assert (found.result, found.remedy) == ("failed", "set reproducible = true")
    assert found.detail.startswith("3 of 200 answers differ, and the log-probabilities of 7 others; expect 2.4 to 9.0")
    assert "; request 0 with 64 at once: text from character " in found.detail


def test_a_model_that_refuses_or_generates_nothing_is_not_called_reproducible() -> None:
    failed = checked(Echo, fail_every=7)
    assert (failed.check, failed.result) == ("/v1/chat/completions", "failed") and "every 7th request" in failed.detail
    assert checked(Echo, "/classify").result == "not checked"
    slow = checked(Echo, latency_ms=50, seconds=0.1)
    assert (slow.check, slow.result, slow.detail) == ("time", "failed", "200 requests, 4 times, took more than 0.1 s")


def on_vllm(**arguments: Any) -> ModelSpec:
    return ModelSpec(
        name="nano",
        engine="vllm",
        source=str(ROOT / "examples/models/nano"),
        reproducible=True,
        engine_args={"max_model_len": 512, "kv_cache_memory_bytes": 2**28, **arguments},
    )


@pytest.mark.vllm
@with_vllm
def test_a_reproducible_model_does_not_start_on_a_cpu_in_a_type_that_was_not_measured() -> None:
    (refused,) = starting.start(on_vllm(dtype="float16"), 480)
    assert "it needs float32 or bfloat16, and the model is in float16; remove it" in refused.detail


@pytest.mark.vllm
@pytest.mark.exhaustive
@with_vllm
def test_a_reproducible_model_on_a_cpu_passes_the_test_of_it() -> None:
    *_, found = starting.start(on_vllm(), 120, reproducible=True)
    assert (found.check, found.result) == ("same answers", "ok"), found
