"""`batchyard experiment`: the experiment stands in a file, its input beside it, and variants in other files."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.batchyard.cli.recipes.conftest import Terminal


@pytest.mark.parametrize(
    ("file", "arguments", "complaint"),
    [
        (
            "variants: {a: {}}\nrecipe: debate\n",
            "",
            "input is missing: set it in a file, by a flag, or with input=VALUE",
        ),
        (
            "variants: {a: {}}\nrecipe: debate\ninput: rows.jsonl\n",
            "",
            "e.yaml: input: there is no file sub/rows.jsonl",
        ),
        (
            "variants: {a: {}}\nrecipe: debate\n",
            "input=rows.jsonl",
            "input=rows.jsonl: input: there is no file rows.jsonl",
        ),
        ("recipe: debate\ninput: rows.jsonl\n", "", "variants is missing"),
        ("recipe: debate\nvariant: {a: {}}\ninput: rows.jsonl\n", "-c v.yaml", "unknown key; did you mean variants?"),
        (
            "recipe: debate\ninput: rows.jsonl\nrepeats: 0\n",
            "-c v.yaml",
            "repeats: 0 is not a whole number, at least 1",
        ),
    ],
)
def test_an_experiment_stands_in_a_file_with_its_input_beside_it_and_variants_in_others(
    terminal: Terminal, file: str, arguments: str, complaint: str
) -> None:
    Path("sub").mkdir()
    Path("sub/e.yaml").write_text(file)
    Path("v.yaml").write_text("n: 3\n")
    code, _, error = terminal("experiment", "sub/e.yaml", *arguments.split())
    assert code == 2
    assert complaint in error


def test_an_experiments_options_are_shown_with_the_file_of_each_variant(terminal: Terminal) -> None:
    Path("e.yaml").write_text("recipe: debate\ninput: rows.jsonl\nvariants: {plain: {}}\n")
    Path("base.yaml").write_text("n: 3\nsampling.temperature: 0.5\n")
    Path("warm.yaml").write_text("extends: base.yaml\nn: 4\n")
    code, printed, error = terminal("config", "experiment", "e.yaml", "-c", "warm.yaml", "repeats=2", "--json")
    assert code == 0, error
    shown = {entry["key"]: (entry["value"], entry["origin"]["name"]) for entry in json.loads(printed)}
    assert shown["input"] == ("rows.jsonl", "e.yaml")
    assert shown["variants.plain"] == ({}, "e.yaml")
    assert shown["variants.warm.n"] == (4, "warm.yaml")
    assert shown["variants.warm[sampling.temperature]"] == (0.5, "base.yaml")
    assert shown["repeats"] == (2, "repeats=2")
    code, _, error = terminal("job", "create", "experiment", "e.yaml")
    assert (code, "e.yaml: input: there is no file rows.jsonl" in error) == (2, True)
