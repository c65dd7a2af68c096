"""`--help` lists each command once, on one line that fits a terminal, and shows examples that exist."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from typing import Any

import click
import pytest

from batchyard.cli import main
from batchyard.cli.recipes.group import BUILT_IN, EXAMPLES, RecipeCommand, examples_of
from recipes import registry
from tests.batchyard.cli.recipes.conftest import *  # noqa: F403
from tests.batchyard.cli.recipes.conftest import Terminal

INTERNAL = {"cascade-round", "generate-round"}
"""Recipes that only other recipes run."""
LINES = EXAMPLES.read_text().splitlines()


def commands(group: click.Group = main.cli, path: str = "batchyard") -> Iterator[tuple[str, click.Command]]:
    """Every command that is no group, and every command of a built-in recipe."""
    context = click.Context(group)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        assert command is not None
        if isinstance(command, click.Group):
            yield from commands(command, f"{path} {name}")
        else:
            yield f"{path} {name}", command


def test_the_help_names_every_built_in_recipe_with_its_summary() -> None:
    built_in = registry.load(None).recipes
    assert {name: recipe.summary for name, recipe in built_in.items() if name not in INTERNAL} == BUILT_IN


def test_each_command_is_in_one_section_and_fits_a_line(terminal: Terminal, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    code, printed, _ = terminal("--help")
    assert code == 0 and max(map(len, printed.splitlines())) <= 80
    listed, _, _ = printed.partition("For Tab completion")
    _, *sections = re.split(r"\n(?=\w+:\n)", listed.partition("Show this message")[2])
    assert [section.partition(":")[0] for section in sections] == ["Run", "Look", "Recipes", "Manage", "Operate"]
    lines = [line for section in sections for line in section.splitlines()[1:] if line.strip()]
    assert "..." not in listed.partition("\n")[2]
    assert sorted(line.split()[0] for line in lines) == sorted({*main.cli.commands, *BUILT_IN})


@pytest.mark.parametrize("path", [path for path, _ in commands()])
def test_each_command_shows_two_examples(path: str) -> None:
    shown = examples_of(path)
    assert shown is not None and len(shown.splitlines()) == 4


@pytest.mark.parametrize("line", LINES)
def test_an_example_has_options_that_exist(line: str) -> None:
    _, *words = shlex.split(line)
    command: Any = main.cli
    while isinstance(command, click.Group):
        if command.invoke_without_command and (not words or words[0].startswith("-")):
            break
        command = command.get_command(click.Context(command), words.pop(0))
    if isinstance(command, RecipeCommand) or command.context_settings.get("ignore_unknown_options"):
        return  # the options are those of a recipe or of another program
    words = words[: words.index("--")] if "--" in words else words
    options = {name for parameter in command.params for name in (*parameter.opts, *parameter.secondary_opts)}
    assert {word for word in words if word.startswith("-") and word != "-"} <= options
