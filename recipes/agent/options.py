"""Options of recipe `agent`."""

from typing import Any, Literal

from pydantic import Field

from batchyard.endpoints.catalog import CHAT, RESPONSES
from batchyard.recipes import BASIC, ColumnName, Judgement
from recipes.options import SamplingOption
from recipes.rewards import graders
from recipes.rollout.options import GROUND_TRUTH, RewardOptions

ENDPOINTS = {"chat": CHAT.path, "responses": RESPONSES.path}


class AgentLoop(RewardOptions):
    """Options of `agent`."""

    model: str = Field(description="Model that answers")
    tools: list[str] = Field([], max_length=128, description="Tools that it may call", json_schema_extra=BASIC)
    max_turns: int = Field(8, ge=1, le=500, description="Most requests of one item", json_schema_extra=BASIC)
    max_tokens: int | None = Field(None, ge=1, description="Most tokens of all answers of one item")
    budget: int | None = Field(
        None, ge=1, description="No request after so many tokens, read and written, of one item's requests"
    )
    stop_tool: str | None = Field(None, description="Tool that hands over the result: a call of it is the last one")
    tool_choice: Literal["auto", "required"] | None = Field(None, description="`required`: each answer is a call")
    endpoint: Literal["chat", "responses"] = Field("chat", description="Endpoint of the requests")
    sampling: SamplingOption
    logprobs: bool = Field(False, description="Keep the log-probability of each token")
    response_ids: bool = Field(False, description="Keep the ids of the tokens of prompts and answers")
    ground_truth: ColumnName[str | None] = Field(
        None, description=f"Column with the right answer, if it is not {GROUND_TRUTH}"
    )
    reward: Judgement[str | dict[str, Any] | None] = Field(
        None,
        description="Reward by name, a grader, or {data source: name}; default: that of the row's data source, if any",
        json_schema_extra=BASIC,
    )
    extract: Judgement[str | None] = Field(
        None, description="What the reward gets of the result: last_number, first_line, boxed, json:…, regex:…"
    )

    def judging(self) -> set[str]:
        """Return the fields that only judge. A grader may be a model that is asked."""
        return super().judging() - ({"reward", "extract"} if graders.of_model(self.grader) is not None else set())

    @property
    def path(self) -> str:
        return ENDPOINTS[self.endpoint]

    def parameters(self) -> dict[str, Any]:
        """Return the endpoint's parameters. `max_tokens` is the loop's, never that of one answer."""
        values = self.sampling.model_dump(exclude_none=True)
        limits = [values.pop(name, None) for name in ("max_completion_tokens", "max_tokens")]
        name = "max_output_tokens" if self.endpoint == "responses" else "max_completion_tokens"
        values |= {name: limits[0] or limits[1], "tool_choice": self.tool_choice if self.tools else None}
        return values | {"logprobs": self.logprobs or None, "return_token_ids": self.response_ids or None}
