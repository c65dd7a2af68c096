"""Engine `echo`: simulated answers, for tests and overhead measurements."""

from __future__ import annotations

import asyncio
import heapq
import os
import time
from collections.abc import Collection
from itertools import cycle, islice
from pathlib import Path
from typing import Any, ClassVar

from pydantic import BaseModel, ConfigDict, NonNegativeFloat, NonNegativeInt, PositiveInt

from batchyard import __version__
from batchyard.endpoints.base import Endpoint
from batchyard.endpoints.catalog import CHAT, COMPLETIONS, ENDPOINTS
from batchyard.errors import EngineStartError
from batchyard.models import CAPACITY, ModelSpec
from inference.engine import Engine, EngineAnswer, first_unsupported
from inference.engines import echo_bodies
from inference.engines.echo_bodies import Generated

SUPPORTED = frozenset({"model", "n"}) | {
    "max_tokens",
    "max_completion_tokens",
    "ignore_eos",
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "seed",
    "stop",
    "presence_penalty",
    "frequency_penalty",
    "repetition_penalty",
    "structured_outputs",
}
LISTED = (CHAT, COMPLETIONS)
"""Endpoints of which it takes those parameters. Of the others it takes all that the API has."""


class EchoArguments(BaseModel):
    """`engine_args` of engine echo. The last four are for tests of what happens when an engine misbehaves."""

    model_config = ConfigDict(extra="forbid")

    latency_ms: NonNegativeFloat = 0
    ms_per_token: NonNegativeFloat = 0
    slots: PositiveInt = CAPACITY
    fail_every: NonNegativeInt = 0
    die_on: str | None = None
    hang_on: str | None = None
    start_error: str | None = None
    call_log: Path | None = None


class Echo(Engine):
    """Answers a request with the last message of the request. Token counts are whitespace-separated words.

    A request with a choice of texts gets the first one. A chat's text between `<think>` and `</think>` is given back as
    reasoning. The engine waits `latency_ms` before it answers a request. It refuses every `fail_every`-th request with
    400. A request that contains `die_on` ends the process; one that contains `hang_on` blocks it for ever. With
    `start_error` the engine does not start, for that reason. `call_log` gets one line per request.

    With `ms_per_token` it simulates continuous batching. The echoed words are repeated, or cut, to `max_tokens`. Each
    sample holds one of `slots` for its tokens times `ms_per_token`. Slots are given first come first served, on a
    timetable that no late wake-up shifts. A request whose caller goes away keeps its slot. An embedding needs none.
    """

    name: ClassVar[str] = "echo"
    serves: ClassVar[Collection[str]] = ENDPOINTS
    simulated: ClassVar[bool] = True
    needs_source: ClassVar[bool] = False
    adapters: ClassVar[bool] = True
    arguments: ClassVar[type[BaseModel] | None] = EchoArguments
    batch_argument: ClassVar[str | None] = "slots"

    def __init__(self, spec: ModelSpec, request_timeout: float) -> None:
        super().__init__(spec, request_timeout)
        self._arguments = EchoArguments.model_validate(spec.engine_args)
        self._requests = 0
        self.capacity = self._arguments.slots
        self._free_at = [0.0] * self.capacity
        """A heap: when each slot is free, in the event loop's time."""

    @classmethod
    def unsupported(cls, spec: ModelSpec, endpoint: str, body: dict[str, Any]) -> tuple[str, str] | None:
        entry = ENDPOINTS[endpoint]
        names = SUPPORTED.union(entry.content) if entry in LISTED else entry.body.model_fields
        return first_unsupported(cls.name, endpoint, names, body)

    @classmethod
    def structure(cls, kind: str, value: Any) -> dict[str, Any] | None:
        return {"structured_outputs": {"choice": value}} if kind == "choice" else None

    async def start(self) -> None:
        if self._arguments.start_error is not None:
            raise EngineStartError(self._arguments.start_error)

    async def answer(self, endpoint: str, body: dict[str, Any]) -> EngineAnswer:
        text = echo_bodies.prompt_text(body)
        if self._arguments.call_log is not None:
            with self._arguments.call_log.open("a") as log:
                log.write(f"{text}\n")
        if self._arguments.die_on is not None and self._arguments.die_on in text:
            os._exit(1)
        if self._arguments.hang_on is not None and self._arguments.hang_on in text:
            while True:
                time.sleep(3600)  # noqa: ASYNC251  blocking the event loop is the point
        now = asyncio.get_running_loop().time()
        deadline = now + self.request_timeout
        entry = ENDPOINTS[endpoint]
        end = self._decoded_at(entry, body, text, now, deadline) if entry.generates else now
        end += self._arguments.latency_ms / 1000
        if end > now:
            await asyncio.sleep(min(end, deadline) - now)
        return self._echo(entry, body, text) if end <= deadline else EngineAnswer.timed_out(self.request_timeout)

    def versions(self) -> dict[str, str]:
        return {"engine": self.name, "version": __version__}

    async def stop(self) -> None:
        """Nothing to free."""

    def _decoded_at(self, endpoint: Endpoint, body: dict[str, Any], text: str, now: float, deadline: float) -> float:
        """Take a slot for each sample, until `deadline` at most, and return when the last one is decoded."""
        if not self._arguments.ms_per_token:
            return now
        seconds = self._completion(endpoint, body, text).tokens * self._arguments.ms_per_token / 1000
        end = now
        for _ in range(body.get("n") or 1):
            start = max(now, self._free_at[0])
            if start < deadline:
                heapq.heapreplace(self._free_at, min(start + seconds, deadline))
            end = start + seconds
        return end

    def _completion(self, endpoint: Endpoint, body: dict[str, Any], text: str) -> Generated:
        choice = (body.get("structured_outputs") or {}).get("choice")
        if choice:
            return Generated(choice[0], len(choice[0].split()), "stop")
        words, limit = text.split(), endpoint.output_limit(body)
        if not limit or not self._arguments.ms_per_token:
            return Generated(text, len(words), "stop")
        return Generated(" ".join(islice(cycle(words), limit)), limit, "length")

    def _echo(self, endpoint: Endpoint, body: dict[str, Any], text: str) -> EngineAnswer:
        self._requests += 1
        if self._arguments.fail_every and self._requests % self._arguments.fail_every == 0:
            return EngineAnswer.refused(f"engine echo refuses every {self._arguments.fail_every}th request")
        completion = self._completion(endpoint, body, text)
        request = {"model": self.spec.name, **body}
        return EngineAnswer(200, echo_bodies.response(endpoint.path, request, self._requests, completion))
