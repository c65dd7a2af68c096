"""One tenant floods a model with live requests: another's wait for the next place, and not for the flood."""

from __future__ import annotations

import asyncio
import itertools
import json
import resource
import time
from collections import Counter
from collections.abc import Callable

import aiohttp
import httpx
import pytest

from tests.support.stacks import RunningStack

SLOTS, MS_PER_TOKEN, TOKENS = 16, 20, 50
ANSWER_SECONDS = TOKENS * MS_PER_TOKEN / 1000
FLOOD = 3000
AT_ONCE = 1000
"""So many of the flood are taken, and wait for each other; the rest is refused."""
OWN = 10
MODELS = f"""
[models.paced]
engine = "echo"
engine_args = {{ slots = {SLOTS}, ms_per_token = {MS_PER_TOKEN} }}
"""


@pytest.fixture(scope="module")
def live(start_stack: Callable[..., RunningStack]) -> RunningStack:
    """A stack as a shell starts it: with fewer open files than the flood has connections."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (1024, hard))
    settings = {
        "BATCHYARD_ALLOW_SIMULATED": "1",
        "BATCHYARD_LIVE_REQUESTS_AT_ONCE": str(AT_ONCE),
        "BATCHYARD_LIVE_REQUESTS_PER_MINUTE": "100000",
    }
    try:
        return start_stack(MODELS, **settings)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def key_of_another_project(stack: RunningStack) -> str:
    with httpx.Client(base_url=stack.url, headers={"Authorization": f"Bearer {stack.key}"}) as http:
        return str(http.post("/v1/keys", json={"project": "flooding"}).json()["key"])


async def first_word(session: aiohttp.ClientSession, url: str, key: str) -> tuple[int, float]:
    """Read a stream to its end; return the status and the seconds to its first word."""
    body = {"model": "paced", "messages": [{"role": "user", "content": "go"}], "max_tokens": TOKENS, "stream": True}
    began, first = time.monotonic(), 0.0
    headers = {"Authorization": f"Bearer {key}"}
    async with session.post(f"{url}/v1/chat/completions", json=body, headers=headers) as response:
        async for line in response.content:
            if not first and line.startswith(b"data: {") and json.loads(line[6:])["choices"][0]["delta"].get("content"):
                first = time.monotonic() - began
        return response.status, first


async def waits(url: str, key: str, flooding_key: str) -> tuple[list[float], Counter[int]]:
    """Return what requests wait beside a flood, one after the other, and how those of the flood ended until then."""
    unbounded = aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(connector=unbounded, timeout=aiohttp.ClientTimeout(total=None)) as session:
        await first_word(session, url, key)  # the engine starts
        flood = [asyncio.create_task(first_word(session, url, flooding_key)) for _ in range(FLOOD)]
        async with asyncio.timeout(120):
            for ended in itertools.islice(asyncio.as_completed(flood), FLOOD - AT_ONCE):
                await ended
        beside = [(await first_word(session, url, key))[1] for _ in range(OWN)]
        ends = Counter(task.result()[0] for task in flood if task.done())
        assert sum(ends.values()) < FLOOD, "the flood has ended before"
        for task in flood:
            task.cancel()
        await asyncio.gather(*flood, return_exceptions=True)
        return beside, ends


def test_beside_the_flood_of_one_tenant_anothers_request_waits_for_the_next_place(live: RunningStack) -> None:
    beside, ends = asyncio.run(waits(live.url, live.key, key_of_another_project(live)))
    assert set(ends) == {200, 429}, ends
    assert all(beside)
    behind_the_flood = AT_ONCE / SLOTS * ANSWER_SECONDS
    assert max(beside) < 4 * ANSWER_SECONDS < behind_the_flood / 10
