"""Kept replies: an engine's replies to a caller that was killed meanwhile.

The engine runs a killed caller's requests to their end. The next session with the same idempotency key gets these
replies, so no request runs twice because its caller died.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from typing import Any

import orjson

from inference.engine import Answer
from inference.residents.session import EngineSession

Reply = tuple[int | None, bytes | None, dict[str, str] | None, int, int, int, float]
"""status_code, response body as JSON, error, input tokens, cached tokens, output tokens, seconds in the engine."""

KEPT_SECONDS = 600.0
"""Replies of a key that no session used for this long are dropped."""
KEPT_LOADS = 4
"""Replies kept per key, in multiples of the engine's limit in flight: more than a caller has on its way."""


Call = asyncio.Task[list[Reply] | None]


@dataclass
class _KeptWork:
    session: str
    used_at: float
    calls: dict[int, tuple[Call, int]] = field(default_factory=dict)
    """By line: the call that runs it, and its index in the call's list."""


class KeptReplies:
    """By idempotency key and line, the requests in the engine and the last replies."""

    def __init__(self) -> None:
        self._works: dict[str, _KeptWork] = {}

    async def collect(
        self,
        session: EngineSession,
        lines: list[int],
        call: Callable[[list[int]], Coroutine[Any, Any, list[Reply] | None]],
    ) -> list[Reply] | None:
        """Return a reply for each line; None if `call` returned None.

        Args:
            call: sends the lines with these indices in `lines`, which no session of this key has sent, to the engine.
                Its exceptions are raised here.
        """
        work = self._work(session)
        replies_by_index: dict[int, Reply] = {}
        while missing := [index for index in range(len(lines)) if index not in replies_by_index]:
            own_call: Call | None = None
            if new := [index for index in missing if lines[index] not in work.calls]:
                own_call = asyncio.create_task(call(new))
                work.calls.update({lines[index]: (own_call, at) for at, index in enumerate(new)})
            calls = {index: work.calls[lines[index]] for index in missing}
            try:
                await asyncio.wait({task for task, _ in calls.values()})
            finally:
                if own_call is not None:
                    own_call.cancel()  # no effect on a finished call
            for index, (task, _) in calls.items():
                if task.cancelled() or task.exception() or task.result() is None:
                    work.calls.pop(lines[index], None)
            for index, (task, at) in calls.items():
                if task.cancelled():
                    continue  # with the session that sent it, which is another one
                replies = task.result()
                if replies is None:
                    return None
                replies_by_index[index] = replies[at]
        while len(work.calls) > KEPT_LOADS * session.in_flight:
            del work.calls[next(iter(work.calls))]
        return [replies_by_index[index] for index in range(len(lines))]

    def forget(self, session: str) -> None:
        """Drop the replies of a session that is over and has received them."""
        self._works = {key: work for key, work in self._works.items() if work.session != session}

    def _work(self, session: EngineSession) -> _KeptWork:
        now = time.monotonic()
        work = self._works.get(session.idempotency_key)
        if work is None:
            self._works = {key: one for key, one in self._works.items() if now - one.used_at < KEPT_SECONDS}
            work = self._works[session.idempotency_key] = _KeptWork(session.name, now)
        work.session, work.used_at = session.name, now
        return work


def reply(answer: Answer, seconds: float) -> Reply:
    """Return an engine's answer as its caller gets it. Only status 200 counts tokens."""
    if answer.body is None:
        return answer.status_code, None, answer.error, 0, 0, 0, seconds
    usage = (answer.body.get("usage") if answer.status_code == 200 else None) or {}
    details = usage.get("prompt_tokens_details") or {}
    return (
        answer.status_code,
        orjson.dumps(answer.body, option=orjson.OPT_SERIALIZE_NUMPY),
        answer.error,
        usage.get("prompt_tokens") or 0,
        details.get("cached_tokens") or 0,
        usage.get("completion_tokens") or 0,
        seconds,
    )
