"""Options of recipe `rollout`, and what it reads of a row."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Literal

from pydantic import Field

from batchyard.recipes import BASIC, ColumnName, Judgement, Options
from recipes.options import SamplingOption, column_of
from recipes.rewards import graders

GROUND_TRUTH = "reward_model.ground_truth"
OF_REWARDS = frozenset({"data_source", "extra_info", GROUND_TRUTH.partition(".")[0]})
"""Columns of rewards, which no option names."""
UNKNOWN = "unknown"


class RewardOptions(Options):
    """Options of a recipe whose results are scored by rewards."""

    if TYPE_CHECKING:  # fields of the recipes, each in its own place among the others
        ground_truth: str | None
        reward: str | dict[str, Any] | None
        extract: str | None

    def named_columns(self) -> set[str]:
        """Return the columns that options name, and those of rewards that none names."""
        return super().named_columns() | OF_REWARDS

    @property
    def grader(self) -> str | None:
        """The JSON of a grader, if the reward is one."""
        is_grader = isinstance(self.reward, dict) and "type" in self.reward
        return json.dumps(self.reward, sort_keys=True) if is_grader else None


class Rollout(RewardOptions):
    """Options of `rollout`."""

    model: str = Field(description="Model that answers")
    n: int = Field(
        1,
        ge=1,
        le=1024,
        description="Samples of each prompt, each a request with a seed of its own",
        json_schema_extra=BASIC,
    )
    sampling: SamplingOption
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

    def judging(self) -> set[str]:
        """Return the fields that only judge.

        With a threshold, scores say how often a prompt is asked; and a grader may be a model that is asked.
        """
        asks = self.threshold is not None or graders.of_model(self.grader) is not None
        return super().judging() - ({"reward", "extract"} if asks else set())


def data_source_of(columns: Mapping[str, Any]) -> str:
    return str(columns.get("data_source") or UNKNOWN)


def ground_truth_of(columns: Mapping[str, Any], options: RewardOptions) -> Any:
    """Return a row's right answer, "" if it has none."""
    value = column_of(columns, options.ground_truth or GROUND_TRUTH)
    return "" if value is None else value
