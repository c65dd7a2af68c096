"""Engine `echo`: simulated answers, for tests and overhead measurements."""

from __future__ import annotations

import asyncio
import hashlib
import os
import time
from pathlib import Path
from typing import Any, ClassVar

from pydantic import BaseModel, ConfigDict, NonNegativeFloat, NonNegativeInt

from batchyard import __version__
from batchyard.errors import EngineStartError
from batchyard.models import ModelSpec
from inference.engine import Answer, Engine, first_unsupported

SUPPORTED = frozenset({"model", "messages", "prompt", "input", "n"}) | {
    "max_tokens",
    "max_completion_tokens",
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "seed",
    "stop",
    "presence_penalty",
    "frequency_penalty",
    "repetition_penalty",
}


class EchoArguments(BaseModel):
    """`engine_args` of engine echo. The last four are for tests of what happens when an engine misbehaves."""

    model_config = ConfigDict(extra="forbid")

    latency_ms: NonNegativeFloat = 0
    fail_every: NonNegativeInt = 0
    die_on: str | None = None
    hang_on: str | None = None
    start_error: str | None = None
    call_log: Path | None = None


class Echo(Engine):
    """Answers a request with its own last message. Token counts are whitespace-separated words.

    It waits `latency_ms` before it answers a request. It refuses every `fail_every`-th request with 400. A request that
    contains `die_on` ends the process; one that contains `hang_on` blocks it for ever. With `start_error` the engine
    does not start, for that reason. `call_log` gets one line per request.
    """

    name: ClassVar[str] = "echo"
    simulated: ClassVar[bool] = True
    needs_source: ClassVar[bool] = False
    arguments: ClassVar[type[BaseModel] | None] = EchoArguments

    def __init__(self, spec: ModelSpec, request_timeout: float) -> None:
        super().__init__(spec, request_timeout)
        self._arguments = EchoArguments.model_validate(spec.engine_args)
        self._requests = 0

    @classmethod
    def unsupported(cls, spec: ModelSpec, endpoint: str, body: dict[str, Any]) -> tuple[str, str] | None:
        return first_unsupported(cls.name, SUPPORTED, body)

    async def start(self) -> None:
        if self._arguments.start_error is not None:
            raise EngineStartError(self._arguments.start_error)

    async def answer(self, endpoint: str, body: dict[str, Any]) -> Answer:
        text = _text(body)
        if self._arguments.call_log is not None:
            with self._arguments.call_log.open("a") as log:
                log.write(f"{text}\n")
        if self._arguments.die_on is not None and self._arguments.die_on in text:
            os._exit(1)
        if self._arguments.hang_on is not None and self._arguments.hang_on in text:
            while True:
                time.sleep(3600)  # noqa: ASYNC251  blocking the event loop is the point
        if self._arguments.latency_ms / 1000 > self.request_timeout:
            await asyncio.sleep(self.request_timeout)
            return Answer.timed_out(self.request_timeout)
        if self._arguments.latency_ms:
            await asyncio.sleep(self._arguments.latency_ms / 1000)
        return self._echo(endpoint, body, text)

    def versions(self) -> dict[str, str]:
        return {"engine": self.name, "version": __version__}

    async def stop(self) -> None:
        """Nothing to free."""

    def _echo(self, endpoint: str, body: dict[str, Any], text: str) -> Answer:
        self._requests += 1
        if self._arguments.fail_every and self._requests % self._arguments.fail_every == 0:
            return Answer.refused(f"engine echo refuses every {self._arguments.fail_every}th request")
        words = len(text.split())
        model = body.get("model", self.spec.name)
        if endpoint == "/v1/embeddings":
            digest = hashlib.sha256(text.encode()).digest()[:8]
            vector = [byte / 255 for byte in digest]
            data = [{"object": "embedding", "index": 0, "embedding": vector}]
            usage = {"prompt_tokens": words, "total_tokens": words}
            return Answer(200, {"object": "list", "data": data, "usage": usage, "model": model})
        samples = body.get("n") or 1
        usage = {
            "prompt_tokens": words,
            "completion_tokens": words * samples,
            "total_tokens": words * (samples + 1),
        }
        chat = endpoint == "/v1/chat/completions"
        output: dict[str, Any] = {"message": {"role": "assistant", "content": text}} if chat else {"text": text}
        return Answer(
            200,
            {
                "id": f"{'chatcmpl' if chat else 'cmpl'}-echo-{self._requests}",
                "object": "chat.completion" if chat else "text_completion",
                "created": int(time.time()),
                "choices": [
                    {"index": index, **output, "logprobs": None, "finish_reason": "stop"} for index in range(samples)
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
