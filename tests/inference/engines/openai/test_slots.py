"""Slots: who gets a free one, and what becomes of one that nobody wants."""

from __future__ import annotations

import asyncio
import math
import time

from inference.engines.openai.endpoints import RemoteEndpoint, SlotQueue


def test_who_comes_again_goes_first_and_who_goes_away_leaves_the_place_to_the_next() -> None:
    async def scene() -> None:
        endpoint = RemoteEndpoint("http://a/v1", 1, 0.0)
        endpoint.probed(0.0)
        turns, order = SlotQueue({0: endpoint}), []

        async def come(name: str, last: RemoteEndpoint | None) -> None:
            assert await turns.acquire(lambda: math.inf, last) is endpoint
            order.append(name)
            turns.release(endpoint)

        assert await turns.acquire(lambda: math.inf) is endpoint
        tasks = [asyncio.create_task(come(*each)) for each in (("first", None), ("second", None), ("again", endpoint))]
        await asyncio.sleep(0)
        gone = asyncio.create_task(turns.acquire(lambda: math.inf, endpoint))
        await asyncio.sleep(0)
        turns.release(endpoint)
        gone.cancel()  # it owns the slot, and has not resumed yet
        await asyncio.wait([gone, *tasks], timeout=60)
        assert gone.cancelled() and order == ["again", "first", "second"] and endpoint.in_flight == 0

    asyncio.run(scene())


def test_who_waits_in_vain_gets_nothing_and_takes_no_slot_later() -> None:
    async def scene() -> None:
        endpoint = RemoteEndpoint("http://a/v1", 1, 0.0)
        endpoint.probed(0.0)
        slots = SlotQueue({0: endpoint})
        assert await slots.acquire(lambda: math.inf) is endpoint
        end = time.monotonic() + 0.01
        assert await slots.acquire(lambda: end) is None
        slots.release(endpoint)
        assert endpoint.in_flight == 0

    asyncio.run(scene())


def test_capacity_that_is_added_is_handed_out_to_who_waits() -> None:
    async def scene() -> None:
        endpoints: dict[int, RemoteEndpoint] = {}
        slots = SlotQueue(endpoints)
        waiting = asyncio.create_task(slots.acquire(lambda: math.inf))
        await asyncio.sleep(0)
        endpoints[0] = RemoteEndpoint("http://a/v1", 1, 0.0)
        endpoints[0].probed(0.0)
        slots.hand_out()
        assert await asyncio.wait_for(waiting, 60) is endpoints[0]
        assert endpoints[0].in_flight == 1

    asyncio.run(scene())
