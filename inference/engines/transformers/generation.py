"""Generation: chats and completions as samples, and the finished samples as response bodies."""

from __future__ import annotations

import threading
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from pydantic import ValidationError

from batchyard.endpoints.bodies.sampling import SamplingParameters
from batchyard.endpoints.catalog import CHAT
from batchyard.schema_words import invalid_values
from inference.engine import EngineAnswer
from inference.engines.transformers.decoding import Decoder, GeneratedSample
from inference.engines.transformers.inputs import Inputs, Refused
from inference.engines.transformers.sampling import generator

COMPLETION_TOKENS = 16
"""OpenAI's default of max_tokens in /v1/completions."""
MODEL_DEFAULTS = ("temperature", "top_p", "top_k", "min_p", "repetition_penalty", "max_new_tokens")
"""Sampling defaults that a model's generation_config.json may set, the same as vLLM reads."""


@dataclass
class GenerationRequest:
    """A generation request. Its samples are prompt-major: all n of the first prompt, then those of the next."""

    body: dict[str, Any]
    prompts: list[list[int]]
    samples: list[GeneratedSample] = field(default_factory=list)


class TextGenerator:
    """Answers chats and completions with a causal language model.

    `seconds`: the longest that the samples of a batch may take. `on_step` is called after each token.
    """

    def __init__(
        self,
        model: Any,
        tokenizer: Any,
        inputs: Inputs,
        *,
        batch_size: int,
        seconds: float,
        on_step: Callable[[], None],
    ) -> None:
        self._tokenizer = tokenizer
        self._inputs = inputs
        self._batch_size = batch_size
        self._seconds = seconds
        self._on_step = on_step
        generation = getattr(model, "generation_config", None)
        settings = generation.to_diff_dict() if generation is not None else {}
        self._defaults = {key: settings[key] for key in MODEL_DEFAULTS if settings.get(key) is not None}
        if "max_new_tokens" in self._defaults:
            self._defaults["max_tokens"] = self._defaults.pop("max_new_tokens")
        ends = settings.get("eos_token_id", [])
        ends = {tokenizer.eos_token_id, *(ends if isinstance(ends, list) else [ends])} - {None}
        self._decoder = Decoder(model, tokenizer, frozenset(ends))

    def answers(
        self, endpoint: str, bodies: list[dict[str, Any]], model: str, cancelled: threading.Event
    ) -> list[EngineAnswer]:
        """Answer bodies of chats or of completions. `model`: the name that response bodies have."""
        chat = endpoint == CHAT.path
        requests: list[GenerationRequest | EngineAnswer] = []
        for body in bodies:
            try:
                requests.append(self._request(chat, body))
            except Refused as refusal:
                requests.append(refusal.answer)
        samples = [
            sample for request in requests if isinstance(request, GenerationRequest) for sample in request.samples
        ]
        samples.sort(key=lambda sample: len(sample.prompt))
        for start in range(0, len(samples), self._batch_size):
            if not cancelled.is_set():
                batch = samples[start : start + self._batch_size]
                self._decoder.generate(batch, self._seconds, cancelled, self._on_step)
        return [
            request if isinstance(request, EngineAnswer) else self._response(chat, model, request)
            for request in requests
        ]

    def _request(self, chat: bool, body: dict[str, Any]) -> GenerationRequest:
        try:
            sampling = SamplingParameters.of(body, self._defaults)
        except ValidationError as error:
            first = invalid_values(error, body)[0]
            param = first.place or None
            raise Refused(f"{param or 'body'}: {first.reason}", param=param, code="invalid_value") from error
        prompts = [self._inputs.chat(body)] if chat else self._inputs.prompts(body.get("prompt"), "prompt")
        request = GenerationRequest(body, prompts)
        limit = sampling.max_tokens if chat else sampling.max_tokens or COMPLETION_TOKENS
        for prompt in request.prompts:
            room = self._inputs.room(prompt, "messages" if chat else "prompt", limit)
            for index in range(sampling.n):
                source = generator(sampling.seed, index)
                request.samples.append(GeneratedSample(prompt, sampling, min(limit or room, room), source))
        return request

    def _response(self, chat: bool, model: str, request: GenerationRequest) -> EngineAnswer:
        if any(sample.finish_reason is None for sample in request.samples):
            return EngineAnswer.timed_out(self._seconds)
        prompt_tokens = sum(len(prompt) for prompt in request.prompts)
        completion_tokens = sum(len(sample.tokens) for sample in request.samples)
        return EngineAnswer(
            200,
            {
                "id": f"{'chatcmpl' if chat else 'cmpl'}-{uuid.uuid4().hex}",
                "object": "chat.completion" if chat else "text_completion",
                "created": int(time.time()),
                "model": model,
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
        ending = {"finish_reason": sample.finish_reason, "stop_reason": sample.stop}
        return {"index": index, **output, "logprobs": logprobs, **ending}

    def _token(self, token: int, logprob: float) -> dict[str, Any]:
        text = self._tokenizer.decode([token])
        return {"token": text, "logprob": logprob, "bytes": list(text.encode())}
