"""Blocks: what a job's view has to draw (batchyard.recipes.Report), as models."""

from __future__ import annotations

from typing import Annotated, Any, Literal, TypeAlias

from pydantic import AllowInfNan, BaseModel, Field, TypeAdapter, ValidationError, model_validator

Number: TypeAlias = Annotated[float, AllowInfNan(False)]


class _Block(BaseModel):
    title: str = ""


class TableBlock(_Block):
    kind: Literal["table"]
    columns: list[str]
    rows: list[list[Any]]


class Bars(_Block):
    kind: Literal["bars", "histogram"]
    labels: list[str | Number]
    values: list[Number | None]

    @model_validator(mode="after")
    def _lengths(self) -> Bars:
        if len(self.labels) != len(self.values):
            raise ValueError(f"{len(self.labels)} labels, {len(self.values)} values")
        return self


class Series(BaseModel):
    name: str
    y: list[Number | None]
    low: list[Number | None] | None = None
    high: list[Number | None] | None = None


class Lines(_Block):
    kind: Literal["lines"]
    x: list[Number]
    series: list[Series]

    @model_validator(mode="after")
    def _lengths(self) -> Lines:
        for series in self.series:
            for values in (series.y, series.low, series.high):
                if values is not None and len(values) != len(self.x):
                    raise ValueError(f"series '{series.name}' has {len(values)} values, x has {len(self.x)}")
        return self


class Matrix(_Block):
    kind: Literal["matrix"]
    rows: list[str]
    columns: list[str]
    values: list[list[Number | None]]

    @model_validator(mode="after")
    def _lengths(self) -> Matrix:
        if len(self.values) != len(self.rows) or any(len(row) != len(self.columns) for row in self.values):
            raise ValueError(f"the values are not {len(self.rows)} rows of {len(self.columns)}")
        return self


Block: TypeAlias = TableBlock | Bars | Lines | Matrix
_ADAPTER: TypeAdapter[Block] = TypeAdapter(Annotated[Block, Field(discriminator="kind")])


def parse(block: Any) -> Block:
    """Return a block of a view. Raises ValueError, which says what is wrong and where."""
    try:
        return _ADAPTER.validate_python(block)
    except ValidationError as error:
        first = error.errors()[0]
    place = ".".join(str(part) for part in first["loc"])
    raise ValueError(f"{place} {first['msg']}".strip())
