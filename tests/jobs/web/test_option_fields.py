"""The form of a recipe's options holds what its schema says, and a form that is sent back means the same options."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Literal

import pytest
import yaml
from pydantic import Field

from batchyard import settings
from batchyard.errors import RequestError
from batchyard.recipes import BASIC, NestedOptions, Options
from jobs.web.pages import option_fields
from jobs.web.pages.option_fields import OptionField, OptionForm, OptionGroup
from recipes import registry
from tests.support.stacks import ROOT

NAMES = {"model": ["mini", "nano"], "reward": ["exact"], "gate": ["equals"], "recipe": ["rollout"]}


class Inner(NestedOptions):
    depth: int | None = Field(None, json_schema_extra=BASIC)
    words: list[str] = Field([])


class Everything(Options):
    """An option of each kind."""

    model: str
    number: float = Field(0.5, description="A number", json_schema_extra=BASIC)
    switch: bool = True
    choice: Literal["one", "two"] = "one"
    lines: list[str | dict[str, Any]] = Field([])
    mapping: dict[str, Any] = Field({})
    either: str | dict[str, Any] | None = None
    inner: Inner = Inner()
    perhaps: Inner | None = None
    bound: float | None = 0.8


SCHEMA = Everything.model_json_schema()


def fields(form: OptionForm) -> Iterator[OptionField]:
    """Yield all fields of a form."""
    for entry in (*form.basic, *form.others):
        yield from (*entry.fields, *entry.more) if isinstance(entry, OptionGroup) else (entry,)


def sent(form: OptionForm) -> dict[str, str]:
    """The fields as a browser sends them: with carriage returns."""
    return {field.name: field.value.replace("\n", "\r\n") for field in fields(form)}


VALUES: list[dict[str, Any]] = [
    {"model": "mini"},
    {"model": "mini", "number": 2, "switch": False, "choice": "two"},
    {
        "model": "mini",
        "lines": ["plain", "equals:{{answer}}", "5", "true", "[a", "two\nlines", {"gate": "x", "value": 1}],
    },
    {"model": "mini", "lines": ["- dash"], "mapping": {"a": {"b": [1, "1"]}, "c": "x"}},
    {"model": "mini", "either": "exact", "template": "Translate {text}\nnow: yes", "system": "# no comment"},
    {"model": "mini", "either": {"type": "numeric", "extract": "last_number"}},
    {"model": "mini", "inner": {"depth": 3, "words": ["a", "b, c"]}, "perhaps": {"words": ["null"]}, "limit": 7},
    {"model": "mini", "bound": None},
    {"model": "mini", "bound": 0.5},
]


@pytest.mark.parametrize("values", VALUES)
def test_a_form_that_is_sent_back_as_it_is_shown_means_the_same_options(values: dict[str, Any]) -> None:
    form = option_fields.form(SCHEMA, Everything.model_validate(values).model_dump(mode="json"), NAMES)
    read = option_fields.read(SCHEMA, sent(form))
    assert Everything.model_validate(read) == Everything.model_validate(values)


@pytest.mark.parametrize(
    "name", ["batch", "cascade", "evaluate", "experiment", "generate", "panel", "rank", "refine", "rollout", "tune"]
)
def test_every_recipe_has_a_form_whose_defaults_are_left_out_when_it_is_sent(name: str) -> None:
    schema = registry.catalogue(settings.load()).recipes[name].options.model_json_schema()
    form = option_fields.form(schema, {}, NAMES)
    assert {entry.name for entry in (*form.basic, *form.others)} == {f"option.{key}" for key in schema["properties"]}
    basic = [entry.name.removeprefix("option.") for entry in form.basic]
    required = schema.get("required", [])
    assert basic[: len(required)] == required, "what has to be set comes first"
    assert len(form.basic) <= 8
    assert option_fields.read(schema, sent(form)) == {}


def test_the_options_of_the_examples_are_read_back() -> None:
    files = {"refine": "refine.yaml", "panel": "panel.yaml", "generate": "generate.yaml", "evaluate": "evaluate.yaml"}
    for name, file in {**files, "experiment": "recipes/experiment.yaml"}.items():
        recipe = registry.catalogue(settings.load()).recipes[name]
        values = yaml.safe_load((ROOT / "examples" / file).read_text())
        values = {key: value for key, value in values.items() if key not in ("input", "data")}
        schema = recipe.options.model_json_schema()
        form = option_fields.form(schema, recipe.options.model_validate(values).model_dump(mode="json"), NAMES)
        read = option_fields.read(schema, sent(form))
        assert recipe.options.model_validate(read) == recipe.options.model_validate(values)


def test_required_and_marked_options_and_those_that_are_set_come_first_and_the_rest_is_folded() -> None:
    form = option_fields.form(SCHEMA, {"model": "mini", "choice": "two"}, NAMES)
    names = [entry.name.removeprefix("option.") for entry in form.basic]
    assert names == ["model", "number", "choice", "template", "limit"]
    (inner,) = (entry for entry in form.others if entry.name == "option.inner")
    assert isinstance(inner, OptionGroup)
    assert [field.label for field in inner.fields] == ["depth"]
    assert [field.label for field in inner.more] == ["words"]


def test_models_are_chosen_and_other_names_are_offered() -> None:
    by_name = {field.name: field for field in fields(option_fields.form(SCHEMA, {}, NAMES))}
    assert (by_name["option.model"].kind, by_name["option.model"].choices) == ("choice", ["mini", "nano"])
    schema = registry.catalogue(settings.load()).recipes["refine"].options.model_json_schema()
    refine = {field.name: field for field in fields(option_fields.form(schema, {}, NAMES))}
    assert refine["option.tiers"].names == ["mini", "nano"]
    assert refine["option.gates"].names == ["equals"]


def test_a_field_that_no_option_has_is_left_out_and_a_blank_one_is_not_set() -> None:
    values = {"option.nothing": "1", "option.inner.nothing": "1", "csrf": "x", "option.number": "  "}
    assert option_fields.read(SCHEMA, values) == {}


def test_what_was_sent_is_shown_again_also_if_it_cannot_be_read() -> None:
    texts = {"option.number": "a lot", "option.choice": "three"}
    form = option_fields.form(SCHEMA, {}, NAMES, texts)
    by_name = {field.name: field.value for field in fields(form)}
    assert (by_name["option.number"], by_name["option.choice"]) == ("a lot", "three")
    assert "option.choice" in [entry.name for entry in form.basic], "what is set is not folded"


def test_an_error_belongs_to_the_field_of_its_path_or_to_the_one_above_or_below() -> None:
    form = option_fields.form(SCHEMA, {}, NAMES)
    assert option_fields.field_of(form, "options.inner.depth") == "option.inner.depth"
    assert option_fields.field_of(form, "options.lines.0.gate") == "option.lines"
    assert option_fields.field_of(form, "options.inner") == "option.inner.depth"
    assert option_fields.field_of(form, "options") is None


def test_interpolations_stay_text() -> None:
    secret = "${oc.env:HOME}"
    read = option_fields.read(
        SCHEMA, {"option.either": secret, "option.lines": secret, "option.mapping": f"a: {secret}"}
    )
    assert read == {"either": secret, "lines": [secret], "mapping": {"a": secret}}


def test_a_value_that_is_no_json_is_refused_with_its_place() -> None:
    with pytest.raises(RequestError, match=r"inner\.depth: this is not valid JSON") as refusal:
        option_fields.read(SCHEMA, {"option.inner.depth": ".nan"})
    assert refusal.value.param == "options.inner.depth"
