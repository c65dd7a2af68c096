"""Commands whose options are a recipe's, and groups that have such a command for every recipe."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click.exceptions import NoSuchCommand

from batchyard.cli.options import data_option
from batchyard.cli.recipes import catalogue, flags
from batchyard.errors import BatchyardError

if TYPE_CHECKING:
    from batchyard.config import Layer, Schema, Setting

BUILT_IN = {
    "rollout": "Sample each prompt n times and score the answers.",
    "generate": "Generate synthetic data, filtered and without near-duplicates.",
    "refine": "Check, review and retry answers until they are accepted.",
    "panel": "Let agents propose, criticise and revise, and rank the results.",
    "agent": "Run a tool-using agent on each row, and score its result.",
    "evaluate": "Score a model on questions with known answers.",
    "experiment": "Compare variants of a recipe's options on one input.",
    "cascade": "Answer rows with a small model where it agrees with a large one.",
    "tune": "Measure configurations of a model and name the best.",
    "rank": "Rank the passages of each row by their similarity to its prompt.",
    "batch": "Answer each row once, as one batch.",
}
"""The summaries of the built-in recipes: a client has neither them nor, for `--help`, a server to ask."""
TEXT_WIDTH = 64
"""How long the summary of a command may be in `batchyard --help`, so that it fits 80 columns."""
EXAMPLES = Path(__file__).parents[1] / "examples.sh"
"""Commands, one on each line. The help of a command ends with the first SHOWN that call it."""
SHOWN = 2
_HELP = {"-h", "--help"}


class RecipeCommand(click.Command):
    """A command whose options are a recipe's. They are fetched as it parses its arguments.

    Its callback gets `recipe`, the object of GET /v1/recipes, and `settings`, the options in force with their origins.

    Args:
        complete: options without a default have to be set.
        recipe: its name if the command has another.
    """

    def __init__(
        self, name: str, callback: Callable[..., None], *, complete: bool = True, recipe: str | None = None
    ) -> None:
        self._what = inspect.getdoc(callback)
        self._recipe_name = recipe or name
        super().__init__(name, callback=callback, help=self._what, short_help=BUILT_IN.get(name))
        self._params: list[click.Parameter] = getattr(callback, "__click_params__", [])[::-1]  # as click's decorators
        self.complete = complete

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        try:
            recipe = self._recipe(ctx, args)
        except (BatchyardError, NoSuchCommand):
            if not ctx.resilient_parsing:
                raise
            self.params = self._params
        else:
            schema = ctx.meta[__name__] = self.schema(recipe)
            ctx.params["recipe"] = recipe
            arguments = [parameter for parameter in self._params if isinstance(parameter, click.Argument)]
            rest = [parameter for parameter in self._params if parameter not in arguments]
            self.params = [*arguments, *flags.options(schema, self._params), *rest]
            self.help = f"{recipe['summary']}\n\n{self._what}"
        return super().parse_args(ctx, args)

    def invoke(self, ctx: click.Context) -> Any:
        from batchyard import config

        schema = ctx.meta[__name__]
        values = {name: ctx.params.pop(name) for name in list(ctx.params) if name.startswith(flags.PREFIX)}
        files = self.files(schema, ctx.params)
        layers = [*files, *flags.layers(schema, values, ctx.params.pop("overrides"))]
        ctx.params["settings"] = self.settled(config.resolve(schema, layers, complete=self.complete), ctx.params)
        return super().invoke(ctx)

    def schema(self, recipe: Mapping[str, Any]) -> Schema:
        """Return the schema of what files and flags may set."""
        from batchyard.config import Schema

        return Schema(recipe["options"])

    def settled(self, settings: list[Setting], params: dict[str, Any]) -> list[Setting]:
        """Return the options in force. A subclass may take some out, and set parameters by them."""
        return settings

    def files(self, schema: Schema, params: dict[str, Any]) -> list[Layer]:
        """Take the files out of the command's parameters, and return their layers."""
        from batchyard import config

        return [layer for file in params.pop("files") for layer in config.files(schema, file)]

    def _recipe(self, ctx: click.Context, args: Sequence[str]) -> dict[str, Any]:
        """Return the recipe of this name, from the server that the command will use."""
        name = self._recipe_name
        look_up = catalogue.glance if ctx.resilient_parsing or not _HELP.isdisjoint(args) else catalogue.recipes
        # The arguments are not parsed yet, and `--data` among them names the recipe's server.
        settings = {"ignore_unknown_options": True, "allow_extra_args": True}
        command = data_option(click.Command("data", add_help_option=False, context_settings=settings))
        data: Path | None = command.make_context("data", list(args), resilient_parsing=True).params["data"]
        try:
            recipes = {recipe["name"]: recipe for recipe in look_up(data)}
        except BatchyardError as error:
            if name not in BUILT_IN:
                error.message = f"{name} is no command, and whether it is a recipe is not known: {error.message}"
            raise
        if name not in recipes:
            group = ctx.parent.command if ctx.parent else None
            commands = group.commands if isinstance(group, click.Group) else {}
            raise NoSuchCommand(name, possibilities=[*commands, *recipes], ctx=ctx.parent)
        return recipes[name]


def path_of(setting: Setting) -> Path:
    """Return the path that a setting names, relative to the file that it stands in."""
    folder = Path(setting.origin.name).parent if setting.origin.kind == "file" else Path()
    return folder / str(setting.value)


class RecipeGroup(click.Group):
    """A group with a command for every recipe, beside its own commands.

    Attributes:
        sections: the names of its commands by the title under which `--help` lists them; none: under one title.
        path: how the group is called, such as `batchyard job create`.

    `recipe_command`: makes the command of a recipe by its name.
    """

    path = ""

    def __init__(self, *args: Any, recipe_command: Callable[[str], RecipeCommand], **options: Any) -> None:
        super().__init__(*args, **options)
        self._recipe_command = recipe_command
        self.sections: dict[str, list[str]] = {}

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted({*super().list_commands(ctx), *BUILT_IN})

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        if not self.sections:
            return super().format_commands(ctx, formatter)
        width = max(map(len, self.list_commands(ctx)))
        for title, names in self.sections.items():
            commands = [command for name in names if (command := self.get_command(ctx, name))]
            with formatter.section(title):
                formatter.write_dl(
                    [(f"{command.name:{width}}", command.get_short_help_str(TEXT_WIDTH)) for command in commands]
                )

    def get_command(self, ctx: click.Context, name: str) -> click.Command | None:
        """Return a command of the group's own, else that of a recipe, which is looked up later."""
        command = super().get_command(ctx, name)
        if command is None and name[:1].isalpha():
            command = self._recipe_command(name)
            command.epilog = examples_of(f"{self.path} {name}")
        return command


def add_examples(command: click.Command, path: str) -> None:
    """Add examples to the help of a command and of its subcommands."""
    command.epilog = command.epilog or examples_of(path)
    if isinstance(command, RecipeGroup):
        command.path = path
    for name, subcommand in command.commands.items() if isinstance(command, click.Group) else ():
        add_examples(subcommand, f"{path} {name}")


def examples_of(path: str) -> str | None:
    """Return the examples of a command, such as `batchyard key create`."""
    lines = [line for line in _lines() if f"{line} ".startswith(f"{path} ")][:SHOWN]
    return "\n".join(["\b", "Examples:", *(f"  {line}" for line in lines)]) if lines else None


@functools.cache
def _lines() -> list[str]:
    return EXAMPLES.read_text().splitlines()
