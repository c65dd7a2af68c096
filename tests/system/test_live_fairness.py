"""One tenant floods a model with live requests: another's wait for the next place, and not for the flood."""

from __future__ import annotations

import asyncio
import functools
import itertools
import json
from collections import Counter
from collections.abc import Callable

import aiohttp

from tests.support.stacks import RunningStack

SLOTS, TOKENS = 16, 50
"""Of model `paced` of stack `faulty`, and of each answer."""
FLOOD = 1500
AT_ONCE = 1000
"""So many of the flood are taken, the most by default, and wait for each other; the rest is refused."""
OWN = 6


async def answered(
    session: aiohttp.ClientSession, url: str, key: str, begins: Callable[[], None] = lambda: None
) -> int:
    """Read a stream to its end, and call `begins` with its first word; return the status."""
    body = {"model": "paced", "messages": [{"role": "user", "content": "go"}], "max_tokens": TOKENS, "stream": True}
    headers, has_begun = {"Authorization": f"Bearer {key}"}, False
    async with session.post(f"{url}/v1/chat/completions", json=body, headers=headers) as response:
        async for line in response.content:
            if not has_begun and line.startswith(b"data: {"):
                has_begun = bool(json.loads(line[6:])["choices"][0]["delta"].get("content"))
                if has_begun:
                    begins()
        return response.status


async def waits(url: str, key: str, flooding_key: str) -> tuple[list[int], Counter[int]]:
    """Send requests beside a flood, one after the other. Return how many of the flood were answered while each waited.

    And how those of the flood had ended by then. A clock would say how busy the machine is.
    """
    unbounded = aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(connector=unbounded, timeout=aiohttp.ClientTimeout(total=None)) as session:
        while await answered(session, url, key) != 200:
            pass  # the engine starts
        words, beside = itertools.count(), list[int]()
        flood = [asyncio.create_task(answered(session, url, flooding_key, lambda: next(words))) for _ in range(FLOOD)]
        async with asyncio.timeout(360):
            for ended in itertools.islice(asyncio.as_completed(flood), FLOOD - AT_ONCE):
                await ended
        for _ in range(OWN):
            begins = functools.partial(lambda before: beside.append(next(words) - before - 1), next(words))
            assert await answered(session, url, key, begins) == 200
        ends = Counter(task.result() for task in flood if task.done())
        assert sum(ends.values()) < FLOOD, "the flood has ended before"
        for task in flood:
            task.cancel()
        await asyncio.gather(*flood, return_exceptions=True)
        async with asyncio.timeout(360):
            assert await answered(session, url, key) == 200, "a flood that gives up holds no place"
        return beside, ends


def test_beside_the_flood_of_one_tenant_anothers_request_waits_for_the_next_place(faulty: RunningStack) -> None:
    beside, ends = asyncio.run(waits(faulty.url, faulty.key, faulty.in_project("flooding").key))
    assert set(ends) == {200, 429}, ends
    assert len(beside) == OWN
    assert max(beside) < 10 * SLOTS < AT_ONCE / 5
