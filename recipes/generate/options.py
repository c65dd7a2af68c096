"""Options of recipe `generate`, and of `generate-round`, which makes one of its rounds."""

import re
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field

from batchyard.recipes import BASIC, BareOptions, CompositeOptions, NestedOptions, Options
from batchyard.tables.template import Template
from recipes.measures import similarity
from recipes.options import Sampling, SamplingOption, as_gate, as_model, option

RATING = (
    "Rate this text from 1 (useless) to 10 (excellent):\n\n{text}\n\nIs it correct, clear and useful? Answer with the "
    "number alone."
)
RATING_OF_ANSWERS = (
    "Task:\n\n{task}\n\nAnswer:\n\n{text}\n\nRate the answer from 1 (useless) to 10 (excellent): is it correct, "
    "complete and clear? Answer with the number alone."
)
MOST_ROUNDS = 50
FACTOR = 4
"""Requests at most, by those of `count` good rows, unless the options say."""
_PLACE = re.compile(r"(?<!{){(?:{{)*persona}")


class FilterOptions(NestedOptions):
    """A gate that a draft has to pass."""

    gate: str
    value: Any = None


class RaterOptions(NestedOptions):
    """A model that rates texts from 1 to 10."""

    model: str
    least: int = Field(7, ge=1, le=10, description="The least rating of a good row")
    prompt: str | None = Field(None, description="What it is asked, with places {text} and, of an answer, {task}")
    sampling: Sampling = Sampling(temperature=0, max_tokens=16)


class ResponderOptions(NestedOptions):
    """A model that answers each good draft."""

    model: str
    n: int = Field(1, ge=1, le=8, description="Answers to each; with a judge the best is kept, and pairs are made")
    system: str | None = None
    sampling: Sampling = Sampling()


class Making(BareOptions):
    """What is made, and which of it is good."""

    model: str = Field(description="Model that writes the drafts")
    count: int = Field(description="Good rows that are wanted", ge=1, le=100_000, json_schema_extra=BASIC)
    templates: list[str] = Field(
        [],
        max_length=100,
        description="Prompts with the seed's columns in braces, and {persona}; default: the seed's own prompt",
        json_schema_extra=BASIC,
    )
    personas: list[str] = Field(
        [],
        max_length=10_000,
        description="Who writes: fills {persona} in templates and system",
    )
    system: str | None = Field(None, description="System message of the drafts; may have {persona}")
    sampling: SamplingOption
    gates: list[Annotated[FilterOptions, BeforeValidator(as_gate, json_schema_input_type=str | FilterOptions)]] = Field(
        [],
        max_length=32,
        description="What a draft has to pass: `name:value` or {gate, value}",
        json_schema_extra=BASIC,
    )
    similarity: float | None = Field(
        0.8,
        ge=similarity.LEAST,
        le=1,
        description="A draft that shares so much of its 5-character pieces with an earlier one is left out; null: none",
        json_schema_extra=BASIC,
    )
    answers: (
        Annotated[ResponderOptions, BeforeValidator(as_model, json_schema_input_type=str | ResponderOptions)] | None
    ) = Field(None, description="Model that answers each draft: the draft is the prompt then", json_schema_extra=BASIC)
    judge: Annotated[RaterOptions, BeforeValidator(as_model, json_schema_input_type=str | RaterOptions)] | None = Field(
        None, description="Model that rates what was made; a row below `least` is not good", json_schema_extra=BASIC
    )
    requests: int | None = Field(
        None,
        ge=1,
        description=f"Most requests of all rounds; default: {FACTOR} times those of `count` good rows",
    )
    tokens: int | None = Field(None, ge=1, description="Most tokens of all rounds, by the longest candidate so far")
    rounds: int = Field(8, ge=1, le=MOST_ROUNDS, description="Most rounds")

    @property
    def cost(self) -> int:
        """The requests of a candidate at most."""
        answers = 0 if self.answers is None else self.answers.n
        return 1 + answers + (0 if self.judge is None else max(1, answers))

    @property
    def most_requests(self) -> int:
        return self.requests or FACTOR * self.count * self.cost

    @property
    def prompts(self) -> list[str | None]:
        """The templates; None stands for the seed's own prompt."""
        return [*self.templates] or [None]


class Generate(Making, CompositeOptions):
    """Options of `generate`."""

    def place(self, variant: str, path: str) -> str:
        """Return where the option of a round at a path stands."""
        return path


class Drafts(Making, Options):
    """Options of `generate-round`."""

    retries: int = Field(0, ge=0, le=0, description="A request that failed is not asked again: another draft follows")
    template: str | None = Field("-", description="Not used: see `templates`")
    streaming: Literal[True] = Field(True, description="Items never wait for each other")


def check(options: Making) -> None:
    """Raise ValueError, with the path of the option, for options that cannot be."""
    templates = {f"templates.{number}": text for number, text in enumerate(options.templates)}
    for place, text in {"system": options.system or "", **templates}.items():
        with option(place):
            template = Template(text)
        if template.has_all:
            raise ValueError(f"{place}: {{*}} is for the prompts of a table; name the seed's columns")
    if options.requests is not None and options.requests < options.cost:
        raise ValueError(f"requests: one candidate takes {options.cost}; allow as many at least")
    if options.sampling.temperature == 0 and options.similarity is None:
        raise ValueError("sampling.temperature: at 0 drafts repeat each other; raise it, or set similarity")
    texts = [*options.templates, options.system or ""]
    if options.personas and not any(_PLACE.search(text) for text in texts):
        raise ValueError("personas: no template names {persona}, and the system message does not")
    if not options.personas and any(_PLACE.search(text) for text in texts):
        raise ValueError("personas: {persona} has a place in a template or the system message; name some")
    if options.answers is not None and options.answers.n > 1:
        if options.judge is None:
            raise ValueError("answers.n: nobody says which answer is the best; name a judge")
        if options.answers.sampling.temperature == 0:
            raise ValueError("answers.sampling.temperature: at 0 all answers are the same; raise it, or take n = 1")
