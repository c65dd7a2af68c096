"""Options of recipe `rollout`, and what it reads of a row."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Literal, Protocol

from pydantic import BaseModel, ConfigDict, Field

from batchyard.recipes import BASIC, ColumnName, Judgement, Options, field_of
from recipes.rewards import graders

GROUND_TRUTH = "reward_model.ground_truth"
OF_REWARDS = frozenset({"data_source", "extra_info", GROUND_TRUTH.partition(".")[0]})
"""Columns of rewards, which no option names."""
UNKNOWN = "unknown"


class Sampling(BaseModel):
    """Sampling parameters of every request."""

    model_config = ConfigDict(extra="forbid")
    temperature: float = Field(1.0, ge=0, le=100, json_schema_extra=BASIC)
    top_p: float | None = Field(None, gt=0, le=1)
    top_k: int | None = Field(None, ge=-1)
    min_p: float | None = Field(None, ge=0, le=1)
    max_tokens: int | None = Field(None, ge=1, json_schema_extra=BASIC)
    max_completion_tokens: int | None = Field(None, ge=1)
    stop: str | list[str] | None = None
    presence_penalty: float | None = Field(None, ge=-2, le=2)
    frequency_penalty: float | None = Field(None, ge=-2, le=2)
    repetition_penalty: float | None = Field(None, gt=0)


class RewardOptions(Protocol):
    """Options of a recipe whose results are scored by rewards."""

    @property
    def system(self) -> str | None: ...
    @property
    def template(self) -> str | None: ...
    @property
    def ground_truth(self) -> str | None: ...
    @property
    def reward(self) -> str | dict[str, Any] | None: ...
    @property
    def grader(self) -> str | None: ...
    @property
    def extract(self) -> str | None: ...


class Rollout(Options):
    """Options of `rollout`."""

    model: str = Field(description="Model that answers")
    n: int = Field(
        1,
        ge=1,
        le=1024,
        description="Samples of each prompt, each a request with a seed of its own",
        json_schema_extra=BASIC,
    )
    sampling: Sampling = Field(
        default_factory=Sampling, description="Temperature, top_p, max_tokens and the like", json_schema_extra=BASIC
    )
    ground_truth: ColumnName[str | None] = Field(
        None, description=f"Column with the right answer, if it is not {GROUND_TRUTH}", json_schema_extra=BASIC
    )
    threshold: float | None = Field(None, description="A prompt whose sample scores this is asked no more")
    wave: int = Field(4, ge=1, le=1024, description="With `threshold`: samples asked at once")
    logprobs: bool = Field(False, description="Keep the log-probability of each token")
    response_ids: bool = Field(False, description="Keep the ids of each response's tokens")
    step: int = Field(0, description="Training step, for `samples.jsonl`")
    reward: Judgement[str | dict[str, Any] | None] = Field(
        None,
        description="Reward by name, a grader, or {data source: name}; default: that of the row's data source",
        json_schema_extra=BASIC,
    )
    extract: Judgement[str | None] = Field(
        None,
        description="What the reward gets of an answer: last_number, first_line, boxed, json:…, regex:…",
        json_schema_extra=BASIC,
    )
    keep: Judgement[Literal["all", "best", "pairs"]] = Field(
        "all", description="`best` and `pairs` also write best.jsonl and preferences.jsonl"
    )
    skip_unanswered: Judgement[bool] = Field(False, description="Leave samples without an answer out of the metrics")

    def named_columns(self) -> set[str]:
        """Return the columns that options name, and those of rewards that none names."""
        return super().named_columns() | OF_REWARDS

    def judging(self) -> set[str]:
        """Return the fields that only judge.

        With a threshold, scores say how often a prompt is asked; and a grader may be a model that is asked.
        """
        asks = self.threshold is not None or graders.of_model(self.grader) is not None
        return super().judging() - ({"reward", "extract"} if asks else set())

    @property
    def grader(self) -> str | None:
        """The JSON of a grader, if the reward is one."""
        return (
            json.dumps(self.reward, sort_keys=True) if isinstance(self.reward, dict) and "type" in self.reward else None
        )


def data_source_of(columns: Mapping[str, Any]) -> str:
    """Return a row's data source."""
    return str(columns.get("data_source") or UNKNOWN)


def ground_truth_of(columns: Mapping[str, Any], options: RewardOptions) -> Any:
    """Return a row's right answer, "" if it has none."""
    try:
        value = field_of(columns, options.ground_truth or GROUND_TRUTH)
    except KeyError:
        return ""
    return "" if value is None else value
