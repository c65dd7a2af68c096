"""Kept replies: a request runs once for all sessions of the same work."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Coroutine
from typing import Any

import pytest

from inference.residents.kept_replies import KeptReplies, Reply
from inference.residents.session import EngineSession


def soon(coroutine: Coroutine[Any, Any, Any]) -> Any:
    return asyncio.run(asyncio.wait_for(coroutine, 5))


async def echo(places: list[int]) -> list[Reply]:
    return [(200, str(place).encode(), None, 0, 0, 0) for place in places]


def test_a_line_runs_once_for_all_sessions_of_the_same_work_until_they_are_over() -> None:
    async def scene() -> None:
        replies, calls = KeptReplies(), Counter[int]()
        first, second = EngineSession("first", "work", 4, 4), EngineSession("second", "work", 4, 4)

        async def collect(session: EngineSession, lines: list[int]) -> list[Reply] | None:
            async def ask(places: list[int]) -> list[Reply]:
                calls.update(lines[place] for place in places)
                await asyncio.sleep(0)
                return await echo([lines[place] for place in places])

            return await replies.collect(session, lines, ask)

        results = await asyncio.gather(collect(first, [1, 2]), collect(second, [3, 2, 1]), collect(second, [4]))
        assert results == [await echo([1, 2]), await echo([3, 2, 1]), await echo([4])]
        assert calls == {1: 1, 2: 1, 3: 1, 4: 1}
        await collect(EngineSession("other", "other work", 4, 4), [1])
        assert calls[1] == 2, "another work's line is another request"
        replies.forget("first")
        await collect(second, [1])
        assert calls[1] == 2, "the second run goes on"
        replies.forget("second")
        await collect(second, [1])
        assert calls[1] == 3

    soon(scene())


def test_what_a_session_takes_along_when_it_is_cancelled_or_fails_runs_again() -> None:
    async def scene() -> None:
        replies, first, second = (
            KeptReplies(),
            EngineSession("first", "work", 4, 4),
            EngineSession("second", "work", 4, 4),
        )
        called = asyncio.Event()

        async def never(_: list[int]) -> list[Reply]:
            called.set()
            await asyncio.Event().wait()
            return []

        async def broken(_: list[int]) -> list[Reply]:
            raise OSError("broken")

        cancelled = asyncio.create_task(replies.collect(first, [0, 1], never))
        failing = asyncio.create_task(replies.collect(first, [2, 3], broken))
        waiting = asyncio.create_task(replies.collect(second, [0, 1], echo))
        await called.wait()
        assert not waiting.done()
        cancelled.cancel()
        assert await waiting == await echo([0, 1])
        with pytest.raises(OSError, match="broken"):
            await failing
        assert await replies.collect(second, [2, 3], echo) == await echo([0, 1])

    soon(scene())


def test_no_more_replies_of_one_work_are_kept_than_may_be_on_their_way() -> None:
    async def scene() -> None:
        replies, session, calls = KeptReplies(), EngineSession("run", "work", 100, 2), 0

        async def ask(places: list[int]) -> list[Reply]:
            nonlocal calls
            calls += 1
            return await echo(places)

        for line in range(20):
            await replies.collect(session, [line], ask)
        await replies.collect(session, [19], ask)
        assert calls == 20
        await replies.collect(session, [0], ask)
        assert calls == 21

    soon(scene())
