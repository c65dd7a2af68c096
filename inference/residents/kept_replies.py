"""Kept replies: an engine's replies to a caller that was killed meanwhile.

The engine runs a killed caller's requests to their end. The next session with the same idempotency key gets these
replies, so no request runs twice because its caller died.
"""

import asyncio
import contextlib
import time
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from typing import Any

from inference.residents.replies import CLOSED, EngineReply, LineReply
from inference.residents.session import EngineSession

KEPT_SECONDS = 600.0
"""Replies of a key that no session used for this long are dropped."""
KEPT_LOADS = 4
"""Replies kept per key, in multiples of the engine's limit in flight: more than a caller has on its way."""

Call = asyncio.Task[EngineReply | None]
"""A request on its way through the engine. None: the engine is over, and the request never entered it."""


@dataclass
class _KeptWork:
    """The calls of one key by line, in the order in which they began."""

    session: str
    used_at: float
    calls: dict[int, Call] = field(default_factory=dict)


class KeptReplies:
    """By idempotency key and line, the requests in the engine and the last replies."""

    def __init__(self) -> None:
        self._works: dict[str, _KeptWork] = {}

    def call(
        self, session: EngineSession, line: int, run: Callable[[], Coroutine[Any, Any, EngineReply | None]]
    ) -> Call:
        """Return the call that answers the line: an earlier session's, else a new one of `run`."""
        work = self._work(session)
        call = work.calls.get(line)
        if call is None or _is_void(call):
            work.calls.pop(line, None)  # to the end of the order
            call = work.calls[line] = asyncio.create_task(run())
            limit = KEPT_LOADS * session.in_flight
            if len(work.calls) > 2 * limit:
                ended = [line for line, call in work.calls.items() if call.done()]
                for line in ended[: max(0, len(ended) - limit)]:
                    del work.calls[line]
        return call

    def session(self, idempotency_key: str) -> str | None:
        """Return the name of the last session of a key; None without one."""
        work = self._works.get(idempotency_key)
        return None if work is None else work.session

    def drop(self, session: str) -> None:
        """Cancel a session's calls and drop its replies, unless a later session of its key has them."""
        for key, work in list(self._works.items()):
            if work.session == session:
                del self._works[key]
                for call in work.calls.values():
                    call.cancel()

    def _work(self, session: EngineSession) -> _KeptWork:
        now = time.monotonic()
        work = self._works.get(session.idempotency_key)
        if work is None:
            self._works = {key: one for key, one in self._works.items() if now - one.used_at < KEPT_SECONDS}
            work = self._works[session.idempotency_key] = _KeptWork(session.name, now)
        work.session, work.used_at = session.name, now
        return work


def _is_void(call: Call) -> bool:
    """True if the call ended without a reply."""
    return call.done() and (call.cancelled() or call.exception() is not None or call.result() in (None, CLOSED))


class Mailbox:
    """The replies that are ready for one caller. It collects them as often as it likes."""

    def __init__(self) -> None:
        self._expected = 0
        self._ready: list[LineReply] = []
        self._failure: BaseException | None = None
        self._changed = asyncio.Event()

    def expect(self, line: int, call: Call) -> None:
        """Deliver the call's reply here when it is ready; None if the engine is over."""
        self._expected += 1
        call.add_done_callback(lambda call: self._deliver(line, call))

    def _deliver(self, line: int, call: Call) -> None:
        self._expected -= 1
        if not call.cancelled() and call.exception() is not None:
            self._failure = call.exception()
        self._ready.append((line, None if call.cancelled() or self._failure is not None else call.result()))
        self._changed.set()

    async def _change(self) -> None:
        self._changed.clear()
        await self._changed.wait()

    async def collect(self, seconds: float, enough: int) -> list[LineReply]:
        """Return what is ready in `seconds` after the first reply, up to `enough`. Raises what a call raised."""
        while not self._ready and self._expected:
            await self._change()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                while self._expected and len(self._ready) < enough:
                    await self._change()
        if self._failure is not None:
            raise self._failure
        ready, self._ready = self._ready, []
        return ready
