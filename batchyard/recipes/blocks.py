"""Blocks of a report: the tables and charts of a job's page, as `view.json` has them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Annotated, Any, Literal, TypeAlias

from pydantic import (
    AllowInfNan,
    BaseModel,
    Field,
    TypeAdapter,
    ValidationError,
    ValidatorFunctionWrapHandler,
    WrapValidator,
    model_validator,
)

from batchyard.schema_words import invalid_values


def _number(value: Any, to_float: ValidatorFunctionWrapHandler) -> Any:
    """Check a number, and keep an integer as it is: view.json has 3 and not 3.0."""
    checked = to_float(value)
    return value if type(value) is int else checked


Number: TypeAlias = Annotated[float, AllowInfNan(False), WrapValidator(_number)]


class _Block(BaseModel):
    kind: str
    title: str = ""


class Table(_Block):
    """A table. Its rows are lists of values."""

    kind: Literal["table"] = "table"
    columns: list[str]
    rows: list[list[Any]]


class _Labelled(_Block):
    labels: list[str | Number]
    values: list[Number | None]

    @model_validator(mode="after")
    def _lengths(self) -> _Labelled:
        if len(self.labels) != len(self.values):
            raise ValueError(f"{len(self.labels)} labels, {len(self.values)} values")
        return self


class Bars(_Labelled):
    """A row for each label, with a bar of its value."""

    kind: Literal["bars"] = "bars"


class Histogram(_Labelled):
    """A column for each label, as high as its value."""

    kind: Literal["histogram"] = "histogram"


class Series(BaseModel):
    """A line of `Lines`, with a band from `low` to `high` if it has both."""

    name: str
    y: list[Number | None]
    low: list[Number | None] | None = Field(None, exclude_if=lambda low: low is None)
    high: list[Number | None] | None = Field(None, exclude_if=lambda high: high is None)


class Lines(_Block):
    """A line for each series over the numbers `x`.

    The vertical axis covers `y_range`, such as (0, 1) for shares; None: what the values need.
    """

    kind: Literal["lines"] = "lines"
    x: list[Number]
    series: list[Series]
    y_range: tuple[Number, Number] | None = Field(None, exclude_if=lambda y_range: y_range is None)

    @model_validator(mode="after")
    def _lengths(self) -> Lines:
        for series in self.series:
            for values in (series.y, series.low, series.high):
                if values is not None and len(values) != len(self.x):
                    raise ValueError(f"series '{series.name}' has {len(values)} values, x has {len(self.x)}")
        if self.y_range is not None and self.y_range[0] >= self.y_range[1]:
            raise ValueError("y_range must go up")
        return self


class Matrix(_Block):
    """A cell for each pair of a row and a column. `values` has a list for each row."""

    kind: Literal["matrix"] = "matrix"
    rows: list[str]
    columns: list[str]
    values: list[list[Number | None]]

    @model_validator(mode="after")
    def _lengths(self) -> Matrix:
        if len(self.values) != len(self.rows) or any(len(row) != len(self.columns) for row in self.values):
            raise ValueError(f"the values are not {len(self.rows)} rows of {len(self.columns)}")
        return self


Block: TypeAlias = Table | Bars | Histogram | Lines | Matrix
_BLOCK: TypeAdapter[Block] = TypeAdapter(Annotated[Block, Field(discriminator="kind")])


def parse(block: Any) -> Block:
    """Return the block of an entry of view.json. Raises ValueError, which says what is wrong and where."""
    try:
        return _BLOCK.validate_python(block)
    except ValidationError as error:
        raise ValueError(str(invalid_values(error, block)[0])) from None


def as_json(view: Iterable[Block | Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Return a view as view.json has it. A mapping stays: the page reports its faults."""
    # A label that is an integer is as it should be, and pydantic would warn of it.
    return [block.model_dump(warnings=False) if isinstance(block, BaseModel) else block for block in view]
