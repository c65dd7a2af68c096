"""Output lines become text, error and tokens; answers by a schema become columns."""

from __future__ import annotations

from enum import StrEnum
from typing import Any

import orjson
import pytest
from pydantic import AliasChoices, AliasPath, BaseModel, Field, computed_field, field_validator

from batchyard.client import answers
from batchyard.client.answers import RowAnswer, RowText, Structure
from batchyard.endpoints import output_lines
from batchyard.errors import ConfigurationError


class Mood(StrEnum):
    GOOD = "good"
    BAD = "bad"


class Review(BaseModel):
    mood: Mood
    stars: int = Field(ge=1, le=5)
    price: float | None = None
    words: list[str] = []

    @field_validator("words")
    @classmethod
    def _few(cls, words: list[str]) -> list[str]:
        if len(words) > 2:
            raise ValueError("too many words")
        return words


def line(choice: dict[str, Any] | None, status: int = 200, error: dict[str, str] | None = None) -> bytes:
    body = {"choices": [choice], "usage": {"total_tokens": 7}} if choice else {"error": error}
    return output_lines.line("row-3", status, orjson.dumps(body), None).encode()


def text(choice: dict[str, Any]) -> RowText:
    body = answers.outcome(line(choice)).body
    assert body is not None
    return answers.text(body)


def test_a_line_becomes_text_tokens_and_error() -> None:
    good = answers.outcome(line({"message": {"content": "yes"}, "finish_reason": "stop"}))
    assert good.body is not None and good[::2] == ("row-3", None, False) and good.tokens == 7
    assert answers.text(good.body) == RowText("yes", None, "stop")
    assert text({"message": {"content": "ye"}, "finish_reason": "length"}) == RowText(
        "ye", None, "length", is_cut_off=True
    )
    thinking = {"message": {"content": None, "reasoning": "let me see"}, "finish_reason": "length"}
    assert text(thinking).error == (
        "reasoning_only: The answer has reasoning only and no text (finish_reason length). Raise max_tokens."
    )
    silent = {"message": {"content": None}, "finish_reason": "tool_calls"}
    assert text(silent).error == "empty_answer: The answer has no text (finish_reason tool_calls)."
    refused = line(None, 400, {"code": "too_long", "message": "Too long."})
    assert answers.outcome(refused) == RowAnswer("row-3", None, "too_long: Too long.", None)
    (unanswered,) = output_lines.unanswered([4], ["row-3"], "batch_expired", "It expired.")
    assert answers.outcome(unanswered.encode()) == RowAnswer(
        "row-3", None, "batch_expired: It expired.", None, passing=True
    )


def test_the_properties_of_a_pydantic_class_are_columns_with_their_types() -> None:
    structure = Structure(Review)
    assert structure.columns == {"mood": "string", "stars": "integer", "price": "number", "words": None}
    text = '{"mood": "good", "stars": 4, "words": ["a"]}'
    assert structure.parse(RowText(text)) == (
        {"mood": "good", "stars": 4, "price": None, "words": ["a"]},
        None,
    )
    assert structure.response_format["json_schema"]["name"] == "Review"


SCHEMA = {
    "type": "object",
    "properties": {
        "mood": {"enum": ["good", "bad"]},
        "stars": {"type": ["integer", "null"], "minimum": 1},
        "any": True,
    },
    "required": ["mood"],
}


@pytest.mark.parametrize("schema", [Review, SCHEMA])
@pytest.mark.parametrize(
    ("text", "truncated", "error"),
    [
        ('{"mood": "so", "stars": 4}', False, "mood"),
        ('{"mood": "good", "stars": 0}', False, "stars"),
        ("[]", False, "the answer does not fit the schema"),
        ("good", False, "the answer does not fit the schema"),
        ('{"mood": "go', True, "the answer ends at max_tokens before its JSON does; raise max_tokens"),
    ],
)
def test_an_answer_that_does_not_fit_is_an_error_that_says_where(
    schema: Any, text: str, truncated: bool, error: str
) -> None:
    properties, reason = Structure(schema).parse(RowText(text, is_cut_off=truncated))
    assert properties == {}
    assert reason is not None and error in reason


def test_validators_of_a_pydantic_class_judge_answers() -> None:
    text = '{"mood": "good", "stars": 4, "words": ["a", "b", "c"]}'
    assert "words: too many words" in str(Structure(Review).parse(RowText(text))[1])


def test_a_json_schema_gives_columns_and_an_answer_without_a_property_none() -> None:
    structure = Structure(SCHEMA)
    assert structure.columns == {"mood": None, "stars": "integer", "any": None}
    assert structure.parse(RowText('{"mood": "bad"}')) == ({"mood": "bad"}, None)
    assert structure.parse(RowText(None, "it failed")) == ({}, "it failed")


@pytest.mark.parametrize(
    ("schema", "message"),
    [
        ({"type": "string"}, 'its type must be "object", with properties'),
        ({"type": "object", "properties": {"a": {"type": "text"}}}, "no JSON schema"),
        ("Review", "pass a class of pydantic or a JSON schema as a dict"),
    ],
)
def test_a_schema_that_gives_no_columns_is_refused(schema: Any, message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        Structure(schema)


class Node(BaseModel):
    name: str
    children: list[Node] = []


class Renamed(BaseModel):
    read: str = Field(validation_alias="readAs")
    written: int = Field(serialization_alias="writtenAs")
    both: float = Field(alias="bothAs")
    either: bool = Field(validation_alias=AliasChoices("first", "second"))

    @computed_field  # type: ignore[prop-decorator]
    @property
    def total(self) -> int:
        return self.written + 1


def test_a_recursive_class_has_the_columns_of_its_root() -> None:
    structure = Structure(Node)
    assert structure.columns == {"name": "string", "children": None}
    assert "$ref" not in structure.response_format["json_schema"]["schema"]
    text = '{"name": "a", "children": [{"name": "b"}]}'
    children = [{"name": "b", "children": []}]
    assert structure.parse(RowText(text)) == ({"name": "a", "children": children}, None)


def test_aliases_are_asked_as_pydantic_reads_them_and_written_as_it_writes_them() -> None:
    structure = Structure(Renamed)
    asked = structure.response_format["json_schema"]["schema"]["properties"]
    assert list(asked) == ["readAs", "written", "bothAs", "first"]
    values, error = structure.parse(RowText('{"readAs": "a", "written": 1, "bothAs": 0.5, "first": true}'))
    assert error is None and values.keys() == structure.columns.keys()
    assert structure.columns == {
        "read": "string",
        "writtenAs": "integer",
        "bothAs": "number",
        "either": "boolean",
        "total": "integer",
    }


def test_a_field_that_is_read_by_a_path_is_refused() -> None:
    class Deep(BaseModel):
        inner: str = Field(validation_alias=AliasPath("outer", 0))

    with pytest.raises(ConfigurationError, match="its field inner is read by a path"):
        Structure(Deep)


OBJECT = {"type": "object", "properties": {"a": {"$ref": "#/$defs/A"}}}


@pytest.mark.parametrize(
    "schema",
    [
        {"$ref": "#/$defs/Root", "$defs": {"Root": OBJECT, "A": {"type": "string"}}},
        {
            "$ref": "#/definitions/Root",
            "definitions": {"Root": OBJECT},
            "$defs": {"A": {"$ref": "#/$defs/B"}, "B": {"type": "string"}},
        },
    ],
)
def test_a_reference_at_the_root_is_followed(schema: dict[str, Any]) -> None:
    structure = Structure(schema)
    assert structure.columns == {"a": "string"}
    assert structure.parse(RowText('{"a": "x"}')) == ({"a": "x"}, None)
    assert structure.parse(RowText('{"a": 1}'))[0] == {}


@pytest.mark.parametrize(
    ("schema", "reason"),
    [
        (OBJECT, r"\$\.properties\.a: \$ref '#/\$defs/A' leads nowhere"),
        (
            {"type": "object", "properties": {"a": {"$ref": "https://host/a.json"}}},
            r"'https://host/a.json' leads nowhere",
        ),
        ({"type": "object", "properties": {"a": {"items": {"$ref": "#nowhere"}}}}, r"'#nowhere' leads nowhere"),
        ({"$ref": "#/$defs/A", "$defs": {"A": {"$ref": "#/$defs/A"}}}, 'its type must be "object"'),
        ({"$ref": "#"}, 'its type must be "object"'),
    ],
)
def test_a_reference_that_cannot_be_followed_is_refused(schema: dict[str, Any], reason: str) -> None:
    with pytest.raises(ConfigurationError, match=reason):
        Structure(schema)
