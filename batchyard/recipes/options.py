"""The options of recipes and of composites, and which of them only judge answers."""

from collections.abc import Iterator, Sequence
from typing import Annotated, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, JsonValue

T = TypeVar("T")

BASIC: dict[str, JsonValue] = {"basic": True}
"""The `json_schema_extra` of an option that forms show first. Options without a default are shown first anyway."""


class _Judged:
    """The mark of a field that only judges answers: another value of it asks no engine anything."""


Judgement = Annotated[T, _Judged()]
"""`Judgement[T]` is T, for a field of options that is no part of the identity of work."""


class _NamesColumns:
    """The mark of a field that holds the name of a column, or several."""


ColumnName = Annotated[T, _NamesColumns()]
"""`ColumnName[T]` is T, for a field of options that names columns. They are no part of a prompt with all columns."""


def is_judgement(metadata: Sequence[object]) -> bool:
    """True if a pydantic field with this `metadata` was annotated as a Judgement."""
    return any(isinstance(mark, _Judged) for mark in metadata)


class NestedOptions(BaseModel):
    """An option that has fields: a subclass adds them. Other names are refused."""

    model_config = ConfigDict(extra="forbid")


class BareOptions(NestedOptions):
    """What the options of recipes and of composites have in common."""

    def judging(self) -> set[str]:
        """Return the fields that only judge answers. A subclass removes those that do more."""
        return {name for name, field in type(self).model_fields.items() if is_judgement(field.metadata)}

    def named_jobs(self) -> dict[str, str]:
        """Return the ids of earlier jobs of the recipe that options name, by field. A subclass names them."""
        return {}

    def named_columns(self) -> set[str]:
        """Return the columns that options name. A subclass adds others that are no part of a prompt."""
        return {path.partition(".")[0] for path in _column_paths(self)}


def _column_paths(options: BaseModel) -> Iterator[str]:
    """Yield the paths of columns in the fields of options, at any depth."""
    for name, field in type(options).model_fields.items():
        value = getattr(options, name)
        if any(isinstance(mark, _NamesColumns) for mark in field.metadata):
            yield from [value] if isinstance(value, str) else value or ()
        for nested in value if isinstance(value, list) else [value]:
            if isinstance(nested, BaseModel):
                yield from _column_paths(nested)


class Options(BareOptions):
    """The options of a recipe: a subclass adds its own. What is common to all stands here."""

    retries: int = Field(2, ge=0, le=5, description="How often a request that failed for now is asked again")
    seeds: Literal["derived", "none"] = Field("derived", description="`none` sends no seeds: another run differs")
    system: str | None = Field(None, description="System message of every request")
    template: str | None = Field(
        None,
        description="Prompt with columns in braces: `Translate {text}`; {*} is all of them",
        json_schema_extra=BASIC,
    )
    null_values: list[str] = Field([], max_length=20, description="Cells of csv that count as empty, such as NA")
    limit: int | None = Field(None, ge=1, description="Only the first so many rows", json_schema_extra=BASIC)
    shuffle: int | None = Field(None, description="Seed of a random order in which items begin")
    timeout: float | None = Field(None, gt=0, description="Most seconds of one request in its engine")
    streaming: bool = Field(True, description="False: a stage begins when the stage before has ended")

    @property
    def shares_answers(self) -> bool:
        """False if each request is computed, also one that equals another. A subclass may say so."""
        return True


class CompositeOptions(BareOptions):
    """The options of a composite: a subclass adds its own."""

    parallel: int | None = Field(None, ge=1, description="Most jobs at once; default: no limit")
    reuse: bool = Field(True, description="Take a completed job of the same configuration instead of running it again")
