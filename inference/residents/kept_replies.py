"""What an engine replies, and the replies that nobody was there to take.

A caller that is killed leaves its requests in the engine, which runs them to their end. Whoever asks for the same work
again, with the same idempotency key, gets these replies: no request is run twice because its caller died.
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

Reply = tuple[int | None, bytes | None, dict[str, str] | None, int, int, int]
"""status_code, response body as JSON, error, input tokens, cached tokens, output tokens."""

KEPT_SECONDS = 600.0
"""Work that nobody has asked for this long is forgotten."""
KEPT_LOADS = 4
"""So many times what the engine has at once is kept of one piece of work: more than its caller has on its way."""


Asking = asyncio.Task[list[Reply] | None]


@dataclass
class _KeptWork:
    run: str
    used_at: float
    asked: dict[int, tuple[Asking, int]] = field(default_factory=dict)
    """By line, the list it was asked in, and where in that."""


class KeptReplies:
    """The requests of each piece of work that are in the engine, and the last that were answered, by their lines."""

    def __init__(self) -> None:
        self._works: dict[str, _KeptWork] = {}

    async def collect(
        self, run: EngineSession, lines: list[int], ask: Callable[[list[int]], Coroutine[Any, Any, list[Reply] | None]]
    ) -> list[Reply] | None:
        """A reply for each line.

        Args:
            ask: asks the engine for the lines at these places of `lines`, which no run of this work has asked; what it
                raises is raised here, and None, if it returns that, is returned.
        """
        work = self._work(run)
        found: dict[int, Reply] = {}
        while missing := [place for place in range(len(lines)) if place not in found]:
            asking: Asking | None = None
            if new := [place for place in missing if lines[place] not in work.asked]:
                asking = asyncio.create_task(ask(new))
                work.asked.update({lines[place]: (asking, at) for at, place in enumerate(new)})
            known = {place: work.asked[lines[place]] for place in missing}
            try:
                await asyncio.wait({task for task, _ in known.values()})
            finally:
                if asking is not None:
                    asking.cancel()  # of no effect on one that is done
            for place, (task, _) in known.items():
                if task.cancelled() or task.exception() or task.result() is None:
                    work.asked.pop(lines[place], None)
            for place, (task, at) in known.items():
                if task.cancelled():
                    continue  # with the run that asked, which is another one
                replies = task.result()
                if replies is None:
                    return None
                found[place] = replies[at]
        while len(work.asked) > KEPT_LOADS * run.in_flight:
            del work.asked[next(iter(work.asked))]
        return [found[place] for place in range(len(lines))]

    def forget(self, run: str) -> None:
        """The run is over and has taken its replies."""
        self._works = {key: work for key, work in self._works.items() if work.run != run}

    def _work(self, run: EngineSession) -> _KeptWork:
        now = time.monotonic()
        work = self._works.get(run.idempotency_key)
        if work is None:
            self._works = {key: one for key, one in self._works.items() if now - one.used_at < KEPT_SECONDS}
            work = self._works[run.idempotency_key] = _KeptWork(run.name, now)
        work.run, work.used_at = run.name, now
        return work


def reply(answer: Answer) -> Reply:
    """An engine's answer as its caller gets it; only one of status 200 has used tokens."""
    if answer.body is None:
        return answer.status_code, None, answer.error, 0, 0, 0
    usage = (answer.body.get("usage") if answer.status_code == 200 else None) or {}
    details = usage.get("prompt_tokens_details") or {}
    return (
        answer.status_code,
        orjson.dumps(answer.body, option=orjson.OPT_SERIALIZE_NUMPY),
        answer.error,
        usage.get("prompt_tokens") or 0,
        details.get("cached_tokens") or 0,
        usage.get("completion_tokens") or 0,
    )
