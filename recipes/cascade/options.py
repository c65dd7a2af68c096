"""Options of recipe `cascade`, and of `cascade-round`, which runs one of its rounds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

from pydantic import AwareDatetime, Field, field_validator

from batchyard.recipes import BASIC, BareOptions, ColumnName, CompositeOptions, Options
from batchyard.tables import cells
from batchyard.tables.template import Template
from recipes.options import GreedySampling, option

STATE = "batchyard_cascade"
"""The column of a later round's rows with what the rounds before have left."""
TARGETS = 5
"""Targets of a range, from which a deadline chooses."""


def plain(text: str) -> str:
    """Return a text as labels are compared: without case, and blanks, quotes and full stops around it."""
    return text.strip().strip(".\"'").strip().casefold()


def label_of(text: str, labels: Sequence[str]) -> str | None:
    """Return the label that a text equals, see `plain`; None if it equals none."""
    return next((label for label in labels if plain(label) == plain(text)), None)


class Cascading(BareOptions):
    """The models, and how far their answers may differ."""

    model: str = Field(description="Large model, whose answers are wanted")
    proxy: str = Field(
        "",
        description="Small model, which answers every row first; of several (`a,b`) the best counts",
        json_schema_extra=BASIC,
    )
    embedding: str | None = Field(
        None, description="Embedding model as another small model: a classifier of its vectors chooses among `labels`"
    )
    agree: float | None = Field(
        None,
        gt=0,
        lt=1,
        description="Minimum share of all rows with the large model's answer; default 0.95",
        json_schema_extra=BASIC,
    )
    lowest_agree: float | None = Field(
        None, gt=0, lt=1, description="With `by`: `agree` may be lowered to this, so that all is done in time"
    )
    by: AwareDatetime | None = Field(None, description="With `lowest_agree`: when all rows should have an answer")
    precision: float | None = Field(
        None, gt=0, lt=1, description="Instead of `agree`: minimum precision of the rows with the first label"
    )
    recall: float | None = Field(None, gt=0, lt=1, description="With `precision`: minimum recall of these rows")
    confidence: float = Field(0.95, gt=0, lt=1, description="Minimum probability that the targets are reached")
    labels: list[str] = Field(
        [], max_length=1000, description="Allowed answers; default: any text", json_schema_extra=BASIC
    )
    structured: bool = Field(True, description="Restrict answers to the labels; false for engines that cannot")
    equal: str = Field(
        "exact",
        description="Reward that compares two answers: `exact`, `numeric`, `json-fields`, `f1>=0.8`",
        json_schema_extra=BASIC,
    )
    scores: ColumnName[str | None] = Field(
        None, description="Column with probabilities of the first label, in place of the small model's answers"
    )
    truth: ColumnName[str | None] = Field(
        None, description="Column with known answers, to report how many of the models' answers equal them"
    )
    sampling: GreedySampling = Field(
        default_factory=GreedySampling, description="Temperature (0 unless set), max_tokens and the like"
    )
    audit: int = Field(50, ge=0, le=10_000, description="Small model's rows that the large model checks at the end")

    @field_validator("labels")
    @classmethod
    def _distinct(cls, labels: list[str]) -> list[str]:
        compared = set(map(plain, labels))
        if len(compared) < len(labels) or "" in compared:
            raise ValueError("labels must differ in more than case and punctuation, and none may be empty")
        if len(labels) == 1:
            raise ValueError("pass at least two labels")
        return labels

    @property
    def filters(self) -> bool:
        """Return whether the targets are precision and recall of the rows with the first label."""
        return self.precision is not None and self.recall is not None

    @property
    def targets(self) -> dict[str, float]:
        """The targets by their options' names."""
        if self.precision is None or self.recall is None:
            return {"agree": 0.95 if self.agree is None else self.agree}
        return {"precision": self.precision, "recall": self.recall}

    @property
    def chat_proxies(self) -> list[str]:
        """The small models that answer in chats."""
        return [name.strip() for name in self.proxy.split(",")] if self.proxy and self.scores is None else []

    @property
    def proxies(self) -> list[str]:
        """The small models; one of them decides. An embedding model is the last."""
        if self.scores is not None:
            return [self.proxy]
        return [*self.chat_proxies, *([] if self.embedding is None else [self.embedding])]

    @property
    def range(self) -> list[float]:
        """The targets from which the deadline chooses, the highest first; without one `agree` alone, 0 for filters."""
        high = self.targets.get("agree", 0)
        if self.lowest_agree is None:
            return [high]
        return [round(high + (self.lowest_agree - high) * place / (TARGETS - 1), 6) for place in range(TARGETS)]

    @property
    def risk(self) -> float:
        """The probability of missing one target with one small model: all of them have equal shares."""
        return (1 - self.confidence) / (len(self.range) * len(self.proxies))

    def known(self, columns: Mapping[str, Any]) -> str | None:
        """Return the known answer to a row, None without one. Raises CellError."""
        text = None if self.truth is None else cells.optional(columns.get(self.truth), self.truth)
        return text and (label_of(text, self.labels) or text)

    @property
    def comparison(self) -> tuple[str, float]:
        """The reward that compares answers, and the minimum score of equal ones."""
        name, _, least = ("" if self.equal.startswith("{") else self.equal).partition(">=")
        return (name.strip(), float(least)) if least else (self.equal, 1.0)

    def named_columns(self) -> set[str]:
        return super().named_columns() | {STATE}


class Cascade(Cascading, Options, CompositeOptions):
    """Options of `cascade`."""

    def place(self, variant: str, path: str) -> str:
        """Return where the option of a round at a path stands."""
        return path


class Round(Cascading, Options):
    """Options of `cascade-round`."""

    streaming: Literal[True] = Field(True, description="Items never wait for each other")


def check(options: Cascading) -> None:
    if not options.proxy and options.embedding is None:
        raise ValueError("proxy: name a small model, here or in embedding")
    if options.embedding is not None and (not options.labels or options.equal != "exact" or options.scores is not None):
        raise ValueError("embedding: it chooses among labels; set these, and neither equal nor scores")
    if options.model in options.proxies:
        raise ValueError("proxy: it is the same as model; name a smaller one")
    if len(set(options.proxies)) < len(options.proxies):
        raise ValueError("proxy: a model is named twice")
    if (options.precision is None) != (options.recall is None):
        raise ValueError("precision: set it together with recall, or set agree alone")
    if (options.by is None) != (options.lowest_agree is None):
        raise ValueError("by: set it together with lowest_agree")
    if options.lowest_agree is not None and (options.filters or options.lowest_agree >= options.targets["agree"]):
        raise ValueError("lowest_agree: it must be below agree, and precision and recall have no range")
    if options.filters and options.agree is not None:
        raise ValueError("agree: precision and recall replace it; set either these two or agree")
    if options.filters and options.equal != "exact":
        raise ValueError("equal: precision and recall compare labels; leave it out")
    if options.scores is not None and not options.filters:
        raise ValueError("scores: they go together with precision and recall")
    if options.filters and len(options.labels) != 2:
        raise ValueError("labels: precision and recall require two, the wanted one first, such as yes and no")
    with option("equal"):
        if not options.comparison[1] > 0:
            raise ValueError("the minimum score of equal answers must be above 0")
    if isinstance(options, Options) and options.template is not None:
        with option("template"):
            if Template(options.template).has_all:
                raise ValueError("{*} would have another order in each round; name the columns")
