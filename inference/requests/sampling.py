"""How the next token of one sample is chosen: OpenAI's parameters, in vLLM's order and with its defaults."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any, Self

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, model_validator

if TYPE_CHECKING:
    import torch

GREEDY_BELOW = 1e-5
MODEL_DEFAULTS = ("temperature", "top_p", "top_k", "min_p", "repetition_penalty", "max_new_tokens")
"""What a model's generation_config.json may set for requests that do not; the same as vLLM takes from it."""


def _listed(value: Any) -> Any:
    return [value] if isinstance(value, str) else value


class Sampling(BaseModel):
    """The sampling parameters of one request body; all other keys are ignored, null is as good as absent."""

    model_config = ConfigDict(extra="ignore", strict=True)

    temperature: float = Field(1.0, ge=0, le=100)
    top_p: float = Field(1.0, gt=0, le=1)
    top_k: int = Field(0, ge=-1)
    min_p: float = Field(0.0, ge=0, le=1)
    repetition_penalty: float = Field(1.0, gt=0)
    presence_penalty: float = Field(0.0, ge=-2, le=2)
    frequency_penalty: float = Field(0.0, ge=-2, le=2)
    max_tokens: int | None = Field(None, ge=1)
    min_tokens: int = Field(0, ge=0)
    ignore_eos: bool = False
    stop: Annotated[list[str], BeforeValidator(_listed)] = Field(default_factory=list, fail_fast=True)
    seed: int | None = Field(None, ge=-(2**63), lt=2**63)
    n: int = Field(1, ge=1, le=128)
    logprobs: bool = False
    top_logprobs: int = Field(0, ge=0, le=20)

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if self.top_logprobs and not self.logprobs:
            raise ValueError("top_logprobs needs logprobs to be true")
        if any(not text for text in self.stop):
            raise ValueError("stop must not hold empty strings")
        if self.n > 1 and self.greedy:
            raise ValueError("n must be 1 where temperature is 0: all samples would be the same")
        return self

    @property
    def greedy(self) -> bool:
        return self.temperature < GREEDY_BELOW

    @property
    def penalised(self) -> bool:
        return self.repetition_penalty != 1 or bool(self.presence_penalty or self.frequency_penalty)

    @property
    def plain(self) -> bool:
        """The next token is simply the most likely one."""
        return self.greedy and not self.penalised

    @classmethod
    def of(cls, body: Mapping[str, Any], defaults: Mapping[str, Any]) -> Sampling:
        """The parameters of `body`; what it leaves open comes from `defaults`.

        Raises:
            pydantic.ValidationError: a value has the wrong type or is out of range.
        """
        given = {key: value for key, value in body.items() if value is not None}
        given.setdefault("max_tokens", given.get("max_completion_tokens"))
        if body.get("max_completion_tokens") is not None:
            given["max_tokens"] = body["max_completion_tokens"]
        return cls.model_validate({**defaults, **{key: value for key, value in given.items() if value is not None}})


def generator(seed: int | None, sample: int) -> torch.Generator:
    """The source of randomness of one sample: nothing in its batch can change it."""
    import torch

    source = torch.Generator()
    if seed is None:
        source.seed()
    else:
        source.manual_seed((seed + sample) % 2**64)
    return source


def penalise(logits: torch.Tensor, sampling: Sampling, prompt: list[int], output: list[int]) -> torch.Tensor:
    """`logits` (vocabulary,) after the penalties: repetition over prompt and output, the other two over output.

    Repetition: arXiv 1909.05858; presence and frequency: OpenAI's API reference.
    """
    import torch

    if not sampling.penalised:
        return logits
    logits = logits.clone()
    said = torch.tensor(output, dtype=torch.long)
    if sampling.repetition_penalty != 1:
        seen = torch.tensor(prompt + output, dtype=torch.long).unique()
        values = logits[seen]
        penalty = sampling.repetition_penalty
        logits[seen] = torch.where(values > 0, values / penalty, values * penalty)
    if output:
        tokens, counts = said.unique(return_counts=True)
        logits[tokens] -= sampling.frequency_penalty * counts + sampling.presence_penalty
    return logits


def choose(logits: torch.Tensor, sampling: Sampling, source: torch.Generator) -> int:
    """The next token from penalised `logits` (vocabulary,): temperature, then min_p, top_k, top_p."""
    import torch

    if sampling.greedy:
        return int(logits.argmax())
    logits = logits / sampling.temperature
    if sampling.min_p > 0:
        probabilities = logits.softmax(-1)
        logits = logits.masked_fill(probabilities < sampling.min_p * probabilities.max(), float("-inf"))
    if 0 < sampling.top_k < logits.shape[-1]:
        logits = logits.masked_fill(logits < logits.topk(sampling.top_k).values[-1], float("-inf"))
    if sampling.top_p < 1:
        ordered, order = logits.sort(descending=True)
        before = ordered.softmax(-1).cumsum(-1) - ordered.softmax(-1)
        logits = logits.index_fill(-1, order[before >= sampling.top_p], float("-inf"))
    return int(torch.multinomial(logits.softmax(-1), 1, generator=source))
