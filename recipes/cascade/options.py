"""Options of recipe `cascade`, and of `cascade-round`, which runs one of its rounds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

from pydantic import Field, field_validator

from batchyard.recipes import BASIC, BareOptions, ColumnName, CompositeOptions, Options
from batchyard.tables import cells
from batchyard.tables.template import Template
from recipes.options import GreedySampling, option

STATE = "batchyard_cascade"
"""The column of a later round's rows with what the rounds before have left."""


def plain(text: str) -> str:
    """Return a text as labels are compared: without case, and blanks, quotes and full stops around it."""
    return text.strip().strip(".\"'").strip().casefold()


def label_of(text: str, labels: Sequence[str]) -> str | None:
    """Return the label that a text is, but for case and what may stand around it; None if it is none."""
    return next((label for label in labels if plain(label) == plain(text)), None)


class Cascading(BareOptions):
    """Which models answer, and how far the answers may differ."""

    model: str = Field(description="Large model, whose answers are wanted")
    proxy: str = Field(description="Small model, which answers every row first")
    agree: float = Field(
        0.95, gt=0, lt=1, description="Least share of all rows with the large model's answer", json_schema_extra=BASIC
    )
    precision: float | None = Field(
        None, gt=0, lt=1, description="In place of `agree`: least share of right answers among those of the first label"
    )
    recall: float | None = Field(
        None, gt=0, lt=1, description="With `precision`: least share found of the large model's answers of that label"
    )
    confidence: float = Field(0.95, gt=0, lt=1, description="Least probability that the target is reached")
    labels: list[str] = Field(
        [], max_length=1000, description="Answers that are allowed; default: any text", json_schema_extra=BASIC
    )
    structured: bool = Field(True, description="Hold answers to the labels; false: where an engine cannot do that")
    equal: str = Field(
        "exact",
        description="Reward that says if two answers are equal: `exact`, `numeric`, `json-fields`, `f1>=0.8`",
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
    audit: int = Field(50, ge=0, le=10_000, description="Rows of the small model that the large one checks at the end")

    @field_validator("labels")
    @classmethod
    def _distinct(cls, labels: list[str]) -> list[str]:
        compared = set(map(plain, labels))
        if len(compared) < len(labels) or "" in compared:
            raise ValueError("labels have to differ in more than case and punctuation, and none may be empty")
        if len(labels) == 1:
            raise ValueError("one label leaves no choice; name two at least")
        return labels

    @property
    def filters(self) -> bool:
        """True if the rows with the first label are wanted: precision and recall are the targets."""
        return self.precision is not None and self.recall is not None

    @property
    def targets(self) -> dict[str, float]:
        """The targets by their options' names."""
        if self.precision is None or self.recall is None:
            return {"agree": self.agree}
        return {"precision": self.precision, "recall": self.recall}

    def known(self, columns: Mapping[str, Any]) -> str | None:
        """Return the known answer to a row, None without one. Raises CellError."""
        text = None if self.truth is None else cells.optional(columns.get(self.truth), self.truth)
        return text and (label_of(text, self.labels) or text)

    @property
    def comparison(self) -> tuple[str, float]:
        """The reward that compares answers, and the least score of equal ones."""
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
    if options.model == options.proxy:
        raise ValueError("proxy: it is the model itself, so nothing can be saved; name a smaller one")
    if (options.precision is None) != (options.recall is None):
        raise ValueError("precision: it goes together with recall; set both, or `agree` alone")
    if options.scores is not None and not options.filters:
        raise ValueError("scores: they go together with precision and recall")
    if options.filters and len(options.labels) != 2:
        raise ValueError("labels: precision and recall need two, that of the wanted rows first, such as yes and no")
    with option("equal"):
        if not options.comparison[1] > 0:
            raise ValueError("the least score of equal answers is above 0")
    if isinstance(options, Options) and options.template is not None:
        with option("template"):
            if Template(options.template).has_all:
                raise ValueError("{*} is in another order in each round; name the columns")
