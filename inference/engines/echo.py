"""Engine `echo`: simulated answers, for tests and overhead measurements."""

import asyncio
import contextlib
import os
import time
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Collection
from itertools import cycle, islice
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

from pydantic import BaseModel, ConfigDict, NonNegativeFloat, NonNegativeInt, PositiveInt

from batchyard import __version__
from batchyard.endpoints import responses, stream_events
from batchyard.endpoints.base import Endpoint
from batchyard.endpoints.catalog import CHAT, COMPLETIONS, ENDPOINTS
from batchyard.errors import EngineStartError
from batchyard.models import CAPACITY, ModelSpec
from inference.engine import Engine, EngineAnswer, first_unsupported
from inference.engines import echo_bodies
from inference.engines.echo_bodies import Generated
from inference.engines.echo_steps import BoundedEchoSteps, EchoSteps
from inference.progress import PROGRESS, RequestProgress

SUPPORTED = frozenset({"model", "n", "max_tokens", "max_completion_tokens", "ignore_eos", "seed", "stop"}) | {
    *("temperature", "top_p", "top_k", "min_p", "presence_penalty", "frequency_penalty", "repetition_penalty"),
    *("structured_outputs", "tools", "tool_choice", "logprobs", "top_logprobs"),
}
LISTED = (CHAT, COMPLETIONS)
"""Endpoints of which it takes those parameters. Of the others it takes all that the API has."""


class EchoArguments(BaseModel):
    """`engine_args` of engine echo. The last four are for tests of what happens when an engine misbehaves."""

    model_config = ConfigDict(extra="forbid")

    latency_ms: NonNegativeFloat = 0
    prefill_ms: NonNegativeFloat = 0
    ms_per_token: NonNegativeFloat = 0
    ms_per_request: NonNegativeFloat = 0
    prefill_tokens_per_second: NonNegativeFloat = 0
    max_num_batched_tokens: PositiveInt = 2048
    slots: PositiveInt = CAPACITY
    fail_every: NonNegativeInt = 0
    die_on: str | None = None
    hang_on: str | None = None
    start_error: str | None = None
    call_log: Path | None = None


class _Arrival(NamedTuple):
    """A request: its endpoint, its text, the tokens of each sample, the seconds for which it holds a slot (None: it
    needs none), and when it has to be answered, in the event loop's time."""

    entry: Endpoint
    text: str
    tokens: int
    seconds: float | None
    deadline: float


class Echo(Engine):
    """Answers a request with the last message of the request. Token counts are whitespace-separated words.

    A request with a choice of texts gets the first one. A text with `<model 0.8>answer</model>` gets that answer from
    the model of this name, and its tokens have that probability together. A chat's text between `<think>` and
    `</think>` is given back as reasoning. If a chat or a Responses request has tools, `<tool_call>{"name": …,
    "arguments": …}</tool_call>` in its text becomes a call. The engine waits `latency_ms` before it answers a request.
    It refuses every `fail_every`-th request with 400. A request that contains `die_on` ends the process; one that
    contains `hang_on` blocks it for ever. With `start_error` the engine does not start, for that reason. `call_log`
    gets one line per request.

    With `ms_per_token` it simulates continuous batching. The echoed words are repeated, or cut, to `max_tokens`. Each
    sample holds one of `slots` for `prefill_ms`, and then for its tokens times `ms_per_token`. A request whose caller
    goes away frees its slots. An embedding needs none. A stream has a word at a time, when it is decoded.

    With `prefill_tokens_per_second` it simulates an engine's steps instead. Each takes `ms_per_token`, `ms_per_request`
    for each answer in it, and the time of prompts, in parts. Beside live requests they have engine vllm's bound.
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
        self._slots = DecodeSlots(self.capacity)
        self._steps: EchoSteps | None = None
        if rate := self._arguments.prefill_tokens_per_second:
            costs = self._arguments.ms_per_token / 1000, self._arguments.ms_per_request / 1000, 1 / rate
            sizes, target = (self.capacity, self._arguments.max_num_batched_tokens), spec.live.step_seconds
            self.bounds_steps = target is not None
            self._steps = EchoSteps(*sizes, costs) if target is None else BoundedEchoSteps(*sizes, costs, target=target)
        self._running: dict[RequestProgress, float] = {}  # since when each request has a slot, in the event loop's time

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
        arrival = self._arrive(endpoint, body)
        try:
            if arrival.seconds is not None:
                samples = body.get("n") or 1
                await asyncio.gather(*(self._decode(arrival, arrival.seconds) for _ in range(samples)))
            await self._delay(arrival.deadline)
        except TimeoutError:
            return EngineAnswer.timed_out(self.request_timeout)
        return self._echo(arrival.entry, body, arrival.text)

    async def stream(self, endpoint: str, body: dict[str, Any]) -> EngineAnswer | AsyncGenerator[bytes]:
        arrival = self._arrive(endpoint, body)
        answer = self._echo(arrival.entry, body, arrival.text)
        return answer if answer.status_code != 200 or answer.body is None else self._events(arrival, body, answer.body)

    async def _events(self, arrival: _Arrival, request: dict[str, Any], body: dict[str, Any]) -> AsyncGenerator[bytes]:
        """Yield each word when it is decoded. Samples beyond the first come as soon as their words do."""
        loop, progress = asyncio.get_running_loop(), PROGRESS.get()
        if progress is not None:
            progress.input_tokens = responses.usage(body).input_tokens or 0
        await self._delay(arrival.deadline)
        async with self._paced(arrival) as until:
            await until(1)  # vLLM's streams, too, begin with the first token
            pieces = 0
            for event in stream_events.events(arrival.entry.path, request, body, stream_events.words):
                if event.piece:
                    pieces += 1
                    await until(pieces)
                if event.piece and progress is not None and self._steps is None:
                    progress.add(1)
                if loop.time() > arrival.deadline:
                    raise TimeoutError
                yield event.data

    @contextlib.asynccontextmanager
    async def _paced(self, arrival: _Arrival) -> AsyncIterator[Callable[[int], Awaitable[None]]]:
        """Compute one sample until the block ends. Yields a function that waits for so many of its tokens."""
        loop, seconds = asyncio.get_running_loop(), arrival.seconds or 0.0
        prefill, token = self._arguments.prefill_ms / 1000, self._arguments.ms_per_token / 1000 if seconds else 0.0
        if self._steps is not None and arrival.seconds is not None:
            async with self._steps.sample(len(arrival.text.split()), arrival.tokens) as sample:
                yield sample.until
        else:
            at = self._slots.hold(seconds, arrival.deadline) if seconds else contextlib.nullcontext(loop.time())
            async with at as start:
                yield lambda tokens: asyncio.sleep(start + prefill + (tokens - 1) * token - loop.time())

    def versions(self) -> dict[str, str]:
        return {"engine": self.name, "version": __version__}

    async def stop(self) -> None:
        """Nothing to free."""

    def measure(self, progress: RequestProgress) -> None:
        if (start := self._running.get(progress)) is not None and self._arguments.ms_per_token:
            decoded = 1000 * (asyncio.get_running_loop().time() - start) - self._arguments.prefill_ms
            progress.output_tokens = max(0, int(decoded / self._arguments.ms_per_token))

    def has_begun(self, progress: RequestProgress) -> bool:
        return self._steps is None or progress.output_tokens > 0

    def _arrive(self, endpoint: str, body: dict[str, Any]) -> _Arrival:
        """Note a request, and do what the arguments say of its text."""
        text = echo_bodies.prompt_text(body)
        if self._arguments.call_log is not None:
            with self._arguments.call_log.open("a") as log:
                log.write(f"{text}\n")
        if self._arguments.die_on is not None and self._arguments.die_on in text:
            os._exit(1)
        if self._arguments.hang_on is not None and self._arguments.hang_on in text:
            while True:
                time.sleep(3600)  # blocking the event loop is the point
        entry, seconds, tokens = ENDPOINTS[endpoint], None, 0
        if entry.generates and (self._arguments.ms_per_token or self._arguments.prefill_ms or self._steps):
            tokens = self._completion(entry, body, text).tokens
            seconds = (self._arguments.prefill_ms + tokens * self._arguments.ms_per_token) / 1000
        return _Arrival(entry, text, tokens, seconds, asyncio.get_running_loop().time() + self.request_timeout)

    async def _decode(self, arrival: _Arrival, seconds: float) -> None:
        """Compute one sample. Raises TimeoutError if it cannot end by its deadline."""
        if self._steps is not None:
            async with asyncio.timeout_at(arrival.deadline), self._paced(arrival) as until:
                await until(arrival.tokens)
            return
        progress = PROGRESS.get()
        try:
            async with self._slots.hold(seconds, arrival.deadline) as start:
                if progress is not None:
                    self._running[progress] = start
        finally:
            if progress is not None:
                self._running.pop(progress, None)
        if start + seconds > arrival.deadline:
            raise TimeoutError

    async def _delay(self, deadline: float) -> None:
        """Wait for `latency_ms`. Raises TimeoutError at `deadline`."""
        async with asyncio.timeout_at(deadline):
            await asyncio.sleep(self._arguments.latency_ms / 1000)

    def _completion(self, endpoint: Endpoint, body: dict[str, Any], text: str) -> Generated:
        if (planted := echo_bodies.planted(text, self.spec.name)) is not None:
            return planted
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


class DecodeSlots:
    """Slots on a timetable that no late wake-up shifts. Times are the event loop's."""

    def __init__(self, number: int) -> None:
        self._free = number
        self._waiting: deque[asyncio.Future[float]] = deque()

    @contextlib.asynccontextmanager
    async def hold(self, seconds: float, deadline: float) -> AsyncIterator[float]:
        """Wait for a slot, at most until `deadline`, and hold it for `seconds`, at most until `deadline`.

        Yields the time at which it was free. Whoever leaves the block sooner frees it then.

        Raises TimeoutError: no slot was free in time.
        """
        loop = asyncio.get_running_loop()
        start = await self._acquire(deadline)
        end = min(start + seconds, deadline)
        try:
            yield start
            await asyncio.sleep(end - loop.time())
        except BaseException:
            end = loop.time()
            raise
        finally:
            self._release(end)

    async def _acquire(self, deadline: float) -> float:
        loop = asyncio.get_running_loop()
        if self._free:
            self._free -= 1
            return loop.time()
        slot: asyncio.Future[float] = loop.create_future()
        self._waiting.append(slot)
        try:
            async with asyncio.timeout_at(deadline):
                return await slot
        except BaseException:
            if slot.done() and not slot.cancelled():
                self._release(loop.time())
            raise

    def _release(self, at: float) -> None:
        while self._waiting:
            slot = self._waiting.popleft()
            if not slot.done():
                slot.set_result(at)
                return
        self._free += 1
