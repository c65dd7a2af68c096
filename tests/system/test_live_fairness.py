"""One tenant floods a model with live requests: another's wait for the next place, and not for the flood."""

from __future__ import annotations

import asyncio
import itertools
import json
import time
from collections import Counter

import aiohttp

from tests.support.stacks import RunningStack

SLOTS, MS_PER_TOKEN, TOKENS = 16, 20, 50
"""Of model `paced` of stack `faulty`, and of each answer."""
ANSWER_SECONDS = TOKENS * MS_PER_TOKEN / 1000
FLOOD = 1500
AT_ONCE = 1000
"""So many of the flood are taken, the most by default, and wait for each other; the rest is refused."""
OWN = 6


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
        while (await first_word(session, url, key))[0] != 200:
            pass  # the engine starts
        flood = [asyncio.create_task(first_word(session, url, flooding_key)) for _ in range(FLOOD)]
        async with asyncio.timeout(360):
            for ended in itertools.islice(asyncio.as_completed(flood), FLOOD - AT_ONCE):
                await ended
        beside = [(await first_word(session, url, key))[1] for _ in range(OWN)]
        ends = Counter(task.result()[0] for task in flood if task.done())
        assert sum(ends.values()) < FLOOD, "the flood has ended before"
        for task in flood:
            task.cancel()
        await asyncio.gather(*flood, return_exceptions=True)
        async with asyncio.timeout(360):
            assert (await first_word(session, url, key))[0] == 200, "a flood that gives up holds no place"
        return beside, ends


def test_beside_the_flood_of_one_tenant_anothers_request_waits_for_the_next_place(faulty: RunningStack) -> None:
    beside, ends = asyncio.run(waits(faulty.url, faulty.key, faulty.in_project("flooding").key))
    assert set(ends) == {200, 429}, ends
    assert all(beside)
    behind_the_flood = AT_ONCE / SLOTS * ANSWER_SECONDS
    assert max(beside) < 10 * ANSWER_SECONDS < behind_the_flood / 5
