"""Options of recipe `refine`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field

from batchyard.recipes import BASIC, NestedOptions, Options
from recipes.gates import parse
from recipes.refine.policy import Rules
from recipes.refine.votes import Strategy
from recipes.rollout.options import Sampling

REVIEW = (
    "Review this answer:\n\n{answer}\n\nIs it right and complete? Write PASS or FAIL as the first line, and nothing "
    "else on that line. After FAIL, say what is wrong."
)
ARBITRATE = "These answers were given:\n\n{candidates}\n\nWhich of them is right? Answer with its number alone."


def _as(name: str) -> Callable[[Any], Any]:
    """Return what makes an object with this field of a text."""
    return lambda value: {name: value} if isinstance(value, str) else value


def _gate(value: Any) -> Any:
    if not isinstance(value, str):
        return value
    name, parameter = parse(value)
    return {"gate": name, "value": parameter}


class TierOptions(NestedOptions):
    """A model that answers, with its own number of attempts and its own sampling."""

    model: str
    budget: int | None = Field(None, ge=1, le=100, description="Most attempts; the policy's if it is left out")
    sampling: Sampling | None = None


class GateOptions(NestedOptions):
    """A gate that an answer has to pass. The category of its failures is the gate's own unless it stands here."""

    gate: str
    value: Any = None
    category: str | None = None


class ReviewerOptions(NestedOptions):
    """A model that sees the task and the answer, and says PASS or FAIL."""

    model: str
    prompt: str = Field(REVIEW, description="What follows the task, with place {answer}")
    sampling: Sampling = Sampling(temperature=0)


class ArbiterOptions(NestedOptions):
    """A model that decides a tie of votes."""

    model: str
    prompt: str = Field(ARBITRATE, description="What follows the task, with place {candidates}")
    structured: bool = Field(True, description="Hold it to the form of its answer; false: where no engine can")


class VoteOptions(NestedOptions):
    """Models that answer the task, too: what is extracted of all answers is counted."""

    models: list[str] = Field(min_length=1, max_length=16)
    n: int = Field(1, ge=1, le=64, description="Answers of each model")
    extract: str = Field(description="What of an answer is the vote: last_number, first_line, boxed, json:…, regex:…")
    strategy: Strategy = "majority"
    weights: dict[str, Annotated[float, Field(gt=0)]] = Field(
        {}, description="With `weighted`, by model; others have 1"
    )
    arbiter: (
        Annotated[ArbiterOptions, BeforeValidator(_as("model"), json_schema_input_type=str | ArbiterOptions)] | None
    ) = Field(None, description="Model that decides a tie")
    sampling: Sampling | None = None


class PolicyOptions(NestedOptions):
    """When an item goes to the next tier, or to a person."""

    unchanged: int = Field(3, ge=2, description="Equal answers in a row after which a person is needed")
    repeat: int = Field(2, ge=1, description="Attempts in a row with one category that end a tier")
    failures: int = Field(3, ge=1, description="An attempt with more failures than these ends a tier")
    budget: int = Field(4, ge=1, le=100, description="Most attempts on the first tier")
    later_budget: int = Field(6, ge=1, le=100, description="Most attempts on each later tier")
    friction: int = Field(4, ge=2, description="Attempts after which a tier has to make progress")
    stalled: int = Field(4, ge=2, description="Attempts over which failures have to fall then")
    categories: int = Field(3, ge=1, description="More categories than these are no progress then")


class Prompts(NestedOptions):
    """What follows the task after a failure. Place {feedback} has a line for each failure, {answer} the answer."""

    retry: str = (
        "Your answer:\n\n{answer}\n\nIt was not accepted:\n\n{feedback}\n\n"
        "Answer again. Write the whole answer and nothing else."
    )
    escalate: str = "An earlier answer was not accepted:\n\n{feedback}"


class Refine(Options):
    """Options of `refine`."""

    tiers: list[Annotated[TierOptions, BeforeValidator(_as("model"), json_schema_input_type=str | TierOptions)]] = (
        Field(min_length=1, max_length=16, description="Models in the order in which they try")
    )
    gates: list[Annotated[GateOptions, BeforeValidator(_gate, json_schema_input_type=str | GateOptions)]] = Field(
        [],
        max_length=32,
        description="What answers have to pass: `name:value` or {gate, value, category}",
        json_schema_extra=BASIC,
    )
    mode: Literal["fail_fast", "comprehensive"] = Field(
        "fail_fast", description="After a failed gate the others are left out, or are checked, too"
    )
    reviewer: (
        Annotated[ReviewerOptions, BeforeValidator(_as("model"), json_schema_input_type=str | ReviewerOptions)] | None
    ) = Field(None, description="Model that sees task and answer alone, and says PASS or FAIL", json_schema_extra=BASIC)
    probes: float = Field(
        0.02, ge=0, le=1, description="Share of reviews after which the reviewer is tried, about 20 or more"
    )
    votes: VoteOptions | None = Field(None, description="Models whose answers are counted beside the first one")
    policy: PolicyOptions = Field(PolicyOptions(), description="When an item goes to the next tier, or to a person")
    feedback: bool = Field(True, description="Tell the writer what was wrong; false where a gate knows the answer")
    prompts: Prompts = Field(Prompts(), description="What the writer is told after a failure")
    sampling: Sampling = Field(
        Sampling(), description="Temperature, top_p, max_tokens and the like of the writers", json_schema_extra=BASIC
    )
    structure: dict[Literal["json", "regex", "choice", "grammar"], Any] | None = Field(
        None, min_length=1, max_length=1, description="Hold answers to a form: one of json, regex, choice, grammar"
    )

    def rules(self) -> Rules:
        """Return the policy with the budget of each tier."""
        budgets = tuple(
            tier.budget or (self.policy.later_budget if number else self.policy.budget)
            for number, tier in enumerate(self.tiers)
        )
        return Rules(budgets, **self.policy.model_dump(exclude={"budget", "later_budget"}))
