"""Engine `transformers`: torch and Hugging Face transformers in this process, batched, on any device torch has."""

from __future__ import annotations

import asyncio
import base64
import heapq
import os
import threading
import time
import uuid
from array import array
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

import orjson
from pydantic import BaseModel, ConfigDict, PositiveInt, ValidationError

from batchyard.endpoints.bodies.sampling import SamplingParameters
from batchyard.errors import EngineStartError
from batchyard.models import ModelSpec
from batchyard.schema_words import invalid_values
from inference.engine import Engine, EngineAnswer, first_not_text, first_unsupported
from inference.engines.transformers.decoding import Decoder, GeneratedSample
from inference.engines.transformers.sampling import generator
from inference.engines.weights import model_sha256

COMMON = frozenset({"model", "max_tokens", "temperature", "top_p", "top_k", "min_p", "repetition_penalty"}) | {
    "presence_penalty",
    "frequency_penalty",
    "stop",
    "seed",
    "n",
    "ignore_eos",
    "min_tokens",
}
SUPPORTED = {
    "/v1/chat/completions": COMMON
    | {"messages", "max_completion_tokens", "logprobs", "top_logprobs", "chat_template_kwargs"},
    "/v1/completions": COMMON | {"prompt"},
    "/v1/embeddings": frozenset({"model", "input", "encoding_format"}),
}
MODEL_DEFAULTS = ("temperature", "top_p", "top_k", "min_p", "repetition_penalty", "max_new_tokens")
"""Sampling defaults that a model's generation_config.json may set, the same as vLLM reads."""
COMPLETION_TOKENS = 16
"""OpenAI's default of max_tokens in /v1/completions."""


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


class Refused(ValueError):
    """The engine refuses a request with `answer`."""

    def __init__(self, message: str, *, param: str | None = None, code: str | None = None) -> None:
        super().__init__(message)
        self.answer = EngineAnswer.refused(message, param=param, code=code)


@dataclass
class GenerationRequest:
    """A generation request. Its samples are prompt-major: all n of the first prompt, then those of the next."""

    body: dict[str, Any]
    prompts: list[list[int]]
    samples: list[GeneratedSample] = field(default_factory=list)


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
        self._versions: dict[str, str] = {}

    @classmethod
    def unsupported(cls, spec: ModelSpec, endpoint: str, body: dict[str, Any]) -> tuple[str, str] | None:
        unsupported = first_unsupported(cls.name, endpoint, SUPPORTED[endpoint], body)
        if unsupported is not None:
            return unsupported
        if body.get("encoding_format") not in (None, "float", "base64"):
            return "body.encoding_format", "encoding_format must be float or base64"
        return first_not_text(cls.name, body)

    @classmethod
    def cache_bytes(cls, spec: ModelSpec, token_bytes: int | None) -> int | None:
        arguments = TransformersArguments.model_validate(spec.engine_args)
        if token_bytes is None or arguments.max_model_len is None:
            return None
        return arguments.batch_size * arguments.max_model_len * token_bytes

    async def start(self) -> None:
        try:
            await asyncio.get_running_loop().run_in_executor(self._thread, self._load)
        except Exception as error:  # whatever loading a model may raise, it is why the engine does not start
            raise EngineStartError(f"{type(error).__name__}: {error}") from error

    async def answer(self, endpoint: str, body: dict[str, Any]) -> EngineAnswer:
        waiting = _QueuedRequest(endpoint, body, len(orjson.dumps(body)), asyncio.get_running_loop().create_future())
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
        work = self._embed if endpoint == "/v1/embeddings" else self._generate
        try:
            answers = await asyncio.get_running_loop().run_in_executor(self._thread, work, endpoint, bodies, unwanted)
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
        self._tokenizer = transformers.AutoTokenizer.from_pretrained(source, **common)
        embeds = self.spec.endpoints == ("/v1/embeddings",)
        kind = transformers.AutoModel if embeds else transformers.AutoModelForCausalLM
        self._model = kind.from_pretrained(
            source, dtype=arguments.dtype, attn_implementation=arguments.attn_implementation, **common
        )
        self._model.eval().to(_device(arguments.device))
        longest = getattr(self._model.config, "max_position_embeddings", None)
        if arguments.max_model_len and longest and arguments.max_model_len > longest:
            raise ValueError(f"max_model_len {arguments.max_model_len} is more than the model's {longest}")
        self._longest: int = arguments.max_model_len or longest or 2048
        generation = getattr(self._model, "generation_config", None)
        settings = generation.to_diff_dict() if generation is not None else {}
        self._defaults = {key: settings[key] for key in MODEL_DEFAULTS if settings.get(key) is not None}
        if "max_new_tokens" in self._defaults:
            self._defaults["max_tokens"] = self._defaults.pop("max_new_tokens")
        ends = settings.get("eos_token_id", [])
        ends = {self._tokenizer.eos_token_id, *(ends if isinstance(ends, list) else [ends])} - {None}
        self._decoder = Decoder(self._model, self._tokenizer, frozenset(ends))
        self._versions = {
            "engine": self.name,
            "version": transformers.__version__,
            "torch": torch.__version__,
            "model": source,
            "model_sha256": model_sha256(source),
            "dtype": str(self._model.dtype).removeprefix("torch."),
            "device": str(self._model.device),
        }

    def _generate(self, endpoint: str, bodies: list[dict[str, Any]], cancelled: threading.Event) -> list[EngineAnswer]:
        requests: list[GenerationRequest | EngineAnswer] = []
        for body in bodies:
            try:
                requests.append(self._request(endpoint, body))
            except Refused as refusal:
                requests.append(refusal.answer)
        samples = [
            sample for request in requests if isinstance(request, GenerationRequest) for sample in request.samples
        ]
        samples.sort(key=lambda sample: len(sample.prompt))
        for start in range(0, len(samples), self._arguments.batch_size):
            if not cancelled.is_set():
                batch = samples[start : start + self._arguments.batch_size]
                self._decoder.generate(batch, self.request_timeout, cancelled, self._show_work)
        return [
            request if isinstance(request, EngineAnswer) else self._response(endpoint, request) for request in requests
        ]

    def _show_work(self) -> None:
        self.answered_at = time.monotonic()

    def _request(self, endpoint: str, body: dict[str, Any]) -> GenerationRequest:
        chat = endpoint == "/v1/chat/completions"
        try:
            sampling = SamplingParameters.of(body, self._defaults)
        except ValidationError as error:
            first = invalid_values(error, body)[0]
            param = first.place or None
            raise Refused(f"{param or 'body'}: {first.reason}", param=param, code="invalid_value") from error
        request = GenerationRequest(
            body, [self._chat_prompt(body)] if chat else self._prompts(body.get("prompt"), "prompt")
        )
        limit = sampling.max_tokens if chat else sampling.max_tokens or COMPLETION_TOKENS
        for prompt in request.prompts:
            room = self._room(prompt, "messages" if chat else "prompt", limit)
            for index in range(sampling.n):
                source = generator(sampling.seed, index)
                request.samples.append(GeneratedSample(prompt, sampling, min(limit or room, room), source))
        return request

    def _room(self, prompt: list[int], param: str, limit: int | None) -> int:
        """Return the tokens that fit behind the prompt, to which a limit is cut. Raises Refused."""
        room = self._longest - len(prompt)
        if not prompt:
            raise Refused(f"{param} must not be empty", param=param, code="invalid_value")
        if room < 1 or (limit or 0) > self._longest:
            raise Refused(
                f"This model's maximum context length is {self._longest} tokens. However, {param} has "
                f"{len(prompt)} tokens and {limit or 1} are to be generated.",
                param=param,
                code="context_length_exceeded",
            )
        return room

    def _chat_prompt(self, body: dict[str, Any]) -> list[int]:
        from jinja2 import TemplateError

        messages = body.get("messages")
        if not isinstance(messages, list) or not all(isinstance(message, dict) for message in messages):
            raise Refused("messages must be a list of objects", param="messages", code="invalid_type")
        flat = [{**message, "content": _text(message.get("content"))} for message in messages]
        try:
            text = self._tokenizer.apply_chat_template(
                flat, tokenize=False, add_generation_prompt=True, **(body.get("chat_template_kwargs") or {})
            )
        except (TemplateError, ValueError, TypeError, KeyError) as error:
            raise Refused(f"the model's chat template refuses the messages: {error}", param="messages") from error
        return list(self._tokenizer(text, add_special_tokens=False)["input_ids"])

    def _prompts(self, value: Any, param: str) -> list[list[int]]:
        """Return a prompt, or a list of them, as lists of token ids. Raises Refused."""
        if isinstance(value, str):
            return [list(self._tokenizer(value)["input_ids"])]
        if isinstance(value, list) and value:
            if all(isinstance(part, str) for part in value):
                return [list(self._tokenizer(part)["input_ids"]) for part in value]
            if all(isinstance(part, int) for part in value):
                value = [value]
            if all(isinstance(part, list) and all(map(self._is_token, part)) for part in value):
                return [list(part) for part in value]
        raise Refused(f"{param} must be text, token ids or a list of either", param=param, code="invalid_type")

    def _is_token(self, value: Any) -> bool:
        return type(value) is int and 0 <= value < self._model.get_input_embeddings().weight.shape[0]

    def _response(self, endpoint: str, request: GenerationRequest) -> EngineAnswer:
        if any(sample.finish_reason is None for sample in request.samples):
            return EngineAnswer.timed_out(self.request_timeout)
        chat = endpoint == "/v1/chat/completions"
        prompt_tokens = sum(len(prompt) for prompt in request.prompts)
        completion_tokens = sum(len(sample.tokens) for sample in request.samples)
        return EngineAnswer(
            200,
            {
                "id": f"{'chatcmpl' if chat else 'cmpl'}-{uuid.uuid4().hex}",
                "object": "chat.completion" if chat else "text_completion",
                "created": int(time.time()),
                "model": self.spec.name,
                "choices": [self._choice(chat, index, sample) for index, sample in enumerate(request.samples)],
                "usage": {
                    "prompt_tokens": prompt_tokens,
                    "completion_tokens": completion_tokens,
                    "total_tokens": prompt_tokens + completion_tokens,
                },
            },
        )

    def _choice(self, chat: bool, index: int, sample: GeneratedSample) -> dict[str, Any]:
        logprobs = None
        if sample.sampling.logprobs:
            content = [
                {**self._token(token, logprob), "top_logprobs": [self._token(*pair) for pair in top]}
                for token, (logprob, top) in zip(sample.tokens, sample.logprobs, strict=True)
            ]
            logprobs = {"content": content, "refusal": None}
        message = {"role": "assistant", "content": sample.text, "refusal": None}
        output: dict[str, Any] = {"message": message} if chat else {"text": sample.text}
        return {"index": index, **output, "logprobs": logprobs, "finish_reason": sample.finish_reason}

    def _token(self, token: int, logprob: float) -> dict[str, Any]:
        text = self._tokenizer.decode([token])
        return {"token": text, "logprob": logprob, "bytes": list(text.encode())}

    def _embed(self, endpoint: str, bodies: list[dict[str, Any]], cancelled: threading.Event) -> list[EngineAnswer]:
        """Return the mean of the last hidden states over the real tokens, with length 1."""
        prompts: list[list[int]] = []
        owners: list[range | EngineAnswer] = []
        for body in bodies:
            try:
                inputs = self._prompts(body.get("input"), "input")
                for prompt in inputs:
                    self._room(prompt, "input", 0)
            except Refused as refusal:
                owners.append(refusal.answer)
            else:
                owners.append(range(len(prompts), len(prompts) + len(inputs)))
                prompts += inputs
        vectors: dict[int, list[float]] = {}
        order = sorted(range(len(prompts)), key=lambda index: len(prompts[index]))
        for start in range(0, len(order), self._arguments.batch_size):
            if not cancelled.is_set():
                batch = order[start : start + self._arguments.batch_size]
                vectors.update(zip(batch, self._vectors([prompts[index] for index in batch]), strict=True))
                self._show_work()
        return [
            owner
            if isinstance(owner, EngineAnswer)
            else self._embeddings(body, [(vectors[index], len(prompts[index])) for index in owner])
            for owner, body in zip(owners, bodies, strict=True)
        ]

    def _vectors(self, prompts: list[list[int]]) -> list[list[float]]:
        import torch

        width = max(len(prompt) for prompt in prompts)
        device = self._model.device
        # Padding on the right: a causal model never attends to it, and the mask hides it from any other.
        inputs = torch.tensor([prompt + [0] * (width - len(prompt)) for prompt in prompts], device=device)
        mask = torch.tensor([[1] * len(prompt) + [0] * (width - len(prompt)) for prompt in prompts], device=device)
        with torch.inference_mode():
            states = self._model.base_model(input_ids=inputs, attention_mask=mask).last_hidden_state.float()
            weights = mask.unsqueeze(-1).float()
            means = (states * weights).sum(1) / weights.sum(1)
            vectors: list[list[float]] = torch.nn.functional.normalize(means, dim=-1).cpu().tolist()
        return vectors

    def _embeddings(self, body: dict[str, Any], vectors: list[tuple[list[float], int]]) -> EngineAnswer:
        tokens = sum(count for _, count in vectors)
        packed = body.get("encoding_format") == "base64"
        data = [
            {
                "object": "embedding",
                "index": index,
                "embedding": base64.b64encode(array("f", vector).tobytes()).decode() if packed else vector,
            }
            for index, (vector, _) in enumerate(vectors)
        ]
        usage = {"prompt_tokens": tokens, "total_tokens": tokens}
        return EngineAnswer(200, {"object": "list", "data": data, "model": self.spec.name, "usage": usage})


def _device(name: str) -> str:
    import torch

    if name != "auto":
        return name
    if torch.cuda.is_available():
        return "cuda"
    return "mps" if torch.backends.mps.is_available() else "cpu"


def _text(content: Any) -> Any:
    """Join OpenAI's list of text parts."""
    if not isinstance(content, list):
        return content
    return "\n".join(part.get("text") or part.get("refusal") or "" for part in content)
