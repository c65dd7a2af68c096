"""`batchyard eval`: an evaluation in a file, from its data to its report, compared with the run before."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from batchyard.cli import job_view, requests
from batchyard.cli.output import complain, note
from batchyard.cli.recipes import commands
from batchyard.cli.recipes.group import RecipeCommand, path_of
from batchyard.client.api import ApiClient
from batchyard.errors import ConfigurationError, NotFoundError

if TYPE_CHECKING:
    from batchyard.config import Layer, Schema, Setting

RECIPE = "evaluate"
COMMAND = "eval"
DATA, SPLIT, COMPARE = ("data",), ("split",), ("compare_with",)
EXAMPLES, EXAMPLES_DATA, EXAMPLES_SPLIT = (("few_shot", name) for name in ("examples", "data", "split"))
LAST, NONE = "last", "none"
_FILES: Mapping[str, Any] = {
    "data": {"type": "string", "description": "Rows: .parquet, .jsonl, .csv, .json, or the folder of a data set"},
    "split": {"type": "string", "description": "Of a data set's folder; default: test, validation or train"},
}


class _EvalCommand(RecipeCommand):
    """The command takes the evaluation from a file, beside which its data stand, in our format or another's."""

    def schema(self, recipe: Mapping[str, Any]) -> Schema:
        from batchyard.config import Schema

        document = recipe["options"]
        definitions = dict(document["$defs"])
        few_shot = dict(definitions["FewShotOptions"])
        few_shot |= {"properties": {**few_shot["properties"], **_FILES}, "required": []}
        return Schema(
            {
                **document,
                "$defs": {**definitions, "FewShotOptions": few_shot},
                "properties": {**_FILES, **document["properties"]},
                "required": [*document.get("required", []), "data"],
            }
        )

    def files(self, schema: Schema, params: dict[str, Any]) -> list[Layer]:
        from batchyard import config
        from batchyard.client.evaluations import documents

        file: Path = params.pop("file")
        context = click.get_current_context()  # the folder lasts as long as the command
        params["folder"] = folder = Path(context.with_resource(tempfile.TemporaryDirectory(prefix="batchyard-")))
        foreign = documents.foreign(file, folder)
        if foreign is None:
            layers = config.files(schema, file)
        else:
            kind, evaluation = foreign
            note(f"{file} is read as one of {kind}")
            for key in evaluation.ignored:
                complain(f"warning: {file}: {key} is not read")
            options = {**evaluation.options, "data": str(evaluation.source.resolve())}
            layers = [config.Layer(config.Origin("file", str(file)), options)]
        params["name"] = params.get("name") or file.stem
        return layers + [layer for other in params.pop("files") for layer in config.files(schema, other)]

    def settled(self, settings: list[Setting], params: dict[str, Any]) -> list[Setting]:
        """Find the data, put few-shot examples in the place of their file, and note what to compare with."""
        from batchyard.client.evaluations import data
        from batchyard.config import Setting

        by_keys = {setting.keys: setting for setting in settings}
        folder: Path = params.pop("folder")
        params["source"] = data.source_of(path_of(by_keys[DATA]), _value(by_keys, SPLIT), folder)
        named = by_keys.get(COMPARE)
        params["compare_with"] = LAST if named is None or named.origin.kind == "default" else named.value
        taken = {DATA, SPLIT, COMPARE, EXAMPLES_DATA, EXAMPLES_SPLIT}
        kept = [setting for setting in settings if setting.keys not in taken]
        if EXAMPLES_DATA in by_keys:
            setting = by_keys[EXAMPLES_DATA]
            seed = _value(by_keys, ("few_shot", "seed")) or 0
            rows = data.examples(path_of(setting), _value(by_keys, EXAMPLES_SPLIT), folder, seed)
            if not rows:
                raise ConfigurationError(f"{setting.origin}: few_shot.data: {setting.value} has no rows")
            kept.append(Setting(EXAMPLES, rows, setting.origin))
        return kept


def _value(by_keys: Mapping[tuple[str, ...], Setting], keys: tuple[str, ...]) -> Any:
    return by_keys[keys].value if keys in by_keys else None


@click.argument("file", metavar="FILE", type=requests.INPUT_FILE)
@commands.overrides_argument
@commands.output_options
@commands.files_option
@commands.dry_run_option
@commands.run_options
def _run(
    recipe: dict[str, Any], settings: list[Setting], source: Path, compare_with: str | None, **fields: Any
) -> None:
    """FILE is YAML, TOML or JSON. `data` in it names the rows; all else are options. KEY=VALUE sets any option.

    FILE may also be a configuration of promptfoo, a task of lm-evaluation-harness over local data, or a document with
    OpenAI's graders (`testing_criteria`).

    The report compares each question with the last completed evaluation of the same name. compare_with=JOB names
    another one; compare_with=none turns this off.

    If no server is running, the command starts a local stack and stops it afterwards. To resume, run the same command
    again.
    """
    late = partial(_compared, name=fields["name"], compare_with=compare_with)
    commands.one_shot(recipe, settings, source, **fields, late=late, summary=_summary)


def _compared(server: ApiClient, again: bool, name: str, compare_with: str | None) -> dict[str, Any]:
    """Return the option that names the job to compare with, if there is one."""
    if compare_with in (None, NONE):
        return {}
    if compare_with == LAST:
        jobs = server.jobs(recipe=RECIPE)
        last = next((job for job in jobs if job["name"] == name and job["status"] == "completed"), None)
        if last is None:
            return {}
        note(f"compared with {last['id']}, the last evaluation called {name}")
        return {"compare_with": last["id"]}
    try:
        job = server.job(str(compare_with))
    except NotFoundError:
        raise ConfigurationError(f"compare_with: there is no job {compare_with}") from None
    if job["recipe"] != RECIPE:
        raise ConfigurationError(f"compare_with: {compare_with} is a job of recipe {job['recipe']}, not of {RECIPE}")
    return {"compare_with": job["id"]}


def _summary(server: ApiClient, job: dict[str, Any]) -> str:
    """The tables of the report but that of wrong answers, which page and artifact have, and how the questions ended."""
    tables = commands.report_tables(server, job)
    warnings = "\n".join(f"Warning: {warning['message']}" for warning in job["batchyard"]["warnings"])
    wrong = job["batchyard"]["counters"].get("wrong", 0)
    where = f"{wrong} answers are wrong: {server.page(job['id'])}/items" if wrong else ""
    return "\n\n".join(
        part for part in (tables, warnings, "\n".join(filter(None, (where, job_view.ended(job))))) if part
    )


run = _EvalCommand(COMMAND, _run, recipe=RECIPE)
run.short_help = "Evaluate a model as one file of questions and options says."
