"""The interface of an engine: OpenAI request bodies in, OpenAI response bodies out."""

from __future__ import annotations

import importlib.util
import re
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, Callable, Collection, Generator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from pydantic import BaseModel

from batchyard.endpoints import responses, stream_events
from batchyard.endpoints.bodies.messages import changes_nothing
from batchyard.endpoints.catalog import CHAT, COMPLETIONS, COUNT_TOKENS, EMBEDDINGS, ENDPOINTS, MESSAGES
from batchyard.models import CAPACITY, ModelSpec
from batchyard.wording import hint, quoted
from inference import heads
from inference.progress import PROGRESS, RequestProgress

if TYPE_CHECKING:
    import pyarrow as pa

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
    "embed_dtype": ("float32",),
    "endianness": ("native", "little"),
    "include": ([], ["reasoning.encrypted_content"]),  # an engine without the parameter gives no reasoning apart
    "text": ({"format": {"type": "text"}},),
    "thinking": ({"type": "disabled"},),
    "timestamp_granularities": (["segment"],),
    "truncation": ("disabled",),
    "reasoning_effort": (),
}
"""Values without effect. An engine that lacks the parameter accepts them; null has no effect in any parameter."""

RENDERING = frozenset({"add_generation_prompt", "chat_template", "compiled_template", "continue_final_message"}) | {
    *("conversation", "conversations", "documents", "load_audio_from_video", "max_length", "messages", "model_config"),
    *("padding", "processor_kwargs", "return_assistant_tokens_mask", "return_dict", "return_tensors", "self"),
    *("tokenize", "tokenizer", "tokenizer_kwargs", "tools", "truncation"),
}
"""Parameters of `apply_chat_template`, and of what calls it. They are no variables of a template."""
_CONTEXT = re.compile(r"maximum context length|cannot be greater than max_model_len")


@dataclass(frozen=True)
class EngineAnswer:
    """The outcome of one request."""

    status_code: int | None  # the HTTP status of OpenAI's endpoint; None if the request never ran. Then `error` is set.
    # The response body, or `{"error": {message, type, param, code}}` for 4xx. Embeddings may be NumPy arrays.
    body: dict[str, Any] | None
    # `{"code", "message"}` of a request that has no response: request_timeout, engine_died, engine_error
    error: dict[str, str] | None = None

    @classmethod
    def refused(
        cls, message: str, *, param: str | None = None, code: str | None = None, status: int = 400
    ) -> EngineAnswer:
        """Return the answer to a refused request: an OpenAI error body."""
        kind = "invalid_request_error" if status < 500 else "server_error"
        return cls(status, {"error": {"message": message, "type": kind, "param": param, "code": code}})

    @classmethod
    def failed(cls, code: str, message: str) -> EngineAnswer:
        return cls(None, None, {"code": code, "message": message})

    @classmethod
    def timed_out(cls, request_timeout: float) -> EngineAnswer:
        return cls.failed("request_timeout", f"the request ran longer than {request_timeout:g} seconds")


class Capabilities(ABC):
    """The facts that an engine's class states without a start. An engine derives from Engine or JobEngine."""

    name: ClassVar[str]  # as `engine` in models.toml and as its entry point
    # Paths of the endpoints that it can answer, given a model that can
    serves: ClassVar[Collection[str]] = (CHAT.path, COMPLETIONS.path, EMBEDDINGS.path)
    # Answers are not a model's. Everything that shows or stores them is then marked as simulated.
    simulated: ClassVar[bool] = False
    starts_each_run: ClassVar[bool] = False  # starts for each run and stops after it, so that runs should be long
    adds_replicas: ClassVar[bool] = False  # starts more replicas as it runs, up to `max_replicas`
    passes_on: ClassVar[bool] = False  # a server answers, and decides what a body may have
    needs_source: ClassVar[bool] = True  # models.toml must name the model's folder or hub id
    # Loads LoRA adapters beside the model, and answers a request by the one that its `model` names
    adapters: ClassVar[bool] = False
    # Schema of `engine_args`; None if the engine itself checks them at start. A schema that allows extra keys leaves
    # those to the engine.
    arguments: ClassVar[type[BaseModel] | None] = None
    # The key of `engine_args` that says how many requests run at once; None if there is none
    batch_argument: ClassVar[str | None] = None
    # What has to be installed where the engine starts; None if it needs nothing more
    package: ClassVar[str | None] = None

    @classmethod
    def argument_names(cls) -> Collection[str] | None:
        """Return the keys that `engine_args` may have; None if only a start tells. Light."""
        if cls.arguments is None or cls.arguments.model_config.get("extra") == "allow":
            return None
        return cls.arguments.model_fields

    @classmethod
    def missing(cls, spec: ModelSpec) -> str | None:
        """Return the package or program that has to be installed to start the model here; None if none has. Light."""
        return cls.package if cls.package and importlib.util.find_spec(cls.package) is None else None

    @classmethod
    def cache_bytes(cls, spec: ModelSpec, token_bytes: int | None) -> int | None:
        """Return the most bytes of a replica's KV cache, with so many a token; None before a start."""
        return None

    @classmethod
    def able(cls, spec: ModelSpec) -> list[str]:
        """Return those endpoints of `serves` on which this model has an answer, as far as its folder tells. Light."""
        return list(cls.serves) if cls.simulated or cls.passes_on else heads.served(spec, cls.serves)

    @classmethod
    def gpus(cls, spec: ModelSpec) -> float:
        """Return the GPUs of one replica in a cluster that has GPUs. A model's `num_gpus` overrides it."""
        return 0

    @classmethod
    def adapter_refusal(cls, spec: ModelSpec, config: Mapping[str, Any]) -> str | None:
        """Return why the engine cannot load an adapter of this configuration, or None. Light."""
        return None

    @classmethod
    def reproducible_refusal(cls, spec: ModelSpec) -> str | None:
        """Return why its answers may depend on other requests, and the remedy, or None. Light."""
        if cls.simulated:
            return None
        why = "its server chooses the requests that run together" if cls.passes_on else "it may run requests together"
        return f"answers of engine {cls.name} may depend on other requests: {why}; remove it, or use engine vllm"

    @classmethod
    @abstractmethod
    def unsupported(cls, spec: ModelSpec, endpoint: str, body: dict[str, Any]) -> tuple[str, str] | None:
        """Return the first parameter of `body` that the engine cannot honour, as (param, message). Pure, and light."""

    @classmethod
    def structure(cls, kind: str, value: Any) -> dict[str, Any] | None:
        """Return parameters by which answers follow a `json`, `regex`, `choice` or `grammar`, or None."""
        return None


class Engine(Capabilities):
    """Answers requests for one model. One process, with one event loop, creates, starts and calls it."""

    has_processes: ClassVar[bool] = False  # starts processes, which have to end with the one that started the engine
    capacity: int = CAPACITY  # requests that it runs at once; final after `start`
    # Tokens of all requests that fit into its KV cache; None if that is no limit. Final after `start`.
    cache_tokens: int | None = None
    # How often it took the cache of a running request and computed it again; None if it does not count
    preemptions: int | None = None
    bounds_steps: bool = False  # batches slow live requests no more than their targets allow. Final after `start`.
    cache_use: float | None = None  # share of its KV cache that requests have, as it was seen last; None if unknown
    # Tokens of prompts that it has looked for in its prefix cache, and those that were there; None if it does not count
    prefix_tokens: int | None = None
    prefix_hits: int | None = None
    waits_for: str = ""  # why `start` has not returned yet, as a phrase; empty if it does not say

    def __init__(self, spec: ModelSpec, request_timeout: float) -> None:
        """`request_timeout`: the longest that one request may run, in seconds."""
        self.spec = spec
        self.request_timeout = request_timeout
        # The last sign of work. An engine with work that is silent for long hangs.
        self.answered_at = time.monotonic()
        self.on_death: Callable[[str], None] | None = None
        """Set once it has started. Call it with the reason if the engine ends while it has no request."""

    @abstractmethod
    async def start(self) -> None:
        """Load the model. Raises EngineStartError: with the engine's reason."""

    @abstractmethod
    async def answer(self, endpoint: str, body: dict[str, Any]) -> EngineAnswer:
        """Answer one request. Its failure is its answer.

        About twice `capacity` calls run at the same time, so an engine can put what waits into batches.

        Raises EngineDied: the engine ended, and the request has no answer.
        """

    async def stream(self, endpoint: str, body: dict[str, Any]) -> EngineAnswer | AsyncGenerator[bytes]:
        """Answer one request as server-sent events, one or more at a time; or as a whole if it is refused.

        Closing the generator ends the request. An engine that does not stream sends a whole answer as events.

        Raises EngineDied: the engine ended, also while the generator is iterated.
        """
        whole = {name: value for name, value in body.items() if name not in ("stream", "stream_options")}
        answer = await self.answer(endpoint, whole)
        return streamed(endpoint, body, answer)

    def measure(self, progress: RequestProgress) -> None:
        """Bring the progress of a request that runs up to date, if the engine can tell."""

    def has_begun(self, progress: RequestProgress) -> bool:
        """Return True if a request that runs has its first token, and if the engine cannot tell."""
        return True

    @abstractmethod
    def versions(self) -> dict[str, str]:
        """Return the engine and all that its answers depend on: engine, version, torch, model_sha256, …"""

    def endpoints(self) -> list[dict[str, Any]]:
        """Return the remote servers: url, health, reason, in_flight, limit and answers_per_second of each."""
        return []

    @abstractmethod
    async def stop(self) -> None:
        """Free everything. End the engine's processes."""


def streamed(endpoint: str, request: dict[str, Any], answer: EngineAnswer) -> EngineAnswer | AsyncGenerator[bytes]:
    """Return a whole answer as events, and a refusal as it is."""
    if answer.status_code != 200 or answer.body is None:
        return answer
    try:
        events = [event.data for event in stream_events.events(endpoint, request, answer.body)]
    except (LookupError, TypeError, AttributeError):
        return EngineAnswer.failed("engine_error", "the server gave no stream but an answer that cannot be streamed")
    return _sent(events, answer.body)


async def _sent(events: Sequence[bytes], body: dict[str, Any]) -> AsyncGenerator[bytes]:
    if (progress := PROGRESS.get()) is not None:
        usage = responses.usage(body)
        progress.input_tokens, progress.cached_tokens = usage.input_tokens or 0, usage.cached_tokens or 0
        progress.output_tokens = usage.output_tokens or 0
    for event in events:
        yield event


class JobEngine(Capabilities):
    """An engine that answers a run in a separate job. Imports Ray and torch when it is called."""

    starts_each_run: ClassVar[bool] = True

    @classmethod
    @abstractmethod
    def run(
        cls,
        spec: ModelSpec,
        endpoint: str,
        rows: pa.Table,
        *,
        request_timeout: float,
        start_timeout: float,
        stopped: threading.Event,
    ) -> Generator[pa.Table]:
        """Answer every row. Rows, tables, `stopped` and errors are those of `inference.pipeline.run`."""

    @classmethod
    @abstractmethod
    def versions(cls, spec: ModelSpec, *, start_timeout: float, stopped: threading.Event) -> dict[str, str]:
        """Return the versions as `Engine.versions` does. Raises Stopped; EngineStartError, with the reason."""


def refusal_code(message: str) -> str | None:
    """Return OpenAI's error code for the message with which vLLM, here or behind a URL, refuses a request."""
    return "context_length_exceeded" if _CONTEXT.search(message) else None


def unsupported_endpoint(model: str, endpoint: str, can: Collection[str]) -> EngineAnswer:
    """Return the answer to a request for which the model has no head. `can`: the endpoints that it answers on."""
    message = f"The model {model!r} cannot do {endpoint}; it can do {', '.join(can)}."
    return EngineAnswer.refused(message, param="url", code="unsupported_endpoint")


def first_unsupported(
    engine: str, endpoint: str, supported: Collection[str], body: dict[str, Any]
) -> tuple[str, str] | None:
    """Return the first parameter of `body` that is not supported and has an effect, as (param, message)."""
    without_effect = ENDPOINTS[endpoint].without_effect
    for key, value in body.items():
        if key == "chat_template_kwargs" and isinstance(value, dict) and (taken := sorted(RENDERING & value.keys())):
            return f"body.{key}.{taken[0]}", f"chat_template_kwargs must not set {quoted(taken[0])}"
        if key in supported or key in without_effect or value is None:
            continue
        if endpoint in (MESSAGES.path, COUNT_TOKENS.path) and changes_nothing(key, value):
            continue
        if any(value == default and type(value) in (type(default), int, float) for default in DEFAULTS.get(key, ())):
            continue
        return (
            f"body.{key}",
            f"engine {engine} does not support the parameter {quoted(key)}{hint(key, supported, 0.7)}",
        )
    return None


def first_not_text(engine: str, body: dict[str, Any]) -> tuple[str, str] | None:
    """Return the first message of `body` with a part that is no text, as (param, message)."""
    messages = body.get("messages")
    for index, message in enumerate(messages if isinstance(messages, list) else ()):
        content = message.get("content") if isinstance(message, dict) else None
        for part in content if isinstance(content, list) else ():
            if isinstance(part, dict) and part.get("type") not in ("text", "refusal"):
                return f"body.messages[{index}].content", f"engine {engine} takes text only"
    return None
