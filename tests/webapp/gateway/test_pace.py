"""How slow a client may be: it pauses for so long, and sends and reads so many bytes a second on the average."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from aiohttp.test_utils import make_mocked_request

from batchyard.errors import TooSlowError
from batchyard.settings import Settings
from tests.support import simulated_time
from webapp.gateway.pace import Pace

PAUSE, RATE = 4, 15_000
Pieces = list[tuple[float, int]]
"""Seconds that a client takes for each piece, and its bytes."""


async def after(seconds: float, data: Any) -> Any:
    await asyncio.sleep(seconds)
    return data


def received(pieces: Pieces) -> None:
    """Read what a client sends."""

    async def scene() -> None:
        pace = Pace(Settings(transfer_pause_seconds=PAUSE, transfer_bytes_per_second=RATE))
        for seconds, size in pieces:
            assert await pace.receive(after(seconds, bytes(size))) == bytes(size)

    simulated_time.run(scene())


def sent(pieces: Pieces) -> None:
    """Write what a client reads."""

    async def scene() -> None:
        pace = Pace(Settings(transfer_pause_seconds=PAUSE, transfer_bytes_per_second=RATE))
        request = make_mocked_request("GET", "/")
        for seconds, size in pieces:
            await pace.send(request, after(seconds, None), size)

    simulated_time.run(scene())


@pytest.mark.parametrize(
    "pieces",
    [[(0.5, 10_000)] * 100, [(PAUSE - 0.1, 60_000)] * 20, [(PAUSE - 0.1, 1)]],
    ids=["evenly", "with pauses", "once"],
)
def test_a_client_that_goes_on_slowly_but_fast_enough_is_waited_for(pieces: Pieces) -> None:
    received(pieces)
    sent(pieces)


@pytest.mark.parametrize(
    "pieces", [[(0.5, 1000)] * 100, [(PAUSE + 0.1, 0)], [(PAUSE - 0.1, 10_000)] * 2], ids=["evenly", "once", "twice"]
)
def test_a_client_that_is_too_slow_on_the_average_is_not_waited_for(pieces: Pieces) -> None:
    with pytest.raises(TooSlowError, match="came too slowly: a client may pause for 4 s, and has to send 15000 bytes"):
        received(pieces)
    with pytest.raises(ConnectionResetError, match="reads too slowly"):
        sent(pieces)
