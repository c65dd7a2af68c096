"""Values that models of pydantic and JSON schemas refuse, in words."""

from __future__ import annotations

from typing import Any, Literal

import pytest
from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from batchyard.schema_words import invalid_values


class Agent(BaseModel):
    model_config = ConfigDict(extra="forbid")
    role: str


class Panel(BaseModel):
    model_config = ConfigDict(extra="forbid")
    name: str = Field("a", min_length=1, max_length=8)
    n: int = Field(1, ge=1, le=9)
    share: float = 0.5
    agents: list[str | Agent] = Field(default_factory=list, max_length=2)
    keep: Literal["all", "best"] = "all"
    key: str = Field("K", pattern="^[A-Z]+$")

    @field_validator("share")
    @classmethod
    def _is_half(cls, value: float) -> float:
        if value != 0.5:
            raise ValueError("a half is all there is")
        return value


def refused(values: dict[str, Any], **options: Any) -> list[str]:
    with pytest.raises(ValidationError) as error:
        Panel.model_validate(values)
    return [str(value) for value in invalid_values(error.value, values, **options)]


@pytest.mark.parametrize(
    ("values", "with_schema", "without"),
    [
        ({"n": "many"}, 'n: "many" is not a whole number, at least 1, at most 9', 'n: "many" is not a whole number'),
        ({"n": 10}, "n: 10 is not a whole number, at least 1, at most 9", "n: 10 is not at most 9"),
        ({"name": ""}, 'name: "" is not a text of 1 to 8 characters', 'name: "" is not a text, not empty'),
        ({"keep": "worst"}, 'keep: "worst" is not one of all, best', "keep: \"worst\" is not one of 'all' or 'best'"),
        ({"key": "k"}, 'key: "k" is not a text that matches ^[A-Z]+$', 'key: "k" is not a text that matches ^[A-Z]+$'),
        ({"share": 1}, "share: a half is all there is", "share: a half is all there is"),
        ({"share": float("nan")}, "share: a half is all there is", "share: a half is all there is"),
        (
            {"agents": "DEV,QA"},
            'agents: "DEV,QA" is not a list of at most 2 (each a text, or an object); write ["DEV", "QA"]',
            'agents: "DEV,QA" is not a list; write ["DEV", "QA"]',
        ),
        ({"agents": [5]}, "agents.0: 5 is not a text, or an object", "agents.0: 5 is not a text, or an object"),
        ({"agents": [{}]}, "agents.0.role: is missing", "agents.0.role: is missing"),
    ],
)
def test_a_refused_value_is_named_with_its_place_and_what_is_wanted(
    values: dict[str, Any], with_schema: str, without: str
) -> None:
    assert refused(values, document=Panel.model_json_schema()) == [with_schema]
    assert refused(values) == [without]


@pytest.mark.parametrize("document", [None, Panel.model_json_schema()])
def test_a_value_that_is_none_of_some_names_them(document: Any) -> None:
    for values, choices in (({"keep": "worst"}, ["all", "best"]), ({"n": 10}, [])):
        with pytest.raises(ValidationError) as error:
            Panel.model_validate(values)
        assert list(invalid_values(error.value, values, document)[0].choices) == choices


def test_an_unknown_key_is_named_with_the_nearest_of_its_object() -> None:
    document = Panel.model_json_schema()
    assert refused({"agents": [{"role": "a", "rol": 1}]}, document=document) == [
        "agents.0.rol: is unknown; did you mean role?"
    ]
    assert refused({"zzz": 1}, document=document) == ["zzz: is unknown"]


def test_a_value_that_may_be_a_secret_is_not_repeated() -> None:
    assert refused({"key": "sk-hidden"}, show=False) == ["key: must be a text that matches ^[A-Z]+$"]


def test_a_list_that_is_too_long_says_how_long_it_may_be() -> None:
    assert refused({"agents": ["a", "b", "c"]}) == ['agents: ["a", "b", "c"] is not a list of at most 2']
