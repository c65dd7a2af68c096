"""Generation: chats and completions as samples, and the finished samples as response bodies."""

import threading
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from batchyard.endpoints.bodies.sampling import SamplingParameters
from batchyard.endpoints.catalog import CHAT
from batchyard.schema_words import invalid_values
from inference.engine import EngineAnswer
from inference.engines.transformers.decoding import Decoder, GeneratedSample, generator
from inference.engines.transformers.inputs import Inputs, Refused, each_request
from inference.engines.transformers.logprobs import LogprobWriter

COMPLETION_TOKENS = 16
"""OpenAI's default of max_tokens in /v1/completions."""
MODEL_DEFAULTS = ("temperature", "top_p", "top_k", "min_p", "repetition_penalty", "max_new_tokens")
"""Sampling defaults that a model's generation_config.json may set, the same as vLLM reads."""


class OutputOptions(BaseModel):
    """What a request wants in its answer beside the samples. Null counts as absent."""

    model_config = ConfigDict(extra="ignore", strict=True)

    echo: bool = False  # the completion's text begins with its prompt
    # How many of the most likely tokens are wanted beside each of the prompt's (vLLM's parameter)
    prompt_logprobs: int | None = Field(None, ge=0, le=20)
    # The same for a completion's tokens, and with `echo` for its prompt's
    logprobs: int | None = Field(None, ge=0, le=20)
    max_tokens: int | None = None  # 0 with `echo` is a completion that is read only
    skip_special_tokens: bool = True  # leave them out of the text (vLLM's parameter)

    @property
    def reads_only(self) -> bool:
        return self.echo and self.max_tokens == 0

    @property
    def prompt_top(self) -> int | None:
        return self.logprobs if self.prompt_logprobs is None and self.echo else self.prompt_logprobs


@dataclass
class GenerationRequest:
    """A generation request. Its samples are prompt-major: all n of the first prompt, then those of the next."""

    options: OutputOptions
    prompts: list[list[int]]
    samples: list[GeneratedSample] = field(default_factory=list)


@dataclass
class TextGenerator:
    """Answers chats and completions with a causal language model."""

    model: Any
    tokenizer: Any
    inputs: Inputs
    batch_size: int
    seconds: float
    on_step: Callable[[], None]

    def __post_init__(self) -> None:
        generation = getattr(self.model, "generation_config", None)
        settings = generation.to_diff_dict() if generation is not None else {}
        self._defaults = {key: settings[key] for key in MODEL_DEFAULTS if settings.get(key) is not None}
        if "max_new_tokens" in self._defaults:
            self._defaults["max_tokens"] = self._defaults.pop("max_new_tokens")
        ends = settings.get("eos_token_id", [])
        ends = {self.tokenizer.eos_token_id, *(ends if isinstance(ends, list) else [ends])} - {None}
        self._decoder = Decoder(self.model, self.tokenizer, frozenset(ends))
        self._logprobs = LogprobWriter(self.tokenizer)

    def answers(
        self, endpoint: str, bodies: list[dict[str, Any]], model: str, cancelled: threading.Event
    ) -> list[EngineAnswer]:
        """Answer bodies of chats or of completions. `model`: the name that response bodies have."""
        chat = endpoint == CHAT.path
        requests = each_request(bodies, partial(self._request, chat))
        samples = [
            sample for request in requests if isinstance(request, GenerationRequest) for sample in request.samples
        ]
        samples.sort(key=lambda sample: len(sample.prompt))
        for start in range(0, len(samples), self.batch_size):
            if not cancelled.is_set():
                batch = samples[start : start + self.batch_size]
                self._decoder.generate(batch, self.seconds, cancelled, self.on_step)
        return [
            request if isinstance(request, EngineAnswer) else self._response(chat, model, request)
            for request in requests
        ]

    def _request(self, chat: bool, body: dict[str, Any]) -> GenerationRequest:
        options, sampling = self._parsed(chat, body)
        prompts = [self.inputs.chat(body)] if chat else self.inputs.prompts(body.get("prompt"), "prompt")
        request = GenerationRequest(options, prompts)
        limit = sampling.max_tokens if chat else sampling.max_tokens or COMPLETION_TOKENS
        for prompt in request.prompts:
            room = self.inputs.room(prompt, "messages" if chat else "prompt", 0 if options.reads_only else limit)
            most = 1 if options.reads_only else min(limit or room, room)
            for index in range(sampling.n):
                source = generator(sampling.seed, index)
                request.samples.append(
                    GeneratedSample(
                        prompt,
                        sampling,
                        most,
                        source,
                        skip_special_tokens=options.skip_special_tokens,
                        prompt_top=options.prompt_top,
                    )
                )
        return request

    def _parsed(self, chat: bool, body: dict[str, Any]) -> tuple[OutputOptions, SamplingParameters]:
        """Return what a body wants in its answer, and how its samples are drawn. Raises Refused."""
        there = {name: value for name, value in body.items() if value is not None}
        # A chat's own `logprobs` is a yes or no, and it echoes nothing.
        wanted = {name: value for name, value in there.items() if not chat or name not in ("echo", "logprobs")}
        try:
            options = OutputOptions.model_validate(wanted)
            if not chat and options.logprobs is not None:
                there |= {"logprobs": True, "top_logprobs": options.logprobs}
            if options.reads_only:
                there["max_tokens"] = 1  # as vLLM: one token is generated, and left out
            return options, SamplingParameters.of(there, self._defaults)
        except ValidationError as error:
            first = invalid_values(error, body)[0]
            param = first.place or None
            raise Refused(f"{param or 'body'}: {first.reason}", param=param, code="invalid_value") from error

    def _response(self, chat: bool, model: str, request: GenerationRequest) -> EngineAnswer:
        if any(sample.finish_reason is None for sample in request.samples):
            return EngineAnswer.timed_out(self.seconds)
        options = request.options
        prompt_tokens = sum(len(prompt) for prompt in request.prompts)
        completion_tokens = 0 if options.reads_only else sum(len(sample.tokens) for sample in request.samples)
        choices = [self._choice(chat, index, sample, options) for index, sample in enumerate(request.samples)]
        of_prompt = self._of_prompt(request.samples[0], options) if chat else {}
        return EngineAnswer(
            200,
            {
                "id": f"{'chatcmpl' if chat else 'cmpl'}-{uuid.uuid4().hex}",
                "object": "chat.completion" if chat else "text_completion",
                "created": int(time.time()),
                "model": model,
                "choices": choices,
                **of_prompt,
                "usage": {
                    "prompt_tokens": prompt_tokens,
                    "completion_tokens": completion_tokens,
                    "total_tokens": prompt_tokens + completion_tokens,
                },
            },
        )

    def _choice(self, chat: bool, index: int, sample: GeneratedSample, options: OutputOptions) -> dict[str, Any]:
        ending = {"finish_reason": sample.finish_reason, "stop_reason": sample.stop}
        wanted = sample.sampling.logprobs
        if chat:
            message = {"role": "assistant", "content": sample.text, "refusal": None}
            logprobs = self._logprobs.chat(sample.tokens, sample.logprobs) if wanted else None
            return {"index": index, "message": message, "logprobs": logprobs, **ending}
        tokens, tops, text = sample.tokens, sample.logprobs, sample.text
        if options.reads_only:
            tokens, tops, text = [], [], ""
        texts = [tokens]
        if options.echo:
            texts, text = [sample.prompt, tokens], self.tokenizer.decode(sample.prompt) + text
        logprobs = None
        if wanted:
            logprobs = self._logprobs.completion(texts, [*sample.prompt_logprobs, *tops] if options.echo else tops)
        return {"index": index, "text": text, "logprobs": logprobs, **ending, **self._of_prompt(sample, options)}

    def _of_prompt(self, sample: GeneratedSample, options: OutputOptions) -> dict[str, Any]:
        if options.prompt_top is None:
            return {}
        return {"prompt_logprobs": self._logprobs.prompt(sample.prompt, sample.prompt_logprobs)}
