"""The test of `reproducible`: the same requests, in several orders and several at once."""

import asyncio
import random
from collections.abc import Callable, Mapping
from typing import Any

from batchyard.comparing.differences import difference
from batchyard.comparing.shares import share_bounds
from batchyard.endpoints import responses
from batchyard.endpoints.catalog import CHAT, COMPLETIONS, EMBEDDINGS, ENDPOINTS
from inference.doctor.folder import Finding
from inference.engine import Engine, EngineAnswer

CHECK = "same answers"
REQUESTS = 200
COMPANIES = (1, 8, 64, REQUESTS)
"""Concurrent requests of each run. The other runs are compared with the first."""
MAX_TOKENS = 16
POPULATION = 10**6
"""Stands for all possible requests: a larger number gives the same bounds."""
WORDS = ("which", "trains", "leave", "the", "yard", "before", "noon", "and", "why", "do", "nine", "of", "them", "wait")
ASKED: Mapping[str, Callable[[str], dict[str, Any]]] = {
    CHAT.path: lambda text: {"messages": [{"role": "user", "content": text}], "logprobs": True, "top_logprobs": 1},
    COMPLETIONS.path: lambda text: {"prompt": text, "logprobs": 1},
    EMBEDDINGS.path: lambda text: {"input": text},
}
"""Returns the request to each tested endpoint, by its text."""


async def check(engine: Engine, seconds: float) -> Finding:
    """Test whether answers of a started engine depend on the requests beside them, for at most so long."""
    try:
        async with asyncio.timeout(seconds):
            return await _compared(engine)
    except TimeoutError:
        detail = f"{REQUESTS} requests, {len(COMPANIES)} times, took more than {seconds:g} s"
        return Finding(engine.spec.name, "time", "failed", detail)


async def _compared(engine: Engine) -> Finding:
    spec = engine.spec
    endpoint = next((path for path in ASKED if path in spec.endpoints), None)
    if endpoint is None:
        return Finding(spec.name, CHECK, "not checked", f"the model serves none of {', '.join(ASKED)}")
    bodies = [_body(spec.name, endpoint, number) for number in range(REQUESTS)]
    first: list[EngineAnswer] = []
    texts, logprobs = dict[int, str](), set[int]()
    for size in COMPANIES:
        answers = await _answers(engine, endpoint, bodies, size)
        for number, answer in enumerate(answers):
            if answer.status_code != 200 or answer.body is None:
                why = answer.error or (answer.body or {}).get("error") or {}
                detail = f"request {number}, {size} at once: {why.get('message') or answer.status_code}"
                return Finding(spec.name, endpoint, "failed", detail, "mend what the reason names")
        for number, (before, after) in enumerate(zip(first or answers, answers, strict=True)):
            if found := difference(str(number), bodies[number], before.body or {}, after.body or {}, 0):
                texts.setdefault(number, f"; request {number} with {size} at once: {found.what}")
            elif _logprobs(before) != _logprobs(after):
                logprobs.add(number)
        first = first or answers
    different = len(texts.keys() | logprobs)
    low, high = share_bounds(different, REQUESTS, POPULATION)
    detail = (
        f"{len(texts)} of {REQUESTS} answers differ, and the log-probabilities of {different - len(texts)} others; "
        f"expect {100 * low:.1f} to {100 * high:.1f} % of all (95 % confidence){next(iter(texts.values()), '')}"
    )
    if not different:
        return Finding(spec.name, CHECK, "ok", detail)
    remedy = "remove reproducible: it does not hold here"
    if not spec.reproducible:
        can = engine.reproducible_refusal(spec) is None
        remedy = f"{'set' if can else 'use engine vllm with'} reproducible = true"
    return Finding(spec.name, CHECK, "failed", detail, remedy)


def _body(model: str, endpoint: str, number: int) -> dict[str, Any]:
    """Return a request: every other one is greedy, the rest have a seed."""
    chance = random.Random(number)
    text = " ".join(chance.choices(WORDS, k=chance.randint(3, 80)))
    sampling = {"max_tokens": MAX_TOKENS, "temperature": number % 2, "seed": number}
    return {"model": model, **ASKED[endpoint](text), **(sampling if ENDPOINTS[endpoint].generates else {})}


async def _answers(engine: Engine, endpoint: str, bodies: list[dict[str, Any]], size: int) -> list[EngineAnswer]:
    """Return the answers to all requests, sent in random order, `size` at once."""
    room = asyncio.Semaphore(size)
    order = random.Random(size).sample(range(len(bodies)), len(bodies))

    async def one(number: int) -> EngineAnswer:
        async with room:
            return await engine.answer(endpoint, dict(bodies[number]))

    answers = dict(zip(order, await asyncio.gather(*map(one, order)), strict=True))
    return [answers[number] for number in range(len(bodies))]


def _logprobs(answer: EngineAnswer) -> list[Any]:
    return [output.logprobs for output in responses.outputs(answer.body)]
