"""The slots of a simulated engine."""

from __future__ import annotations

import asyncio

import pytest

from inference.engines.echo import DecodeSlots
from tests.support import simulated_time


async def held(slots: DecodeSlots, seconds: float, deadline: float = 1e9) -> tuple[float, float]:
    """Hold a slot, and return when it was free and when it was left."""
    async with slots.hold(seconds, deadline) as start:
        pass
    return start, asyncio.get_running_loop().time()


def test_slots_are_given_first_come_first_served() -> None:
    async def scene() -> list[tuple[float, float]]:
        slots = DecodeSlots(2)
        return await asyncio.gather(*(held(slots, seconds) for seconds in (2, 5, 1, 1)))

    assert simulated_time.run(scene()) == [(0, 2), (0, 5), (2, 3), (3, 4)]


def test_who_leaves_early_frees_the_slot_then() -> None:
    async def scene() -> tuple[float, float]:
        slots = DecodeSlots(1)
        first = asyncio.create_task(held(slots, 100))
        await asyncio.sleep(1)
        second = asyncio.create_task(held(slots, 2))
        await asyncio.sleep(1)
        first.cancel()
        return await second

    assert simulated_time.run(scene()) == (2, 4)


def test_who_gives_up_waiting_gets_no_slot() -> None:
    async def scene() -> tuple[float, float]:
        slots = DecodeSlots(1)
        first = asyncio.create_task(held(slots, 4))
        await asyncio.sleep(1)
        with pytest.raises(TimeoutError):
            await held(slots, 1, deadline=3)
        await first
        return await held(slots, 1)

    assert simulated_time.run(scene()) == (4, 5)
