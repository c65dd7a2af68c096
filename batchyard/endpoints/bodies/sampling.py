"""Sampling parameters of a request: OpenAI's names, with vLLM's defaults."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Self

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, model_validator

from batchyard.endpoints.guards import RepetitionDetection

GREEDY_BELOW = 1e-5


def _listed(value: Any) -> Any:
    return [value] if isinstance(value, str) else value


class SamplingParameters(BaseModel):
    """The sampling parameters of one request body. Other keys are ignored; null counts as absent."""

    model_config = ConfigDict(extra="ignore", strict=True)

    temperature: float = Field(1.0, ge=0, le=2)
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
    repetition_detection: RepetitionDetection | None = None

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
        """True if the next token is the most likely one."""
        return self.greedy and not self.penalised

    @classmethod
    def of(cls, body: Mapping[str, Any], defaults: Mapping[str, Any]) -> SamplingParameters:
        """Return the parameters of `body`, with `defaults` for the others."""
        parameters = {key: value for key, value in body.items() if value is not None}
        parameters.setdefault("max_tokens", parameters.get("max_completion_tokens"))
        if body.get("max_completion_tokens") is not None:
            parameters["max_tokens"] = body["max_completion_tokens"]
        return cls.model_validate(
            {**defaults, **{key: value for key, value in parameters.items() if value is not None}}
        )
