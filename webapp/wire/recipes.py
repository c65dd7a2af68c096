"""The models of /v1/recipes."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, Field

from webapp.wire.lists import ListPage


class RewardObject(BaseModel):
    name: str
    data_sources: list[str] = Field(description="those of which it scores the answers if a job names no reward")
    columns: list[str] = Field(description="what a row needs; a dot goes into an object")


class GateObject(BaseModel):
    name: str


class RecipeObject(BaseModel):
    """A program that jobs can run."""

    name: str
    object: Literal["recipe"] = "recipe"
    summary: str
    stages: list[str] | None = Field(
        description="with the defaults of its options; null: they depend on one without a default"
    )
    options: dict[str, Any] = Field(description="JSON Schema")
    judgement: list[str] = Field(description="the options that only judge answers, and so cost no request")
    main: str = Field(description="the artifact with the results")
    sha256: str = Field(description="of the file that defines it")


class RecipePage(ListPage[RecipeObject]):
    """All recipes, and what they may name."""

    rewards: list[RewardObject]
    gates: list[GateObject]
