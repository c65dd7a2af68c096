"""Engine echo as a decode simulator: continuous batching in slots, each answer as long as its request says."""

from __future__ import annotations

import asyncio
import random
import sys
import time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from batchyard.errors import ConfigurationError
from batchyard.models import ModelSpec
from inference.engine import EngineAnswer
from inference.engines.echo import Echo
from inference.engines.registry import check_arguments
from tests.support import simulated_time
from tests.support.rows import all_answers, chat
from tests.support.stacks import ROOT

sys.path.append(str(ROOT / "benchmarks"))
import decoding

CHAT = "/v1/chat/completions"


def simulator(request_timeout: float = 1e9, **arguments: Any) -> Echo:
    """An engine that decodes 10 tokens a second in each slot."""
    return Echo(ModelSpec(name="echo", engine="echo", engine_args={"ms_per_token": 100, **arguments}), request_timeout)


async def timed(engine: Echo, body: dict[str, Any], path: str = CHAT) -> tuple[float, EngineAnswer]:
    """When the answer came, and the answer."""
    answer = await engine.answer(path, body)
    return asyncio.get_running_loop().time(), answer


def times(engine: Echo, *lengths: int) -> list[float]:
    """When the answers of these lengths come, to requests that all come at time 0."""

    async def scene() -> list[tuple[float, EngineAnswer]]:
        bodies = [chat("go", max_tokens=length)[0] for length in lengths]
        return await asyncio.gather(*(timed(engine, body) for body in bodies))

    return [at for at, _ in simulated_time.run(scene())]


def choice(answer: EngineAnswer) -> tuple[str, str, int]:
    """Its text, finish_reason and completion_tokens."""
    assert answer.body is not None
    first = answer.body["choices"][0]
    return first["message"]["content"], first["finish_reason"], answer.body["usage"]["completion_tokens"]


def test_requests_take_slots_in_the_order_in_which_they_come() -> None:
    assert times(simulator(slots=2), 10, 30, 10, 10, 5) == pytest.approx([1, 3, 2, 3, 3.5])


@given(st.lists(st.integers(1, 400), min_size=1, max_size=60), st.integers(1, 9))
def test_the_whole_takes_as_long_as_list_scheduling_of_the_lengths_says(lengths: list[int], slots: int) -> None:
    ends = times(simulator(slots=slots), *lengths)
    steps = decoding.listed(lengths, slots)
    assert max(ends) == pytest.approx(steps / 10)
    assert decoding.bound(lengths, slots) <= steps <= 2 * decoding.bound(lengths, slots)
    starts = [end - length / 10 for end, length in zip(ends, lengths, strict=True)]
    assert starts == pytest.approx(sorted(starts)), "first come first served"
    for moment in starts:
        running = sum(start <= moment + 1e-6 < end for start, end in zip(starts, ends, strict=True))
        assert running <= slots


def test_a_slot_that_stood_empty_is_not_made_up_for() -> None:
    async def scene() -> float:
        engine = simulator(slots=1)
        await timed(engine, chat("go", max_tokens=10)[0])
        await asyncio.sleep(5)
        return (await timed(engine, chat("go", max_tokens=10)[0]))[0]

    assert simulated_time.run(scene()) == pytest.approx(7)


def test_a_request_that_comes_late_waits_only_for_those_before_it() -> None:
    async def scene() -> float:
        engine = simulator(slots=1)
        first = asyncio.create_task(timed(engine, chat("go", max_tokens=10)[0]))
        await asyncio.sleep(0.9)
        at, _ = await timed(engine, chat("go", max_tokens=10)[0])
        await first
        return at

    assert simulated_time.run(scene()) == pytest.approx(2)


def test_an_answer_is_as_long_as_the_request_says() -> None:
    async def scene() -> list[EngineAnswer]:
        bodies = [
            *chat("a b  c"),
            *chat("a b  c", max_tokens=2),
            *chat("a b c", max_tokens=7),
            *chat("a b c", max_completion_tokens=4, max_tokens=None),
            *chat("a b c", max_tokens=3),
        ]
        return await all_answers(simulator(), CHAT, bodies)

    assert [choice(answer) for answer in simulated_time.run(scene())] == [
        ("a b  c", "stop", 3),
        ("a b", "length", 2),
        ("a b c a b c a", "length", 7),
        ("a b c a", "length", 4),
        ("a b c", "length", 3),
    ]


def test_each_sample_of_a_request_takes_a_slot_and_an_embedding_takes_none() -> None:
    async def scene() -> tuple[float, float, int]:
        engine = simulator(slots=2)
        at, answer = await timed(engine, chat("go", max_tokens=10, n=3)[0])
        embedded_at, _ = await timed(engine, {"input": "some words"}, "/v1/embeddings")
        return at, embedded_at, choice(answer)[2]

    assert simulated_time.run(scene()) == (pytest.approx(2), pytest.approx(2), 30)


def test_a_request_that_takes_too_long_times_out_and_frees_its_slot_then() -> None:
    async def scene() -> list[tuple[float, EngineAnswer]]:
        engine = simulator(request_timeout=2, slots=1)
        lengths = (15, 10, 100)
        asked = [asyncio.create_task(timed(engine, chat("go", max_tokens=length)[0])) for length in lengths]
        await asyncio.sleep(1)
        asked.append(asyncio.create_task(timed(engine, chat("go", max_tokens=5)[0])))
        return await asyncio.gather(*asked)

    outcomes = [(at, answer.error and answer.error["code"]) for at, answer in simulated_time.run(scene())]
    assert outcomes == [
        (pytest.approx(1.5), None),
        (pytest.approx(2), "request_timeout"),
        (pytest.approx(2), "request_timeout"),
        (pytest.approx(2.5), None),
    ], "the third never had the slot"


def test_latency_comes_on_top_and_outside_of_the_slot() -> None:
    assert times(simulator(slots=1, latency_ms=300), 10, 10) == pytest.approx([1.3, 2.3])
    assert times(simulator(ms_per_token=0, latency_ms=300, request_timeout=0.2), 10) == pytest.approx([0.2])


def test_without_time_per_token_the_length_asked_for_changes_nothing() -> None:
    (answer,) = simulated_time.run(all_answers(simulator(ms_per_token=0), CHAT, chat("a b c", max_tokens=2)))
    assert choice(answer) == ("a b c", "stop", 3)


def test_its_capacity_is_its_slots() -> None:
    assert (simulator(slots=3).capacity, simulator().capacity) == (3, 128)
    with pytest.raises(ConfigurationError, match="slots"):
        check_arguments(ModelSpec(name="echo", engine="echo", engine_args={"slots": 0}))


def test_real_time_keeps_to_the_simulated_and_a_token_costs_none() -> None:
    chance = random.Random(1)
    lengths = [round(min(400, chance.lognormvariate(3.2, 1.0))) for _ in range(500)]
    bodies = [chat("go", max_tokens=length)[0] for length in lengths]

    async def answer() -> int:
        """Return how many timers were set."""
        await all_answers(simulator(slots=32, ms_per_token=1), CHAT, bodies)
        loop = asyncio.get_running_loop()
        return loop.timers if isinstance(loop, simulated_time.SimulatedLoop) else 0

    began = time.monotonic()
    asyncio.run(answer())
    seconds = decoding.listed(lengths, 32) / 1000
    assert seconds <= time.monotonic() - began < 10 * seconds + 60
    assert sum(lengths) > 10_000 > simulated_time.run(answer())


def test_a_parameter_that_says_how_a_caller_waits_is_one_of_responses_alone() -> None:
    spec, body = ModelSpec(name="m", engine="echo"), {"model": "m", "background": True, "store": True, "user": "u"}
    assert Echo.unsupported(spec, "/v1/responses", body) is None
    refused = Echo.unsupported(spec, "/v1/chat/completions", body)
    assert refused == ("body.background", "engine echo does not support the parameter 'background'")


def test_a_misspelt_parameter_is_refused_with_the_nearest_name() -> None:
    spec = ModelSpec(name="m", engine="echo")
    refused = Echo.unsupported(spec, "/v1/chat/completions", {"model": "m", "messages": [], "tempreature": 0.5})
    assert refused is not None and refused[0] == "body.tempreature"
    assert refused[1].endswith("does not support the parameter 'tempreature'; did you mean 'temperature'?")
    other = Echo.unsupported(spec, "/v1/chat/completions", {"zzz": 1})
    assert other == ("body.zzz", "engine echo does not support the parameter 'zzz'")
