"""Options of recipe `refine`."""

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field

from batchyard.recipes import BASIC, NestedOptions, Options
from batchyard.wording import quoted, suggestion
from recipes.gates import BUILT_IN, json_texts, texts
from recipes.options import Sampling, as_gate, as_model, check_extract, check_places
from recipes.refine.policy import PolicyOptions, Strategy

REVIEW = (
    "Review this answer:\n\n{answer}\n\nIs it right and complete? Write PASS or FAIL as the first line, and nothing "
    "else on that line. After FAIL, say what is wrong."
)
ARBITRATE = "These answers were given:\n\n{candidates}\n\nWhich of them is right? Answer with its number alone."


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
        Annotated[ArbiterOptions, BeforeValidator(as_model, json_schema_input_type=str | ArbiterOptions)] | None
    ) = Field(None, description="Model that decides a tie")
    sampling: Sampling | None = None


class Prompts(NestedOptions):
    """What follows the task after a failure. Place {feedback} has a line for each failure, {answer} the answer."""

    retry: str = (
        "Your answer:\n\n{answer}\n\nIt was not accepted:\n\n{feedback}\n\n"
        "Answer again. Write the whole answer and nothing else."
    )
    escalate: str = "An earlier answer was not accepted:\n\n{feedback}"


class Refine(Options):
    """Options of `refine`."""

    tiers: list[Annotated[TierOptions, BeforeValidator(as_model, json_schema_input_type=str | TierOptions)]] = Field(
        min_length=1, max_length=16, description="Models in the order in which they try"
    )
    gates: list[Annotated[GateOptions, BeforeValidator(as_gate, json_schema_input_type=str | GateOptions)]] = Field(
        [],
        max_length=32,
        description="What answers have to pass: `name:value` or {gate, value, category}",
        json_schema_extra=BASIC,
    )
    mode: Literal["fail_fast", "comprehensive"] = Field(
        "fail_fast", description="After a failed gate the others are left out, or are checked, too"
    )
    reviewer: (
        Annotated[ReviewerOptions, BeforeValidator(as_model, json_schema_input_type=str | ReviewerOptions)] | None
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

    @property
    def budgets(self) -> list[int]:
        """Most attempts on each tier."""
        first, later = self.policy.budget, self.policy.later_budget
        return [tier.budget or (later if number else first) for number, tier in enumerate(self.tiers)]


def check(options: Refine) -> None:
    """Raise ValueError for options that cannot be meant together."""
    votes, reviewer = options.votes, options.reviewer
    templates = {"prompts.retry": (options.prompts.retry, ["feedback", "answer"])}
    templates["prompts.escalate"] = options.prompts.escalate, ["feedback", "answer"]
    if reviewer is not None:
        templates["reviewer.prompt"] = reviewer.prompt, ["answer"]
    if votes is not None:
        check_extract("votes.extract", votes.extract)
        sampling = votes.sampling or options.sampling
        if votes.n > 1 and sampling.temperature == 0:
            raise ValueError("votes.n: At temperature 0 all answers of a model are the same; ask for one.")
        voters = [*(tier.model for tier in options.tiers), *votes.models]
        for name in votes.weights:
            if name not in voters:
                remedy = suggestion(name, voters, sentence=True)
                raise ValueError(f"votes.weights: {quoted(name)} has no vote. {remedy}")
        if votes.weights and votes.strategy != "weighted":
            raise ValueError(f"votes.weights: Strategy {votes.strategy} has no weights; take `weighted`.")
        if votes.arbiter is not None:
            templates["votes.arbiter.prompt"] = votes.arbiter.prompt, ["candidates"]
    for path, (template, places) in templates.items():
        check_places(path, template, places)


def named_columns(options: Refine, row: Mapping[str, Any]) -> list[str]:
    """Return the columns that the gates' values name."""
    schemas = {gate.name for gate in json_texts.GATES}
    named = (gate for gate in options.gates if gate.gate.removeprefix("not-") not in schemas)
    return [name for gate in named if gate.gate in BUILT_IN for name in texts.named_columns(gate.value)]
