"""The admission queue in front of an engine."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

from inference.residents.admission import AdmissionQueue, Rank


def soon(coroutine: Coroutine[Any, Any, Any]) -> Any:
    return asyncio.run(asyncio.wait_for(coroutine, 5))


def test_what_fits_is_admitted_first_come_first_served() -> None:
    async def scene() -> list[str]:
        queue, log = AdmissionQueue(4), []
        doors = {name: asyncio.Event() for name in "abc"}

        async def enter(name: str, requests: int) -> None:
            async with queue.admit(requests, (0.0, 0)):
                log.append(name)
                await doors[name].wait()

        tasks = [asyncio.create_task(enter("a", 3)), asyncio.create_task(enter("b", 9))]
        tasks.append(asyncio.create_task(enter("c", 1)))
        await asyncio.sleep(0)
        assert log == ["a"], "b is bigger than the engine and waits for all of it; c does not overtake"
        doors["a"].set()
        doors["b"].set()
        doors["c"].set()
        await asyncio.gather(*tasks)
        assert queue.inside == 0
        return log

    assert soon(scene()) == ["a", "b", "c"]


def test_the_lowest_rank_is_admitted_first() -> None:
    async def scene() -> list[Rank]:
        queue, log = AdmissionQueue(2), []

        async def enter(rank: Rank) -> None:
            async with queue.admit(1, rank):
                log.append(rank)

        await queue.drain()
        ranks: list[Rank] = [(2.0, 0), (1.0, 32), (1.0, 0), (3.0, 0)]
        tasks = [asyncio.create_task(enter(rank)) for rank in ranks]
        await asyncio.sleep(0)
        queue.reopen()
        await asyncio.gather(*tasks)
        return log

    assert soon(scene()) == [(1.0, 0), (1.0, 32), (2.0, 0), (3.0, 0)]


def test_a_reserved_engine_admits_nothing_else_and_a_cancelled_wait_blocks_nobody() -> None:
    async def scene() -> None:
        queue = AdmissionQueue(4)
        await queue.drain()
        waiting = asyncio.create_task(queue.drain())
        after = asyncio.create_task(queue._enter(1, (0.0, 0)))
        await asyncio.sleep(0)
        assert not waiting.done() and not after.done()
        waiting.cancel()
        queue.reopen()
        await after
        assert queue.inside == 1

    soon(scene())
