"""`batchyard experiment`: an experiment in a file, from its input to its comparison."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from batchyard.cli import job_view, requests
from batchyard.cli.options import server_options
from batchyard.cli.recipes import commands
from batchyard.cli.recipes.group import RecipeCommand, path_of
from batchyard.client.api import ApiClient
from batchyard.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from batchyard.config import Layer, Schema, Setting

INPUT = "input"


class _ExperimentCommand(RecipeCommand):
    """The command takes the experiment from a file, beside which its input stands, and variants from others."""

    def schema(self, recipe: Mapping[str, Any]) -> Schema:
        from batchyard.config import Schema

        document = recipe["options"]
        field = {"type": "string", "description": "File with the rows: .parquet, .jsonl, .csv or .txt"}
        required = [*document.get("required", []), INPUT]
        return Schema({**document, "properties": {INPUT: field, **document["properties"]}, "required": required})

    def files(self, schema: Schema, params: dict[str, Any]) -> list[Layer]:
        from batchyard import config

        layers = config.files(schema, params.pop("file"))
        # The server knows the options of the variant's recipe, and which of its dotted keys are paths.
        free = config.Schema({"type": "object"})
        return layers + [
            config.Layer(layer.origin, {"variants": {file.stem: layer.values}})
            for file in params.pop("files")
            for layer in config.files(free, file)
        ]

    def settled(self, settings: list[Setting], params: dict[str, Any]) -> list[Setting]:
        if not self.complete:
            return settings  # the command shows them, the name of the input among them
        (source,) = (setting for setting in settings if setting.keys == (INPUT,))
        params["source"] = path_of(source)
        if not params["source"].is_file():
            raise ConfigurationError(f"{source.origin}: {INPUT}: there is no file {params['source']}")
        return [setting for setting in settings if setting is not source]


_file = click.argument("file", metavar="FILE", type=requests.INPUT_FILE)
_variants = click.option(
    *("-c", "--config", "files"),
    multiple=True,
    type=click.Path(path_type=Path, dir_okay=False),
    help="File with a variant's options: YAML, TOML or JSON. The file's name is the variant's name.",
)


@_file
@commands.overrides_argument
@commands.output_options
@_variants
@commands.run_options
def _run(recipe: dict[str, Any], settings: list[Setting], source: Path, **fields: Any) -> None:
    """FILE is YAML, TOML or JSON and holds the options. `input` in it names the file with the rows.

    KEY=VALUE sets any option: repeats=3. The exit code is 1 if a `pass` condition does not hold.

    If no server is running, the command starts a local stack and stops it afterwards. To resume, run the same command
    again. After a change, jobs of an unchanged configuration are reused, and only the missing ones run.
    """

    def late(server: ApiClient, again: bool) -> dict[str, Any]:
        return {"reuse": False} if again else {}

    def summary(server: ApiClient, job: dict[str, Any]) -> str:
        return "\n\n".join(part for part in (commands.report_tables(server, job), job_view.ended(job)) if part)

    commands.one_shot(recipe, settings, source, **fields, late=late, summary=summary)


@_file
@commands.overrides_argument
@_variants
@commands.create_options
def _create(**fields: Any) -> None:
    """Upload the input that FILE names, and create a job. Prints the job's id."""
    commands.create(**fields)


@_file
@commands.overrides_argument
@_variants
@server_options
def _show(**fields: Any) -> None:
    """Print the value and origin of each option: FILE, a variant, a flag or KEY=VALUE."""
    commands.show(**fields)


run = _ExperimentCommand(job_view.EXPERIMENT, _run)
create = _ExperimentCommand(job_view.EXPERIMENT, _create)
config_command = _ExperimentCommand(job_view.EXPERIMENT, _show, complete=False)
