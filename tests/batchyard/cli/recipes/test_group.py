"""Commands that are made from recipes: their flags, and the configuration that follows from them. No server runs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from batchyard.cli import main
from recipes.registry import COMMANDS
from tests.batchyard.cli.recipes.conftest import Terminal


def configured(terminal: Terminal, *arguments: str) -> dict[str, tuple[Any, str]]:
    """Return value and origin of each option by key."""
    code, printed, complaint = terminal("config", "debate", "--json", *arguments)
    assert code == 0, complaint
    return {entry["key"]: (entry["value"], entry["origin"]["name"]) for entry in json.loads(printed)}


def test_a_recipe_of_the_folder_has_a_command_with_its_options_as_flags(terminal: Terminal) -> None:
    code, printed, _ = terminal("debate", "--help")
    assert code == 0
    assert "Let several answers compete." in printed
    for flag in (
        "-n, --n INTEGER",
        "--agents, --agent TEXT,…",
        "--diversity / --no-diversity",
        "--keep-order all|best",
    ):
        assert flag in printed
    assert "Answers to each question [3]" in printed
    assert "--sampling" not in printed


def test_flags_lists_files_and_overrides_come_together_and_know_their_origins(terminal: Terminal) -> None:
    Path("base.yaml").write_text("model: nano\nn: 4\nsampling.temperature: 0.5\nagents: [DATA]\n")
    Path("child.toml").write_text("extends = 'base.yaml'\nkeep_order = 'best'\nn = 5\n")
    values = configured(
        terminal, "-c", "child.toml", "-n", "6", "--agents", "DEV,QA", "--no-diversity", "sampling.temperature=0.8"
    )
    assert values["model"] == ("nano", "base.yaml")
    assert values["keep_order"] == ("best", "child.toml")
    assert values["n"] == (6, "--n")
    assert values["agents"] == (["DEV", "QA"], "--agents")
    assert values["diversity"] == (False, "--diversity")
    assert values["sampling.temperature"] == (0.8, "sampling.temperature=0.8")
    assert values["retries"] == (2, "default")


def test_a_repeated_flag_makes_a_list_and_a_taken_name_is_set_as_an_override(terminal: Terminal) -> None:
    values = configured(terminal, "--agents", "DEV", "--agents", "[{role: QA}]", "output=elsewhere")
    assert values["agents"][0] == ["DEV", {"role": "QA"}]
    assert values["output"][0] == "elsewhere"


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        ("debaters rows.jsonl", "No such command 'debaters'. Did you mean 'debate'?"),
        ("job create debaters rows.jsonl", "No such command 'debaters'. Did you mean 'debate'?"),
        ("debate rows.jsonl", "model is missing: set it in a file, by a flag, or with model=VALUE"),
        ("debate nowhere.jsonl --model m", "File 'nowhere.jsonl' does not exist"),
        ("debate rows.jsonl --model m -n 1", "--n: 1 is not a whole number, at least 2, at most 9"),
        ("debate rows.jsonl --model m -n many", '--n: "many" is not a whole number, at least 2, at most 9'),
        ("debate rows.jsonl --modl m", "No such option '--modl'"),
        ("debate rows.jsonl --model m sampling.temp=1", "unknown key; did you mean sampling.temperature?"),
        ("debate rows.jsonl --model m sampling", "sampling: write KEY=VALUE"),
        ("debate rows.jsonl --model m -c none.yaml", "none.yaml: No such file or directory"),
        ("debate rows.jsonl --model m -o nowhere/out.jsonl", "name a file in a folder that exists"),
        ("debate rows.jsonl --model m --window 1y", "write a whole number and s, m, h or d, such as '24h'"),
    ],
)
def test_what_is_written_wrongly_is_said_on_one_line_before_anything_starts(
    arguments: str, complaint: str, terminal: Terminal
) -> None:
    Path("rows.jsonl").write_text('{"prompt": "hello"}\n')
    code, printed, error = terminal(*arguments.split())
    assert (code, printed) == (2, "")
    assert error.count("\n") == 1
    assert complaint in error
    assert not Path("data").exists()


def test_a_file_that_cannot_be_imported_is_named_with_its_line(terminal: Terminal) -> None:
    Path("recipes/broken.py").write_text("import json\nimport no_such_module\n")
    code, _, error = terminal("debate", "--help")
    assert code == 2
    assert "broken.py, line 2" in error


def test_an_unknown_command_says_that_recipes_are_unknown_while_the_server_is_away(
    terminal: Terminal, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BATCHYARD_URL", "http://127.0.0.1:9")
    monkeypatch.setenv("BATCHYARD_API_KEY", "by-0-0")
    code, _, error = terminal("nonsense")
    assert code == 3
    assert "nonsense is no command, and whether it is a recipe is not known: no server answers" in error


def test_a_lists_flag_may_be_written_in_the_singular(terminal: Terminal) -> None:
    values = configured(terminal, "--agent", "DEV", "--agent", "QA")
    assert values["agents"] == (["DEV", "QA"], "--agents")
    code, printed, _ = terminal("refine", "--help")
    assert code == 0
    assert "--gates, --gate TEXT,…" in printed and "--tiers, --tier TEXT,…" in printed
    assert "-c, --config FILE" in printed and "--reviewer TEXT" in printed


def test_help_lists_the_built_in_recipes_without_asking_a_server(
    terminal: Terminal, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BATCHYARD_URL", "http://127.0.0.1:9")
    code, printed, _ = terminal("--help")
    assert code == 0
    assert "rollout" in printed
    assert "panel" in printed
    assert "refine" in printed


def test_no_recipe_can_take_the_name_of_a_command() -> None:
    commands = set(main.cli.commands)
    assert commands <= COMMANDS
