"""What an engine is: OpenAI request bodies in, OpenAI response bodies out."""

from __future__ import annotations

import re
import time
from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from pydantic import BaseModel

from batchyard.models import CAPACITY, ModelSpec

NO_OPS = frozenset(
    {
        "metadata",
        "prompt_cache_key",
        "prompt_cache_retention",
        "safety_identifier",
        "service_tier",
        "store",
        "user",
    }
)
"""OpenAI parameters that are about the caller's account, not about the answer: accepted and without effect."""

DEFAULTS: Mapping[str, tuple[Any, ...]] = {
    "stream": (False,),
    "n": (1,),
    "best_of": (1,),
    "logprobs": (False,),
    "top_logprobs": (0,),
    "echo": (False,),
    "tools": ([],),
    "tool_choice": ("none",),
    "parallel_tool_calls": (True, False),
    "modalities": (["text"],),
    "response_format": ({"type": "text"},),
    "logit_bias": ({},),
    "presence_penalty": (0,),
    "frequency_penalty": (0,),
    "encoding_format": ("float",),
    "reasoning_effort": (),
}
"""Values that ask for nothing: an engine without the parameter honours them all the same (null always does)."""

_CONTEXT = re.compile(r"maximum context length|cannot be greater than max_model_len")


@dataclass(frozen=True)
class Answer:
    """What became of one request.

    Attributes:
        status_code: the HTTP status OpenAI's endpoint would have answered; None: never run, then `error` is set.
        body: the response body, or `{"error": {message, type, param, code}}` for 4xx.
        error: `{"code", "message"}` of a request that has no response: request_timeout, engine_died, engine_error.
    """

    status_code: int | None
    body: dict[str, Any] | None
    error: dict[str, str] | None = None

    @classmethod
    def refused(cls, message: str, *, param: str | None = None, code: str | None = None, status: int = 400) -> Answer:
        """The engine refuses this request: an OpenAI error body."""
        kind = "invalid_request_error" if status < 500 else "server_error"
        return cls(status, {"error": {"message": message, "type": kind, "param": param, "code": code}})

    @classmethod
    def failed(cls, code: str, message: str) -> Answer:
        """The request has no response at all."""
        return cls(None, None, {"code": code, "message": message})

    @classmethod
    def timed_out(cls, request_timeout: float) -> Answer:
        return cls.failed("request_timeout", f"the request ran longer than {request_timeout:g} seconds")


class Capabilities(ABC):
    """What can be asked of an engine, told without starting it.

    Attributes:
        simulated: answers are not a model's.
        starts_each_run: it is started for each run and stops after it, so that runs should be long.
        arguments: what `engine_args` may hold, or None where the engine itself checks them at start. A schema that
            allows extra keys leaves those to the engine.
    """

    simulated: ClassVar[bool] = False
    starts_each_run: ClassVar[bool] = False
    arguments: ClassVar[type[BaseModel] | None] = None

    @classmethod
    @abstractmethod
    def unsupported(cls, spec: ModelSpec, endpoint: str, body: dict[str, Any]) -> tuple[str, str] | None:
        """The first parameter of `body` that this engine cannot honour, as (param, message). Pure, and light."""


class Engine(Capabilities):
    """Answers requests for one model. Made, started and asked in one process, from one event loop.

    Attributes:
        has_processes: it runs in processes of its own, which have to end when the one it was started in does.
        capacity: requests it runs at once, once it is started.
        answered_at: time.monotonic() of the last sign of work; an engine that is long silent while it has work hangs.
    """

    has_processes: ClassVar[bool] = False
    capacity: int = CAPACITY

    def __init__(self, spec: ModelSpec, request_timeout: float) -> None:
        """`request_timeout`: the longest one request may run, in seconds."""
        self.spec = spec
        self.request_timeout = request_timeout
        self.answered_at = time.monotonic()

    @abstractmethod
    async def start(self) -> None:
        """Load the model.

        Raises:
            EngineStartError: with the engine's own reason.
        """

    @abstractmethod
    async def answer(self, endpoint: str, bodies: list[dict[str, Any]]) -> list[Answer]:
        """One answer for each body, in the same order. A request's failure is that request's answer.

        Raises:
            EngineDied: the engine is over; no request of this list has an answer.
        """

    @abstractmethod
    def versions(self) -> dict[str, str]:
        """The engine and what its answers depend on: engine, version, torch, model_sha256, …"""

    def endpoints(self) -> list[dict[str, Any]]:
        """Servers elsewhere that it asks: url, health, reason, in_flight, limit, answers_per_second of each."""
        return []

    @abstractmethod
    async def stop(self) -> None:
        """Free everything, engine processes included."""


def refusal_code(message: str) -> str | None:
    """Return OpenAI's error code for the message with which vLLM, here or behind a URL, refuses a request."""
    return "context_length_exceeded" if _CONTEXT.search(message) else None


def first_unsupported(engine: str, supported: Collection[str], body: dict[str, Any]) -> tuple[str, str] | None:
    """The first parameter of `body` that is neither supported, nor a no-op, nor set to what asks for nothing."""
    for key, value in body.items():
        if key in supported or key in NO_OPS or value is None:
            continue
        if any(value == default and type(value) in (type(default), int, float) for default in DEFAULTS.get(key, ())):
            continue
        return f"body.{key}", f"engine {engine} does not support the parameter {key!r}"
    return None
