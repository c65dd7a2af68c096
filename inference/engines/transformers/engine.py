"""Engine `transformers`: torch and Hugging Face transformers in this process, batched, on any device torch has."""

import asyncio
import heapq
import itertools
import os
import threading
import time
from collections.abc import Collection
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from pydantic import BaseModel, ConfigDict, PositiveInt

from batchyard import json_lines
from batchyard.endpoints import catalog
from batchyard.endpoints.bodies.scoring import PAIRS
from batchyard.endpoints.catalog import CHAT, ENDPOINTS
from batchyard.errors import EngineStartError
from batchyard.models import ModelSpec
from inference import heads
from inference.engine import Engine, EngineAnswer, first_not_text, first_unsupported, unsupported_endpoint
from inference.engines.transformers import dialects
from inference.engines.transformers.generation import TextGenerator
from inference.engines.transformers.inputs import Inputs, Refused
from inference.engines.transformers.pooling import Pooler, pooling_of, sides
from inference.engines.weights import model_sha256
from inference.heads import Head

COMMON = frozenset({"model", "max_tokens", "temperature", "top_p", "top_k", "min_p", "repetition_penalty"}) | {
    *("presence_penalty", "frequency_penalty", "stop", "seed", "n", "ignore_eos", "min_tokens", "prompt_logprobs"),
    *("skip_special_tokens", "repetition_detection"),
}
UNKNOWN = 10**9
"""Tokenizers without a limit have one above it."""
SUPPORTED = {
    catalog.CHAT.path: COMMON
    | {"messages", "max_completion_tokens", "logprobs", "top_logprobs", "chat_template_kwargs"},
    catalog.COMPLETIONS.path: COMMON | {"prompt", "echo", "logprobs"},
    **{path: frozenset({"model", *parameters}) for path, parameters in dialects.PARAMETERS.items()},
    catalog.EMBEDDINGS.path: frozenset({"model", "input", "encoding_format"}),
    catalog.SCORE.path: frozenset({"model", "use_activation", *itertools.chain(*PAIRS)}),
    catalog.RERANK.path: frozenset({"model", "use_activation", "query", "documents", "top_n", "return_documents"}),
    catalog.CLASSIFY.path: frozenset({"model", "use_activation", "input"}),
}


class TransformersArguments(BaseModel):
    """`engine_args` of engine transformers."""

    model_config = ConfigDict(extra="forbid")

    dtype: Literal["auto", "float32", "float16", "bfloat16"] = "auto"
    device: str = "auto"
    max_model_len: PositiveInt | None = None
    batch_size: PositiveInt = 32
    attn_implementation: str | None = None
    revision: str | None = None
    trust_remote_code: bool = False


@dataclass(eq=False)
class _QueuedRequest:
    """A request that waits for its batch. `size`: its body's bytes, a guess at its length."""

    endpoint: str
    body: dict[str, Any]
    size: int
    answer: asyncio.Future[EngineAnswer]


class Transformers(Engine):
    """Answers in batches of similar length. Sampling defaults come from the model's generation_config, as in vLLM."""

    name: ClassVar[str] = "transformers"
    serves: ClassVar[Collection[str]] = SUPPORTED
    arguments: ClassVar[type[BaseModel] | None] = TransformersArguments
    batch_argument: ClassVar[str | None] = "batch_size"
    package: ClassVar[str | None] = "transformers"

    def __init__(self, spec: ModelSpec, request_timeout: float) -> None:
        super().__init__(spec, request_timeout)
        self._arguments = TransformersArguments.model_validate(spec.engine_args)
        self.capacity = 4 * self._arguments.batch_size  # so that prompts of one length meet
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="generate")
        self._waiting: list[_QueuedRequest] = []
        self._batches: asyncio.Task[None] | None = None
        self._generator: TextGenerator | None = None
        self._can: list[str] = []
        self._versions: dict[str, str] = {}

    @classmethod
    def unsupported(cls, spec: ModelSpec, endpoint: str, body: dict[str, Any]) -> tuple[str, str] | None:
        unsupported = first_unsupported(cls.name, endpoint, SUPPORTED[endpoint], body)
        if unsupported is not None:
            return unsupported
        if body.get("encoding_format") not in (None, "float", "base64"):
            return "body.encoding_format", "encoding_format must be float or base64"
        if endpoint in dialects.PARAMETERS:
            return dialects.first_not_text(endpoint, body)
        if endpoint in (catalog.SCORE.path, catalog.RERANK.path):
            try:
                sides(body)
            except Refused as refusal:
                assert refusal.answer.body is not None
                error = refusal.answer.body["error"]
                return f"body.{error['param']}", error["message"]
            return None
        return first_not_text(cls.name, body)

    @classmethod
    def cache_bytes(cls, spec: ModelSpec, token_bytes: int | None) -> int | None:
        arguments = TransformersArguments.model_validate(spec.engine_args)
        if token_bytes is None or arguments.max_model_len is None:
            return None
        return arguments.batch_size * arguments.max_model_len * token_bytes

    @classmethod
    def reproducible_refusal(cls, spec: ModelSpec) -> str | None:
        if TransformersArguments.model_validate(spec.engine_args).batch_size == 1:
            return None
        return "answers depend on the requests of a batch and their padding; set engine_args.batch_size = 1"

    async def start(self) -> None:
        try:
            await asyncio.get_running_loop().run_in_executor(self._thread, self._load)
        except Exception as error:  # whatever loading a model may raise, it is why the engine does not start
            raise EngineStartError(f"{type(error).__name__}: {error}") from error

    async def answer(self, endpoint: str, body: dict[str, Any]) -> EngineAnswer:
        waiting = _QueuedRequest(
            endpoint, body, len(json_lines.dumps(body)), asyncio.get_running_loop().create_future()
        )
        self._waiting.append(waiting)
        if self._batches is None or self._batches.done():
            self._batches = asyncio.create_task(self._run_batches())
        return await waiting.answer

    def versions(self) -> dict[str, str]:
        return dict(self._versions)

    async def stop(self) -> None:
        self._thread.shutdown(wait=False, cancel_futures=True)

    async def _run_batches(self) -> None:
        """Run batches until none waits, each of requests most like the oldest in size."""
        while wanted := [waiting for waiting in self._waiting if not waiting.answer.done()]:
            alike = [waiting for waiting in wanted if waiting.endpoint == wanted[0].endpoint]
            size = wanted[0].size
            batch = heapq.nsmallest(self._arguments.batch_size, alike, key=lambda waiting: abs(waiting.size - size))
            self._waiting = [waiting for waiting in wanted if waiting not in batch]
            await self._run_batch(batch)

    async def _run_batch(self, batch: list[_QueuedRequest]) -> None:
        unwanted = threading.Event()

        def stop_unwanted(_: object) -> None:
            if all(waiting.answer.done() for waiting in batch):
                unwanted.set()

        for waiting in batch:
            waiting.answer.add_done_callback(stop_unwanted)
        endpoint, bodies = batch[0].endpoint, [waiting.body for waiting in batch]
        loop = asyncio.get_running_loop()
        try:
            answers = await loop.run_in_executor(self._thread, self._answers, endpoint, bodies, unwanted)
        except Exception as error:  # noqa: BLE001  whatever it is, those who wait for the answers have to hear of it
            for waiting in batch:
                if not waiting.answer.done():
                    waiting.answer.set_exception(error)
            return
        for waiting, answer in zip(batch, answers, strict=True):
            if not waiting.answer.done():
                waiting.answer.set_result(answer)

    def _load(self) -> None:
        import torch
        import transformers

        # Ray gives an actor with a share of a CPU one thread.
        torch.set_num_threads(len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1)
        arguments, source = self._arguments, self.spec.source
        common = {"revision": arguments.revision, "trust_remote_code": arguments.trust_remote_code}
        tokenizer = transformers.AutoTokenizer.from_pretrained(source, **common)
        model, head = self._model(common)
        device = arguments.device
        if device == "auto":
            device = "cuda" if torch.cuda.is_available() else "mps" if torch.backends.mps.is_available() else "cpu"
        model.eval().to(device)
        # Some encoders have more positions than tokens: those of RoBERTa begin behind that of the padding.
        limits = [getattr(model.config, "max_position_embeddings", None)]
        limits += [tokenizer.model_max_length] if head != "generate" else []
        longest = min((limit for limit in limits if limit and limit < UNKNOWN), default=None)
        if arguments.max_model_len and longest and arguments.max_model_len > longest:
            raise ValueError(f"max_model_len {arguments.max_model_len} is more than the model's {longest}")
        vocabulary = model.get_input_embeddings().weight.shape[0]
        inputs = Inputs(tokenizer, vocabulary, arguments.max_model_len or longest or 2048)
        batches: dict[str, Any] = {"batch_size": arguments.batch_size, "on_step": self._show_work}
        if head == "generate":
            self._generator = TextGenerator(model, tokenizer, inputs, seconds=self.request_timeout, **batches)
        padding = getattr(model.config, "pad_token_id", None)
        if padding is None:  # a classifier that reads the last token finds it by the padding
            padding = tokenizer.pad_token_id if tokenizer.pad_token_id is not None else tokenizer.eos_token_id or 0
            model.config.pad_token_id = padding
        pooling = pooling_of(source, arguments.revision)
        self._pooler = Pooler(model, inputs, head, pooling=pooling, padding=padding, **batches)
        self._can = [path for path in self.serves if path not in heads.CANNOT[head]]
        self._versions = {
            "engine": self.name,
            "version": transformers.__version__,
            "torch": torch.__version__,
            "model": source,
            "model_sha256": model_sha256(source),
            "dtype": str(model.dtype).removeprefix("torch."),
            "device": str(model.device),
        }

    def _model(self, common: dict[str, Any]) -> tuple[Any, Head]:
        """Load the model with the head that its architecture has, or without one if none of its endpoints generates."""
        import transformers

        arguments, source = self._arguments, self.spec.source
        config = transformers.AutoConfig.from_pretrained(source, **common)
        head = heads.head({**config.to_dict(), "id2label": config.id2label})
        if head in (None, "generate"):
            head = "generate" if any(ENDPOINTS[path].generates for path in self.spec.endpoints) else "embed"
        kinds: dict[Head, Any] = {
            "generate": transformers.AutoModelForCausalLM,
            "classify": transformers.AutoModelForSequenceClassification,
            "score": transformers.AutoModelForSequenceClassification,
            "embed": transformers.AutoModel,
        }
        model = kinds[head].from_pretrained(
            source, dtype=arguments.dtype, attn_implementation=arguments.attn_implementation, **common
        )
        return model, head

    def _answers(self, endpoint: str, bodies: list[dict[str, Any]], cancelled: threading.Event) -> list[EngineAnswer]:
        name = self.spec.name
        if endpoint not in self._can:
            return [unsupported_endpoint(name, endpoint, self._can)] * len(bodies)
        if not ENDPOINTS[endpoint].generates:
            return self._pooler.answers(endpoint, bodies, name, cancelled)
        assert self._generator is not None
        if endpoint not in dialects.PARAMETERS:
            return self._generator.answers(endpoint, bodies, name, cancelled)
        chats = self._generator.answers(CHAT.path, [dialects.chat(endpoint, body) for body in bodies], name, cancelled)
        return [dialects.answer(endpoint, body, name, chat) for body, chat in zip(bodies, chats, strict=True)]

    def _show_work(self) -> None:
        self.answered_at = time.monotonic()
