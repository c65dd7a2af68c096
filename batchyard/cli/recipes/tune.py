"""`batchyard tune`: cells of a matrix measured one after the other, and the best one as an entry for models.toml."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from batchyard.cli import completion, job_view
from batchyard.cli.output import lines_of
from batchyard.cli.recipes import commands, flags
from batchyard.cli.recipes.group import RecipeCommand
from batchyard.client.api import ApiClient
from batchyard.errors import ConfigurationError

if TYPE_CHECKING:
    from batchyard.config import Layer, Schema, Setting

REPORT = "report.md"


class _TuneCommand(RecipeCommand):
    """The command takes dimensions of the matrix as `--set KEY=VALUE,…`, beside those with flags of their own."""

    def files(self, schema: Schema, params: dict[str, Any]) -> list[Layer]:
        from batchyard.config import Layer, Origin

        dimensions: dict[str, list[Any]] = {}
        for text in params.pop("dimensions"):
            key, values = _dimension(text)
            dimensions.setdefault(key, []).extend(values)
        matrix = [Layer(Origin("flag", "--set"), {"set": dimensions})] if dimensions else []
        return [*super().files(schema, params), *matrix]


def _dimension(text: str) -> tuple[str, list[Any]]:
    """Return key and values of `replicas=1,2`. Raises ConfigurationError if it is not written so."""
    import yaml

    key, separator, values = text.partition("=")
    if not separator or not values.strip():
        raise ConfigurationError(f"--set {text}: write KEY=VALUE,VALUE, as in engine_args.max_num_seqs=32,64")
    try:
        return key.strip(), list(yaml.safe_load(f"[{values}]"))
    except yaml.YAMLError:
        raise ConfigurationError(f"--set {text}: {values} are no values; put texts in quotes") from None


@commands.source_argument
@commands.overrides_argument
@click.option(
    *("--model", f"{flags.PREFIX}models"),
    multiple=True,
    shell_complete=completion.models,
    help="Model to tune, by its name in models.toml; repeatable.",
)
@click.option(
    *("--set", "dimensions"),
    multiple=True,
    metavar="KEY=VALUE,…",
    help="Values to try for a key of the entry: engine_args.max_num_seqs=32,64; repeatable.",
)
@commands.files_option
@commands.output_options
@commands.dry_run_option
@commands.run_options
def _run(recipe: dict[str, Any], settings: list[Setting], source: Path, **fields: Any) -> None:
    """FILE is .parquet, .jsonl, .csv or .txt, one request per row. KEY=VALUE sets any option: limit=500.

    You need an admin key. If no server is running, the command starts a local stack and stops it afterwards. To resume
    after Ctrl-C or a crash, run the same command again: finished cells are not measured twice.
    """
    commands.one_shot(recipe, settings, source, **fields, summary=_summary, outlook=_cells)


def _cells(outlook: dict[str, Any]) -> str:
    rows = [
        (
            cell["name"],
            cell["model"],
            cell["concurrency"],
            ", ".join(f"{key}={value}" for key, value in cell["overrides"].items()),
        )
        for cell in outlook["cells"]
    ]
    warnings = [f"Warning: {warning['message']}" for warning in outlook["warnings"]]
    return "\n".join([lines_of(["cell", "model", "side by side", "overrides"], rows), *warnings])


def _summary(server: ApiClient, job: dict[str, Any]) -> str:
    files = {artifact["name"]: artifact["file_id"] for artifact in job["batchyard"]["artifacts"]}
    report = server.content(files[REPORT]).decode() if REPORT in files else ""
    return "\n\n".join(
        part for part in (report.strip(), f"{job_view.ended(job)}\nReport: {server.page(job['id'])}") if part
    )


run = _TuneCommand(job_view.TUNE, _run)
