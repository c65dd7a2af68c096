"""Steps of a simulated engine: continuous batching, with prompts in chunks. Names are those of vLLM's scheduler.

A step computes a token of each answer that is under way, and then parts of prompts in the order of their arrival, live
requests first. Steps stand on a timetable that no late wake-up shifts.
"""

import asyncio
import bisect
import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass
from itertools import count
from operator import attrgetter
from typing import Any, ClassVar, NamedTuple

from inference.engines.bounded_steps import BATCH, LIVE, BoundedSteps
from inference.progress import PROGRESS, RequestProgress


@dataclass(eq=False)
class EchoSample:
    """One sample of a request. `num_tokens_with_spec` are those of its prompt and of its answer so far."""

    request_id: int
    priority: int
    prompt_tokens: int
    output_tokens: int
    progress: RequestProgress
    num_tokens_with_spec: int
    num_computed_tokens: int = 0
    is_prefill_chunk: bool = True
    next_decode_eligible_step: int = 0
    num_output_placeholders: ClassVar[int] = 0
    _awaited: tuple[int, asyncio.Future[None]] | None = None

    async def until(self, tokens: int) -> None:
        """Wait until so many tokens of the answer, or all, are decoded."""
        tokens = self.prompt_tokens + min(tokens, self.output_tokens)
        if self.num_tokens_with_spec < tokens:
            self._awaited = tokens, asyncio.get_running_loop().create_future()
            await self._awaited[1]

    def decode(self) -> None:
        """Count a token."""
        self.num_tokens_with_spec += 1
        self.progress.add(1)
        if self._awaited is not None and self._awaited[0] == self.num_tokens_with_spec and not self._awaited[1].done():
            self._awaited[1].set_result(None)


class EchoStep(NamedTuple):
    """The tokens of each sample in a step, all of them, and the seconds that it takes."""

    num_scheduled_tokens: dict[int, int]
    total_num_scheduled_tokens: int
    seconds: float


class EchoSteps:
    """The scheduler, and its loop, which runs while there are samples.

    Args:
        slots, tokens: samples and tokens of a step, at most.
        costs: the seconds of a step, of each answer under way in it, and of each token of a prompt.
    """

    def __init__(self, slots: int, tokens: int, costs: tuple[float, float, float]) -> None:
        self._slots, self.max_num_scheduled_tokens, self._costs = slots, tokens, costs
        self.current_step = 0
        self.requests: dict[Any, Any] = {}
        self.running: list[Any] = []
        self._waiting: list[EchoSample] = []
        self._numbers = count()
        self._loop: asyncio.Task[None] | None = None
        self._at = 0.0  # when the latest step ends, in the event loop's time

    @contextlib.asynccontextmanager
    async def sample(self, prompt: int, output: int) -> AsyncIterator[EchoSample]:
        """Compute a sample with so many tokens until the block ends."""
        progress, prompt = PROGRESS.get() or RequestProgress(), max(1, prompt)
        priority = LIVE if progress.live else BATCH
        sample = EchoSample(next(self._numbers), priority, prompt, max(1, output), progress, prompt)
        self.add_request(sample)
        if self._loop is None or self._loop.done():
            self._loop = asyncio.create_task(self._run())
        try:
            yield sample
        finally:
            self._remove(sample)

    def add_request(self, request: EchoSample) -> None:
        self.requests[request.request_id] = request
        bisect.insort(self._waiting, request, key=attrgetter("priority"))

    def schedule(self) -> EchoStep:
        self.current_step += 1
        due = [sample for sample in self.running if sample.next_decode_eligible_step <= self.current_step]
        due.sort(key=attrgetter("is_prefill_chunk"))
        seconds, request_seconds, prompt_seconds = self._costs
        left, tokens = self.max_num_scheduled_tokens, {}
        for sample in due + self._waiting[: self._slots - len(self.running)]:
            if given := min(left, sample.num_tokens_with_spec - sample.num_computed_tokens):
                seconds += given * prompt_seconds if sample.is_prefill_chunk else request_seconds
                left -= given
                tokens[sample.request_id] = given
                sample.num_computed_tokens += given
                sample.is_prefill_chunk = sample.num_computed_tokens < sample.prompt_tokens
        entered = sum(sample.request_id in tokens for sample in self._waiting)
        self.running += self._waiting[:entered]
        del self._waiting[:entered]
        return EchoStep(tokens, self.max_num_scheduled_tokens - left, seconds)

    def update_from_output(self, scheduler_output: EchoStep) -> None:
        for number in scheduler_output.num_scheduled_tokens:
            sample = self.requests.get(number)  # its caller may have gone meanwhile
            if sample is not None and not sample.is_prefill_chunk:
                sample.decode()
                if sample.num_tokens_with_spec == sample.prompt_tokens + sample.output_tokens:
                    self._remove(sample)

    def _remove(self, sample: EchoSample) -> None:
        if self.requests.pop(sample.request_id, None) is not None:
            (self.running if sample in self.running else self._waiting).remove(sample)

    async def _run(self) -> None:
        loop = asyncio.get_running_loop()
        self._at = loop.time()
        while self.requests:
            step = self.schedule()
            self._at += step.seconds
            await asyncio.sleep(self._at - loop.time())
            self.update_from_output(step)


class BoundedEchoSteps(BoundedSteps, EchoSteps):
    """Steps with the bound of engine vllm, measured by the timetable."""

    def clock(self) -> float:
        return self._at
