"""`batchyard models`: list the models, and change them while the stack runs.

Changes go to the server that BATCHYARD_URL names, if it names one, else to this machine's data.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from batchyard.cli import view
from batchyard.cli.admin import local_database, remote
from batchyard.cli.options import add_options, connect, load_settings, server_options, stack_options
from batchyard.cli.output import lines_of, painted, say

if TYPE_CHECKING:
    from tasks.changing_models import ModelChanger


@click.group(invoke_without_command=True)
@server_options
@click.pass_context
def models(context: click.Context, data: Path | None, as_json: bool) -> None:
    """List, add, change and remove models."""
    if context.invoked_subcommand is not None:
        return
    served = connect(data).models(engines=True)
    adapters = any(m.get("parent") for m in served)
    rows = [
        [
            m["id"],
            *([m.get("parent")] if adapters else []),
            *(ours["engine"], state and painted(state.replace("_", " "), "red" if state == "on_hold" else None)),
            *(ours["in_flight"], ", ".join(ours["endpoints"])),
            *(ours["simulated"] or None, view.failure(ours)),
        ]
        for m in served
        for ours, state in [(m["batchyard"], m["batchyard"]["state"])]
    ]
    parent = ["adapter of"] if adapters else []
    columns = ["model", *parent, "engine", "state", "requests", "endpoints", "simulated", "last failure"]
    say(served, lines_of(columns, rows), as_json)


@contextmanager
def _changer(data: Path | None, models: Path | None) -> Iterator[ModelChanger]:
    """Yield what changes the models of the deployment on this machine."""
    from batchyard.models import parsed
    from store import keys
    from tasks.changing_models import ModelChanger
    from tasks.models_in_force import ModelsInForce

    settings = load_settings(data=data, models=models)
    with local_database(data) as database:
        source = ModelsInForce(settings, database, parsed(settings.models))
        yield ModelChanger(settings, database, source, keys.terminal_of_deployment, trusted=True)


def _entry(engine: str | None, source: str | None, options: tuple[str, ...]) -> dict[str, Any]:
    """Return the entry that the options of a command say. Raises click.BadParameter."""
    from batchyard.models import toml

    entry: dict[str, Any] = {key: value for key, value in (("engine", engine), ("source", source)) if value is not None}
    for option in options:
        key, equals, value = option.partition("=")
        try:
            parsed: Any = None if equals and not value else toml(f"value = {value}")["value"]
        except ValueError:
            parsed = value  # a text without quotation marks
        *tables, last = key.strip().split(".")
        if not equals or not last or len(tables) > 1:
            raise click.BadParameter(f"{option}: write KEY=VALUE or TABLE.KEY=VALUE", param_hint="--set")
        target = entry.setdefault(tables[0], {}) if tables else entry
        if not isinstance(target, dict):
            raise click.BadParameter(f"{option}: {tables[0]} is set to no table before", param_hint="--set")
        target[last] = parsed
    return entry


_entry_options = add_options(
    click.option("--engine", help="Engine of the model, such as vllm."),
    click.option("--source", help="Folder or hub id of the model."),
    click.option(
        "-s",
        "--set",
        "options",
        multiple=True,
        metavar="KEY=VALUE",
        help="A key of the entry in TOML, such as engine_args.max_model_len=4096; repeatable. Without VALUE it is "
        "removed.",
    ),
)


@models.command("add")
@click.argument("name")
@_entry_options
@stack_options
def add(name: str, data: Path | None, models: Path | None, as_json: bool, **given: Any) -> None:
    """Serve the model NAME from now on, without a restart."""
    entry = {"engine": "auto", **_entry(**given)}
    if server := remote(data):
        warnings = server.call("POST", "/models", {"id": name, "entry": entry})["warnings"]
    else:
        with _changer(data, models) as changer:
            _, warnings = changer.add(name, entry)
    _report(name, "served", warnings, as_json)


@models.command("set")
@click.argument("name")
@_entry_options
@stack_options
def set_(name: str, data: Path | None, models: Path | None, as_json: bool, **given: Any) -> None:
    """Change the model NAME. Running batches end with the configuration that they began with."""
    entry = _entry(**given)
    if server := remote(data):
        warnings = server.call("PATCH", f"/models/{name}", {"entry": entry})["warnings"]
    else:
        with _changer(data, models) as changer:
            _, warnings = changer.set(name, entry)
    _report(name, "changed", warnings, as_json)


def _report(name: str, done: str, warnings: list[str], as_json: bool) -> None:
    for warning in warnings:
        click.echo(f"Model {name}, {warning}.", err=True)
    say({"id": name, "warnings": warnings}, f"{name} is {done}", as_json)


@models.command("remove")
@click.argument("name")
@stack_options
def remove(name: str, data: Path | None, models: Path | None, as_json: bool) -> None:
    """Remove the model NAME. New requests are refused; running batches end."""
    if server := remote(data):
        server.call("DELETE", f"/models/{name}")
    else:
        with _changer(data, models) as changer:
            changer.remove(name)
    say({"id": name, "deleted": True}, f"{name} is removed", as_json)


@models.command("reset")
@click.argument("name")
@stack_options
def reset(name: str, data: Path | None, models: Path | None, as_json: bool) -> None:
    """Undo changes of the model NAME: its entry in models.toml counts again. Also undoes a removal."""
    if server := remote(data):
        server.call("PATCH", f"/models/{name}", {"entry": None})
    else:
        with _changer(data, models) as changer:
            changer.reset(name)
    _report(name, "as models.toml has it", [], as_json)


@models.command("reload")
@server_options
def reload(data: Path | None, as_json: bool) -> None:
    """Put models.toml in force as it is now, below the changes made since."""
    difference = connect(data).call("POST", "/models/reload")
    names = ("added", "changed", "removed")
    text = "; ".join(f"{what}: {', '.join(difference[what])}" for what in names if difference[what])
    if kept := difference["not_used"]:
        click.echo(f"Not read from models.toml, as they were changed since: {', '.join(kept)}.", err=True)
    say(difference, text or "nothing has changed", as_json)


@models.command("export")
@stack_options
def export(data: Path | None, models: Path | None, as_json: bool) -> None:
    """Write the models in force as a models.toml to standard output. Works on this machine only."""
    with _changer(data, models) as changer:
        written = changer.written()
    say({"toml": written}, written.rstrip("\n"), as_json)
