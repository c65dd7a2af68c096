"""Fields refuse what could only fail later, and say what is wrong."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import BaseModel, ValidationError

from webapp.wire.fields import MAX_DEPTH, JsonObject, JsonText, Name, Steps, Window, from_json_text


class Fields(BaseModel):
    window: Window = "24h"
    name: Name = "a name"
    steps: Steps = []
    object: JsonObject = {}


def nested(depth: int) -> dict[str, Any]:
    value: dict[str, Any] = {}
    for _ in range(depth - 1):
        value = {"inner": [value]}
    return value


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"window": "soon"}, "window"),
        ({"name": "two\nlines"}, "name\n.*it has a line break"),
        ({"steps": [{"step": "polish"}]}, "no step 'polish'; there are: .*score"),
        ({"steps": [{}]}, "no step None"),
        ({"object": nested(MAX_DEPTH)}, f"nested more than {MAX_DEPTH} levels deep"),
    ],
)
def test_what_is_no_value_of_the_field_is_refused(fields: dict[str, Any], reason: str) -> None:
    with pytest.raises(ValidationError, match=reason):
        Fields.model_validate(fields)


def test_an_object_may_be_as_deep_as_the_limit() -> None:
    assert Fields(object=nested(MAX_DEPTH // 2)).object == nested(MAX_DEPTH // 2)


def test_a_step_gets_the_defaults_of_its_options() -> None:
    (step,) = Fields(steps=[{"step": "parquet"}]).steps
    assert step["step"] == "parquet"


def test_a_forms_field_is_parsed_only_if_it_is_json() -> None:
    assert from_json_text('{"a": [1]}') == {"a": [1]}
    assert from_json_text("plain text") == "plain text"
    assert from_json_text(["no text"]) == ["no text"]
    assert JsonText.func is from_json_text
