"""Live requests at the admission queue: before those of batches, in their places if need be, in turn by project."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable, Coroutine
from types import SimpleNamespace
from typing import Any

import pytest

from inference.residents import admission
from inference.residents.admission import BEGIN_SECONDS, WHOLE, AdmissionQueue, Preempted
from inference.residents.batch_share import BatchShare
from tests.support import simulated_time


def now() -> float:
    return 1000 + asyncio.get_running_loop().time()  # a machine's clock is never at 0


@pytest.fixture(autouse=True)
def _simulated_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(admission, "time", SimpleNamespace(monotonic=now))


def soon(scene: Callable[[], Coroutine[Any, Any, Any]]) -> Any:
    return simulated_time.run(asyncio.wait_for(scene(), 5))


class Door:
    """Requests that stay inside until they are let go, and what became of each."""

    def __init__(self, queue: AdmissionQueue) -> None:
        self.queue = queue
        self.log: list[str] = []
        self.begun: set[str] = set()
        self._ends: dict[str, asyncio.Event] = {}
        self._tasks: dict[str, asyncio.Task[None]] = {}

    async def batch(self, *names: str, preemptible: bool = True, tokens: int = 0) -> None:
        for number, name in enumerate(names):
            begun = functools.partial(self.begun.__contains__, name)
            admitted = self.queue.admit((0.0, number), lambda: tokens, preemptible=preemptible, has_begun=begun)
            await self._begin(name, admitted)

    async def live(self, *names: str, tokens: int = 0) -> None:
        """Begin live requests; the project is what stands before the number."""
        for name in names:
            await self._begin(name, self.queue.admit_live(name[0], tokens))

    async def _begin(self, name: str, admitted: Any) -> None:
        self._ends[name] = asyncio.Event()
        self._tasks[name] = asyncio.create_task(self._stay(name, admitted))
        await asyncio.sleep(0.001)

    async def _stay(self, name: str, admitted: Any) -> None:
        try:
            async with admitted:
                self.log.append(f"+{name}")
                await self._ends[name].wait()
        except Preempted:
            self.log.append(f"!{name}")

    async def end(self, *names: str) -> None:
        for name in names:
            self._ends[name].set()
            await asyncio.wait([self._tasks[name]])
        await asyncio.sleep(0.001)

    async def cancel(self, *names: str) -> None:
        """Cancel requests at the same time."""
        for name in names:
            self._tasks[name].cancel()
        await asyncio.wait([self._tasks[name] for name in names])


def test_a_live_request_enters_at_once_in_the_place_of_the_youngest_of_a_batch() -> None:
    async def scene() -> None:
        door = Door(AdmissionQueue(6, places=3))
        await door.batch("one", "two", "three")
        await door.live("a1")
        assert door.log[:3] == ["+one", "+two", "+three"] and set(door.log[3:]) == {"!three", "+a1"}
        assert (door.queue.preemptions, door.queue.live_inside, door.queue.inside) == (1, 1, 3)

    soon(scene)


def test_it_takes_as_many_places_as_stand_before_it() -> None:
    async def scene() -> None:
        door = Door(AdmissionQueue(6, places=3))
        await door.batch("one", "two", "three", "four", "five")  # two of them wait in the engine itself
        await door.live("a1")
        assert {entry for entry in door.log if entry[0] == "!"} == {"!five", "!four", "!three"}

    soon(scene)


def test_a_free_place_costs_no_batch_its_own() -> None:
    async def scene() -> None:
        door = Door(AdmissionQueue(3, places=3))
        await door.batch("one")
        await door.live("a1", "a2")
        assert door.log == ["+one", "+a1", "+a2"]

    soon(scene)


def test_the_engines_cache_is_made_free_as_well() -> None:
    async def scene() -> None:
        door = Door(AdmissionQueue(10, tokens=100, places=10))
        await door.batch("one", "two", tokens=50)
        await door.live("a1", tokens=40)
        assert set(door.log[2:]) == {"!two", "+a1"}
        await door.end("one", "a1")
        assert door.queue.inside == door.queue._tokens_inside == 0

    soon(scene)


def test_one_that_must_stay_keeps_its_place_and_the_live_request_waits() -> None:
    async def scene() -> None:
        door = Door(AdmissionQueue(1, places=1))
        await door.batch("flex", preemptible=False)
        await door.live("a1")
        assert door.log == ["+flex"] and door.queue.live_waiting == 1
        await door.end("flex")
        assert door.log == ["+flex", "+a1"]

    soon(scene)


def test_no_batch_enters_before_a_waiting_live_request() -> None:
    async def scene() -> None:
        door = Door(AdmissionQueue(1, places=1))
        await door.live("a1", "a2")
        await door.batch("one")
        await door.end("a1", "a2")
        assert door.log == ["+a1", "+a2", "+one"]

    soon(scene)


def test_projects_take_turns_however_many_requests_one_of_them_sends() -> None:
    async def scene() -> None:
        door = Door(AdmissionQueue(2, places=2))
        await door.live("a1", "a2", "a3", "a4", "a5", "b1", "b2")
        await door.end("a1")
        assert door.log[-1] == "+b1", "b has none inside, a has one"
        await door.end("a2")
        assert door.log[-1] == "+a3", "b has one inside, a none"
        await door.end("b1")
        assert door.log[-1] == "+b2"

    soon(scene)


def test_who_gives_up_waiting_blocks_nobody() -> None:
    async def scene() -> None:
        door = Door(AdmissionQueue(1, places=1))
        await door.live("a1", "a2", "b1")
        await door.cancel("a2")
        await door.end("a1")
        assert door.log[-1] == "+b1" and door.queue.live_waiting == 0
        await door.cancel("b1")
        assert door.queue.inside == 0

    soon(scene)


def test_those_that_give_up_all_at_once_leave_every_place_free() -> None:
    async def scene() -> None:
        door = Door(AdmissionQueue(2, places=2))
        await door.live("a1", "a2", "a3", "a4")
        await door.cancel("a1", "a2", "a3", "a4")
        assert (door.queue.inside, door.queue.live_waiting) == (0, 0)
        await door.live("b1", "b2")
        assert door.log == ["+a1", "+a2", "+b1", "+b2"]
        await door.end("b1", "b2")

    soon(scene)


def test_a_request_that_is_cancelled_as_it_is_preempted_is_cancelled() -> None:
    async def scene() -> None:
        queue = AdmissionQueue(1, places=1)

        async def stay() -> None:
            async with queue.admit((0.0, 0), preemptible=True):
                await asyncio.Event().wait()

        task = asyncio.create_task(stay())
        await asyncio.sleep(0.001)
        live = asyncio.create_task(anext(_once(queue)))
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await live

    soon(scene)


async def _once(queue: AdmissionQueue) -> Any:
    async with queue.admit_live("a"):
        yield


def test_nothing_enters_a_reserved_engine_and_live_requests_are_first_after_it() -> None:
    async def scene() -> None:
        door = Door(AdmissionQueue(2, places=2))
        await door.queue.drain()
        await door.batch("one")
        await door.live("a1")
        assert door.log == []
        door.queue.reopen()
        await asyncio.sleep(0.001)
        assert door.log == ["+a1", "+one"]

    soon(scene)


def test_batches_leave_places_free_that_live_requests_have_needed() -> None:
    async def scene() -> None:
        door = Door(AdmissionQueue(8, places=4, share=BatchShare(4, 8, 1.0, 0.1)))
        await door.live("a1", "a2", "a3")
        await door.end("a1", "a2", "a3")
        await door.batch("one", "two", "three")
        assert door.log[-1] == "+one", "three of four places stay free for a while"

    soon(scene)


def test_while_live_tokens_are_late_the_next_of_a_batch_begins_when_the_last_has_a_token() -> None:
    async def scene() -> list[str]:
        share = BatchShare(places=8, most=16, first_seconds=1.0, gap_seconds=0.1)
        door = Door(AdmissionQueue(16, places=8, share=share))
        await door.live("a1")
        share.measured(now(), "first", 2.0, batch_inside=8, beginning=lambda: 1)
        await door.batch("b1", "b2", "b3")
        assert door.log == ["+a1", "+b1"]
        door.begun.add("b1")
        await asyncio.sleep(3 * BEGIN_SECONDS)
        assert door.log == ["+a1", "+b1", "+b2"]
        await door.end("b2")
        return door.log

    assert soon(scene) == ["+a1", "+b1", "+b2", "+b3"]


def test_the_engines_time_is_shared_among_those_inside() -> None:
    async def scene() -> None:
        door = Door(AdmissionQueue(4, places=4))
        await door.live("a1")
        before = door.queue.shared_seconds
        await asyncio.sleep(0.1)
        alone = door.queue.shared_seconds
        await door.live("a2", "a3", "a4")
        between = door.queue.shared_seconds
        await asyncio.sleep(0.1)
        shared = door.queue.shared_seconds - between
        assert alone - before == pytest.approx(0.1)
        assert shared == pytest.approx((alone - before) / 4)

    soon(scene)


def test_one_that_needs_the_whole_engine_is_alone_in_it_until_a_live_request_comes() -> None:
    async def scene() -> None:
        door = Door(AdmissionQueue(9, places=9))
        await door.batch("one")
        await door.batch("alone", tokens=WHOLE)
        await door.batch("two")
        assert door.log == ["+one"], "the engine runs dry for it"
        await door.end("one")
        assert door.log == ["+one", "+alone"]
        await door.live("a1")
        assert set(door.log[2:]) == {"!alone", "+a1", "+two"}
        await door.batch("next alone", tokens=WHOLE)
        await door.batch("three")
        assert door.log[5:] == ["+three"], "nobody waits for it as long as there are live requests"
        await door.end("a1")
        await door.batch("four")
        assert len(door.log) == 6
        await door.end("two", "three")
        assert door.log[6:] == ["+next alone"]
        await door.end("next alone")
        assert door.log[7:] == ["+four"]

    soon(scene)
