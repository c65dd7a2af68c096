"""The admission queue in front of an engine."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

from inference.residents.admission import AdmissionQueue, Rank


def soon(coroutine: Coroutine[Any, Any, Any]) -> Any:
    return asyncio.run(asyncio.wait_for(coroutine, 60))


def test_requests_are_admitted_one_by_one_first_come_first_served() -> None:
    async def scene() -> list[str]:
        queue, log = AdmissionQueue(2), []
        doors = {name: asyncio.Event() for name in "abcd"}

        async def enter(name: str) -> None:
            async with queue.admit((0.0, 0)):
                log.append(name)
                await doors[name].wait()

        tasks = [asyncio.create_task(enter(name)) for name in "abcd"]
        await asyncio.sleep(0)
        assert log == ["a", "b"]
        doors["b"].set()
        await tasks[1]
        await asyncio.sleep(0)
        assert log == ["a", "b", "c"], "one that is done makes room, whatever the others do"
        for door in doors.values():
            door.set()
        await asyncio.gather(*tasks)
        assert queue.inside == 0
        return log

    assert soon(scene()) == ["a", "b", "c", "d"]


def test_no_more_is_admitted_than_the_cache_holds_but_one_request_always_is() -> None:
    async def scene() -> list[int]:
        queue, log = AdmissionQueue(100, tokens=1000), []
        doors = {tokens: asyncio.Event() for tokens in (400, 500, 300, 5000)}

        async def enter(tokens: int) -> None:
            async with queue.admit((0.0, 0), lambda: tokens):
                log.append(tokens)
                await doors[tokens].wait()

        tasks = {tokens: asyncio.create_task(enter(tokens)) for tokens in doors}
        await asyncio.sleep(0)
        assert log == [400, 500], "300 more do not fit"
        for tokens in (500, 400, 300):
            doors[tokens].set()
            await tasks[tokens]
        await asyncio.sleep(0)
        doors[5000].set()
        await tasks[5000]
        assert queue.inside == queue._tokens_inside == 0
        return log

    assert soon(scene()) == [400, 500, 300, 5000]


def test_a_request_that_waits_is_admitted_with_the_need_that_is_known_by_then() -> None:
    async def scene() -> None:
        queue, need = AdmissionQueue(100, tokens=1000), 600
        first_ends = asyncio.Event()

        async def enter(ends: asyncio.Event) -> None:
            async with queue.admit((0.0, 0), lambda: need):
                await ends.wait()

        first = asyncio.create_task(enter(first_ends))
        others = [asyncio.create_task(enter(asyncio.Event())) for _ in range(20)]
        await asyncio.sleep(0)
        assert queue.inside == 1
        need = 100
        first_ends.set()
        await first
        assert queue.inside == 10, "ten of 100 tokens fit, where one of 600 did"
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)
        assert queue.inside == queue._tokens_inside == 0

    soon(scene())


def test_the_lowest_rank_is_admitted_first() -> None:
    async def scene() -> list[Rank]:
        queue, log = AdmissionQueue(2), []

        async def enter(rank: Rank) -> None:
            async with queue.admit(rank):
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
        after = asyncio.create_task(enter(queue))
        await asyncio.sleep(0)
        assert not waiting.done() and not after.done()
        waiting.cancel()
        queue.reopen()
        await after

    async def enter(queue: AdmissionQueue) -> None:
        async with queue.admit((0.0, 0)):
            assert queue.inside == 1

    soon(scene())
