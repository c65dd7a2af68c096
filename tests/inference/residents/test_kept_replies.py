"""Kept replies: a request runs once for all sessions of the same work."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from inference.residents.kept_replies import KEPT_LOADS, KeptReplies, Mailbox
from inference.residents.replies import EngineReply
from inference.residents.session import EngineSession


def soon(coroutine: Coroutine[Any, Any, Any]) -> Any:
    return asyncio.run(asyncio.wait_for(coroutine, 60))


def named(line: int) -> EngineReply:
    return EngineReply(200, str(line).encode(), None, seconds=0.5)


def test_a_line_runs_once_for_all_sessions_of_the_same_work_until_they_are_over() -> None:
    async def scene() -> None:
        replies, runs = KeptReplies(), Counter[int]()
        first, second = EngineSession("first", "work", 4, 4), EngineSession("second", "work", 4, 4)

        def run(line: int) -> Callable[[], Coroutine[Any, Any, EngineReply]]:
            async def answer() -> EngineReply:
                runs[line] += 1
                await asyncio.sleep(0)
                return named(line)

            return answer

        async def collect(session: EngineSession, lines: list[int]) -> list[EngineReply | None]:
            return list(await asyncio.gather(*(replies.call(session, line, run(line)) for line in lines)))

        results = await asyncio.gather(collect(first, [1, 2]), collect(second, [3, 2, 1]), collect(second, [4]))
        assert results == [[named(1), named(2)], [named(3), named(2), named(1)], [named(4)]]
        assert runs == {1: 1, 2: 1, 3: 1, 4: 1}
        await collect(EngineSession("other", "other work", 4, 4), [1])
        assert runs[1] == 2, "another work's line is another request"
        replies.drop("first")
        await collect(second, [1])
        assert runs[1] == 2, "the second run goes on"
        replies.drop("second")
        await collect(second, [1])
        assert runs[1] == 3

    soon(scene())


def test_what_failed_or_was_dropped_runs_again() -> None:
    async def scene() -> None:
        replies, session = KeptReplies(), EngineSession("first", "work", 4, 4)

        async def never() -> EngineReply:
            await asyncio.Event().wait()
            raise AssertionError

        async def over() -> EngineReply | None:
            return None

        async def broken() -> EngineReply:
            raise OSError("broken")

        async def works() -> EngineReply:
            return named(0)

        dropped = replies.call(session, 0, never)
        replies.drop("first")
        with pytest.raises(asyncio.CancelledError):
            await dropped
        with pytest.raises(OSError, match="broken"):
            await replies.call(session, 1, broken)
        assert await replies.call(session, 2, over) is None
        for line in range(3):
            assert await replies.call(session, line, works) == named(0)

    soon(scene())


def test_no_more_replies_of_one_work_are_kept_than_may_be_on_their_way_and_none_that_is_missing_is_forgotten() -> None:
    async def scene() -> None:
        replies, session, runs = KeptReplies(), EngineSession("run", "work", 1000, 2), Counter[int]()
        door = asyncio.Event()

        def run(line: int) -> Callable[[], Coroutine[Any, Any, EngineReply]]:
            async def answer() -> EngineReply:
                runs[line] += 1
                if line == 0:
                    await door.wait()
                return named(line)

            return answer

        straggler = replies.call(session, 0, run(0))
        for line in range(1, 100):
            await replies.call(session, line, run(line))
        assert replies.call(session, 0, run(0)) is straggler
        await replies.call(session, 99, run(99))
        await replies.call(session, 1, run(1))
        assert (runs[99], runs[1]) == (1, 2)
        assert len(replies._works["work"].calls) <= 2 * KEPT_LOADS * 2 + 1
        door.set()
        assert await straggler == named(0)

    soon(scene())


def test_a_mailbox_gives_what_is_ready_and_does_not_wait_for_the_slowest() -> None:
    async def scene() -> None:
        mailbox, doors = Mailbox(), [asyncio.Event() for _ in range(3)]

        async def answer(line: int) -> EngineReply:
            await doors[line].wait()
            return named(line)

        for line in range(3):
            mailbox.expect(line, asyncio.create_task(answer(line)))
        collecting = asyncio.create_task(mailbox.collect(0.05, 3))
        doors[1].set()
        assert await collecting == [(1, named(1))]
        doors[0].set()
        doors[2].set()
        assert sorted(await mailbox.collect(5, 3)) == [(0, named(0)), (2, named(2))], (
            "none is missing: nothing to wait for"
        )
        assert await mailbox.collect(5, 3) == []
        for line in range(3):
            doors[line].clear()
            mailbox.expect(line, asyncio.create_task(answer(line)))
        doors[2].set()
        assert await mailbox.collect(60, 1) == [(2, named(2))], "one is enough"

    soon(scene())


def test_a_mailbox_says_what_never_entered_the_engine_and_raises_what_failed() -> None:
    async def scene() -> None:
        mailbox = Mailbox()

        async def over() -> None:
            return None

        async def broken() -> EngineReply:
            raise OSError("broken")

        mailbox.expect(7, asyncio.create_task(over()))
        assert await mailbox.collect(5, 3) == [(7, None)]
        mailbox.expect(8, asyncio.create_task(broken()))
        with pytest.raises(OSError, match="broken"):
            await mailbox.collect(5, 3)

    soon(scene())
