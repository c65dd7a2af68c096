"""Engine `echo`: simulated answers, for tests and overhead measurements."""

from __future__ import annotations

import asyncio
import hashlib
import heapq
import os
import time
from itertools import cycle, islice
from pathlib import Path
from typing import Any, ClassVar

from pydantic import BaseModel, ConfigDict, NonNegativeFloat, NonNegativeInt, PositiveInt

from batchyard import __version__
from batchyard.errors import EngineStartError
from batchyard.models import CAPACITY, ModelSpec
from inference.engine import Engine, EngineAnswer, first_unsupported

EMBEDDINGS = "/v1/embeddings"
SUPPORTED = frozenset({"model", "messages", "prompt", "input", "n"}) | {
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

    A request with a choice of texts gets the first one. The engine waits `latency_ms` before it answers a request. It
    refuses every `fail_every`-th request with 400. A request that contains `die_on` ends the process; one that contains
    `hang_on` blocks it for ever. With `start_error` the engine does not start, for that reason. `call_log` gets one
    line per request.

    With `ms_per_token` it simulates continuous batching. The echoed words are repeated, or cut, to `max_tokens`. Each
    sample holds one of `slots` for its tokens times `ms_per_token`. Slots are given first come first served, on a
    timetable that no late wake-up shifts. A request whose caller goes away keeps its slot. An embedding needs none.
    """

    name: ClassVar[str] = "echo"
    simulated: ClassVar[bool] = True
    needs_source: ClassVar[bool] = False
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
        return first_unsupported(cls.name, SUPPORTED, body)

    @classmethod
    def structure(cls, kind: str, value: Any) -> dict[str, Any] | None:
        return {"structured_outputs": {"choice": value}} if kind == "choice" else None

    async def start(self) -> None:
        if self._arguments.start_error is not None:
            raise EngineStartError(self._arguments.start_error)

    async def answer(self, endpoint: str, body: dict[str, Any]) -> EngineAnswer:
        text = _text(body)
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
        end = now if endpoint == EMBEDDINGS else self._decoded_at(body, text, now, deadline)
        end += self._arguments.latency_ms / 1000
        if end > now:
            await asyncio.sleep(min(end, deadline) - now)
        return self._echo(endpoint, body, text) if end <= deadline else EngineAnswer.timed_out(self.request_timeout)

    def versions(self) -> dict[str, str]:
        return {"engine": self.name, "version": __version__}

    async def stop(self) -> None:
        """Nothing to free."""

    def _decoded_at(self, body: dict[str, Any], text: str, now: float, deadline: float) -> float:
        """Take a slot for each sample, until `deadline` at most, and return when the last one is decoded."""
        if not self._arguments.ms_per_token:
            return now
        seconds = self._completion(body, text)[1] * self._arguments.ms_per_token / 1000
        end = now
        for _ in range(body.get("n") or 1):
            start = max(now, self._free_at[0])
            if start < deadline:
                heapq.heapreplace(self._free_at, min(start + seconds, deadline))
            end = start + seconds
        return end

    def _completion(self, body: dict[str, Any], text: str) -> tuple[str, int, str]:
        """Return the text of an answer, its number of tokens, and its finish_reason."""
        choice = (body.get("structured_outputs") or {}).get("choice")
        if choice:
            return choice[0], len(choice[0].split()), "stop"
        words = text.split()
        limit = body.get("max_completion_tokens") or body.get("max_tokens")
        if limit is None or not self._arguments.ms_per_token:
            return text, len(words), "stop"
        return " ".join(islice(cycle(words), limit)), limit, "length"

    def _echo(self, endpoint: str, body: dict[str, Any], text: str) -> EngineAnswer:
        self._requests += 1
        if self._arguments.fail_every and self._requests % self._arguments.fail_every == 0:
            return EngineAnswer.refused(f"engine echo refuses every {self._arguments.fail_every}th request")
        words = len(text.split())
        model = body.get("model", self.spec.name)
        if endpoint == EMBEDDINGS:
            digest = hashlib.sha256(text.encode()).digest()[:8]
            vector = [byte / 255 for byte in digest]
            data = [{"object": "embedding", "index": 0, "embedding": vector}]
            usage = {"prompt_tokens": words, "total_tokens": words}
            return EngineAnswer(200, {"object": "list", "data": data, "usage": usage, "model": model})
        samples = body.get("n") or 1
        content, tokens, reason = self._completion(body, text)
        usage = {
            "prompt_tokens": words,
            "completion_tokens": tokens * samples,
            "total_tokens": words + tokens * samples,
        }
        chat = endpoint == "/v1/chat/completions"
        output: dict[str, Any] = {"message": {"role": "assistant", "content": content}} if chat else {"text": content}
        return EngineAnswer(
            200,
            {
                "id": f"{'chatcmpl' if chat else 'cmpl'}-echo-{self._requests}",
                "object": "chat.completion" if chat else "text_completion",
                "created": int(time.time()),
                "choices": [
                    {"index": index, **output, "logprobs": None, "finish_reason": reason} for index in range(samples)
                ],
                "usage": usage,
                "model": model,
            },
        )


def _text(body: dict[str, Any]) -> str:
    """Return the last message, the prompt or the input as text."""
    messages = body.get("messages")
    if messages:
        content = messages[-1].get("content")
        if isinstance(content, list):
            return " ".join(part.get("text", "") for part in content)
        return content or ""
    value = body.get("prompt", body.get("input", ""))
    return value if isinstance(value, str) else str(value)
