"""Engine echo with prefill costs: steps of answers and parts of prompts, as engines with continuous batching have."""

from __future__ import annotations

import asyncio
import sys
import tomllib
from collections.abc import AsyncGenerator
from itertools import pairwise
from typing import Any

import pytest

from batchyard.models import ModelSpec
from inference.engines.echo import Echo
from inference.engines.registry import check_arguments
from inference.progress import PROGRESS, RequestProgress
from tests.support import simulated_time
from tests.support.rows import chat
from tests.support.stacks import ROOT

sys.path.append(str(ROOT / "benchmarks"))
import live_presets

CHAT = "/v1/chat/completions"
STEP, REQUEST, TOKEN = 0.01, 0.001, 0.0005
"""Seconds of a step, of each answer in it, and of each token of a prompt."""


def simulator(live: dict[str, Any] | None = None, **arguments: Any) -> Echo:
    """An engine with steps of at most 100 tokens."""
    arguments = {"ms_per_token": 10, "ms_per_request": 1, "prefill_tokens_per_second": 2000, **arguments}
    arguments = {"max_num_batched_tokens": 100, "slots": 8, **arguments}
    return Echo(ModelSpec(name="echo", engine="echo", engine_args=arguments, live=live or {}), 1e9)


def request(prompt: int, tokens: int) -> dict[str, Any]:
    return chat(" ".join(["word"] * prompt), max_tokens=tokens)[0]


async def answered(engine: Echo, prompt: int, tokens: int, progress: RequestProgress | None = None) -> float:
    """When the answer came, in seconds of the simulation."""
    PROGRESS.set(progress)
    await engine.answer(CHAT, request(prompt, tokens))
    return asyncio.get_running_loop().time()


async def streamed(engine: Echo, prompt: int, tokens: int, *, live: bool = True) -> list[float]:
    """When each token came."""
    PROGRESS.set(RequestProgress(live=live))
    events = await engine.stream(CHAT, request(prompt, tokens) | {"stream": True})
    assert isinstance(events, AsyncGenerator)
    return [asyncio.get_running_loop().time() async for event in events if b"word" in event]


def gaps(times: list[float]) -> list[float]:
    return [later - earlier for earlier, later in pairwise(times)]


async def begun(*scenes: Any) -> list[asyncio.Task[Any]]:
    """Tasks of the scenes, which have begun."""
    tasks = [asyncio.create_task(scene) for scene in scenes]
    await asyncio.sleep(0)
    return tasks


def test_a_prompt_takes_its_time_in_parts_and_the_first_token_comes_with_the_last_part() -> None:
    times = simulated_time.run(streamed(simulator(), 250, 4))
    assert times[0] == pytest.approx(3 * STEP + 250 * TOKEN)
    assert gaps(times) == pytest.approx([STEP + REQUEST] * 3)


def test_an_answer_under_way_has_a_token_in_each_step_and_prompts_have_the_rest() -> None:
    async def scene() -> tuple[list[float], float]:
        engine = simulator({"bound_steps": False})
        stream, prompt = await begun(streamed(engine, 1, 8), answered(engine, 300, 1))
        return await stream, await prompt

    times, prompt = simulated_time.run(scene())
    full = STEP + 99 * TOKEN
    assert times[0] == pytest.approx(STEP + 100 * TOKEN), "its prompt and 99 tokens of the other"
    assert gaps(times)[:2] == pytest.approx([full + REQUEST] * 2)
    assert gaps(times)[2] == pytest.approx(STEP + REQUEST + 3 * TOKEN), "the last three tokens of the prompt"
    assert gaps(times)[3:] == pytest.approx([STEP + REQUEST] * 4)
    assert prompt == pytest.approx(times[3])


def test_prompts_wait_in_the_order_of_their_arrival_and_those_of_live_requests_first() -> None:
    async def scene() -> list[float]:
        engine, live = simulator({"bound_steps": False}, slots=1), RequestProgress(live=True)
        tasks = await begun(answered(engine, 10, 3), answered(engine, 10, 2), answered(engine, 10, 2))
        tasks += await begun(answered(engine, 10, 2, live))
        times: list[float] = await asyncio.gather(*tasks)
        return times

    first, second, third, live = simulated_time.run(scene())
    assert first < live < second < third, "one slot"


def test_a_request_whose_caller_goes_away_leaves_its_slot() -> None:
    async def scene() -> float:
        engine = simulator(slots=1)
        (long, waiting) = await begun(answered(engine, 10, 10_000), answered(engine, 10, 10_000))
        await asyncio.sleep(1)
        waiting.cancel()
        long.cancel()
        return await answered(engine, 10, 1)

    assert simulated_time.run(scene()) == pytest.approx(1, abs=0.05)


def test_a_request_that_cannot_end_in_time_is_timed_out() -> None:
    engine = simulator()
    engine.request_timeout = 2
    answer = simulated_time.run(engine.answer(CHAT, request(10, 10_000)))
    assert answer.error is not None and answer.error["code"] == "request_timeout"


def test_it_tells_whether_a_request_has_a_token_and_how_many() -> None:
    async def scene() -> list[tuple[bool, int]]:
        engine, progress = simulator(), RequestProgress()
        (task,) = await begun(answered(engine, 150, 20, progress))
        seen = []
        for _ in range(2):
            await asyncio.sleep(0.09)
            seen.append((engine.has_begun(progress), progress.output_tokens))
        await task
        return [*seen, (engine.has_begun(progress), progress.output_tokens)]

    assert simulated_time.run(scene()) == [(False, 0), (True, 8), (True, 20)]


def beside_batches(live: dict[str, Any]) -> tuple[list[float], float, bool]:
    """Gaps of a live stream beside batches with long prompts, when these end, and whether steps are bounded."""

    async def scene() -> tuple[list[float], float, bool]:
        engine = simulator(live, slots=16)
        batch = await begun(*(answered(engine, 60, 10) for _ in range(200)))
        await asyncio.sleep(1)
        times = await streamed(engine, 20, 60)
        return gaps(times), max(await asyncio.gather(*batch)), engine.bounds_steps

    return simulated_time.run(scene())


def test_steps_beside_live_requests_have_the_bound_of_engine_vllm() -> None:
    free, free_end, bounded = beside_batches({"itl_ms": 40, "bound_steps": False})
    assert not bounded
    assert max(free) > 0.055, "prompts fill the steps"
    bound, bound_end, bounded = beside_batches({"itl_ms": 40})
    assert bounded
    assert sorted(bound)[-4] < 0.042, "but for the steps in which it learns"
    assert bound_end < 1.2 * free_end, "batches have the rest of each step"


@pytest.mark.parametrize(("batches", "longest"), [(200, 0.047), (0, 0.06)])
def test_live_prompts_that_come_together_share_a_step_only_without_batches(batches: int, longest: float) -> None:
    async def scene() -> list[float]:
        engine = simulator({"itl_ms": 42}, slots=16)
        batch = await begun(*(answered(engine, 10, 20) for _ in range(batches)))
        await asyncio.sleep(1)
        (stream,) = await begun(streamed(engine, 20, 60))
        for _ in range(8):
            await asyncio.sleep(0.2)
            pair = await begun(*(streamed(engine, 60, 2) for _ in range(2)))
            await asyncio.gather(*pair)
        await asyncio.gather(*batch)
        return gaps(await stream)

    assert max(simulated_time.run(scene())) == pytest.approx(longest, rel=0.02)


def test_the_presets_of_the_benchmark_are_entries_of_models_toml() -> None:
    for preset in live_presets.PRESETS.values():
        tables = {"engine_args": preset.arguments, "live": preset.live}
        entry = tomllib.loads("\n".join(f"{key} = {live_presets.toml(table)}" for key, table in tables.items()))
        assert entry == tables
        check_arguments(ModelSpec(name="m", engine="echo", **entry))
