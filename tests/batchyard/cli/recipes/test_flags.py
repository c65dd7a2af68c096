"""A recipe's command has a flag for each scalar or list of scalars among its options."""

from __future__ import annotations

from typing import Any

import click

from batchyard.cli.recipes import flags
from batchyard.config import Schema


def options(fields: dict[str, Any], *taken: str, required: tuple[str, ...] = ()) -> dict[str, click.Option]:
    """The options of a command by their first flag. Its other options have the flags `taken`."""
    schema = Schema({"type": "object", "properties": fields, "required": list(required)})
    made = flags.options(schema, [click.Option([flag]) for flag in taken])
    return {option.opts[0]: option for option in made}


def test_scalars_and_lists_of_them_have_flags_and_mappings_have_none() -> None:
    made = options(
        {
            "keep_order": {"enum": ["all", "best"]},
            "limit": {"anyOf": [{"type": "integer"}, {"type": "null"}]},
            "gates": {"type": "array", "items": {"anyOf": [{"type": "string"}, {"type": "object"}]}},
            "sampling": {"type": "object"},
            "rows": {"type": "array", "items": {"type": "object"}},
        }
    )
    assert {flag: option.metavar for flag, option in made.items()} == {
        "--keep-order": "all|best",
        "--limit": "INTEGER",
        "--gates": "TEXT,…",
    }
    assert made["--gates"].multiple and made["--gates"].opts == ["--gates", "--gate"]


def test_a_yes_or_no_can_be_said_both_ways() -> None:
    (option,) = options({"diversity": {"type": "boolean", "default": True}}).values()
    assert (option.opts, option.secondary_opts) == (["--diversity"], ["--no-diversity"])
    assert option.default is None, "a flag that was not given is no layer"


def test_a_flag_of_every_recipe_is_not_taken_by_an_option() -> None:
    assert options({"output": {"type": "string"}, "n": {"type": "integer"}}, "--output", "-n").keys() == {"--n"}


def test_an_option_with_one_letter_may_be_written_with_one_dash() -> None:
    assert options({"n": {"type": "integer"}})["-n"].opts == ["-n", "--n"]


def test_the_singular_of_a_list_is_left_to_an_option_of_that_name() -> None:
    made = options({"gates": {"type": "array", "items": {"type": "string"}}, "gate": {"type": "string"}})
    assert made["--gates"].opts == ["--gates"]


def test_the_help_has_the_default_and_says_what_is_required() -> None:
    fields: dict[str, Any] = {
        "n": {"type": "integer", "default": 3, "description": "Answers"},
        "model": {"type": "string"},
        "extra": {"type": "string", "default": "", "description": "More"},
    }
    made = options(fields, required=("model",))
    assert [option.help for option in made.values()] == ["Answers [3]", "[required]", "More"]


def test_flags_that_were_not_given_are_no_layers_and_overrides_come_last() -> None:
    schema = Schema({"type": "object", "properties": {"n": {"type": "integer"}, "gates": {"type": "array"}}})
    layers = flags.layers(schema, {flags.PREFIX + "n": "5", flags.PREFIX + "gates": ()}, ["n=7"])
    assert [layer.values for layer in layers] == [{"n": 5}, {"n": 7}]
