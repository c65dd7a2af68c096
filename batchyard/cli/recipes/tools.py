"""`tool list|call|add`: the tools of this deployment, a try of one, and those of an MCP server."""

import asyncio
import json
import queue
import re
import secrets
from contextlib import closing
from pathlib import Path

import click

from batchyard.cli import requests
from batchyard.cli.options import json_option, load_settings
from batchyard.cli.output import lines_of, say
from batchyard.cli.watch import Unsuccessful
from batchyard.errors import ConfigurationError


@click.group()
def tool() -> None:
    """Manage the tools that recipes and models may call."""


@tool.command("list")
@json_option
def list_(as_json: bool) -> None:
    """List the tools of BATCHYARD_RECIPES and of installed packages."""
    from recipes import registry

    catalogue = registry.load(load_settings().recipes or None)
    rows = [
        {
            "name": each.name,
            "mode": each.mode,
            "seconds": each.seconds,
            "memory_mb": each.memory_mb,
            "output_bytes": each.output_bytes,
            "description": each.description.partition("\n")[0],
            "place": catalogue.place(each),
        }
        for each in catalogue.tools.values()
    ]
    nothing = "There are no tools. A file in the folder BATCHYARD_RECIPES adds some; see docs/agents.md."
    say(rows, lines_of(list(rows[0]), [list(row.values()) for row in rows]) if rows else nothing, as_json)


@tool.command()
@click.argument("name")
@click.argument("arguments", default="{}")
def call(name: str, arguments: str) -> None:
    """Call a tool with ARGUMENTS, a JSON object, within its limits."""
    import orjson

    from batchyard import json_lines
    from batchyard.comparing import schemas
    from batchyard.recipes import Call, Called
    from recipes import registry
    from recipes.tools.pool import ToolCalls

    settings = load_settings()
    entry = registry.load(settings.recipes or None).tool(name, "NAME")
    try:
        values = json_lines.loads(arguments)
    except orjson.JSONDecodeError as error:
        raise click.BadParameter(f"it is not JSON: {error}", param_hint="ARGUMENTS") from None
    if (violation := schemas.violation(entry.parameters, values)) is not None:
        raise click.BadParameter(violation, param_hint="ARGUMENTS")
    outcomes = queue.Queue[Called]()
    with closing(ToolCalls(settings.recipes, 1, settings.tool_sandbox)) as calls:
        key = secrets.token_hex(16)
        calls.submit("terminal", key, Call(name, **values), is_retriable=False, done=outcomes.put)
        outcome = outcomes.get()
    click.echo(outcome.text)
    if not outcome.ok:
        raise Unsuccessful("the call failed")


@tool.command()
@click.argument("name")
@click.argument("command", nargs=-1)
@click.option("--url", help="URL of the server, in place of a command.")
@click.option("--header", "headers", multiple=True, metavar="NAME=VALUE", help="HTTP header; ${VARIABLE} is filled in.")
@click.option("--env", multiple=True, metavar="NAME=VALUE", help="Environment variable of the command.")
def add(name: str, command: tuple[str, ...], url: str | None, headers: tuple[str, ...], env: tuple[str, ...]) -> None:
    """Add the tools of an MCP server to BATCHYARD_RECIPES."""
    from recipes import mcp_servers, registry

    if not re.fullmatch(r"[A-Za-z][A-Za-z0-9_-]{0,39}", name):
        raise click.BadParameter(
            "take at most 40 letters, digits, hyphens and underscores, a letter first", param_hint="NAME"
        )
    folder = load_settings().recipes
    if not folder:
        raise ConfigurationError("BATCHYARD_RECIPES names no folder; set it to the one for the deployment's recipes")
    if bool(command) == bool(url):
        raise click.UsageError("name either a command, behind --, or a --url")
    server = mcp_servers.McpServer(
        command=command[0] if command else None,
        args=list(command[1:]),
        url=url,
        headers=requests.pairs(headers, "--header"),
        env=requests.pairs(env, "--env"),
    )
    tools = mcp_servers.renamed(name, asyncio.run(mcp_servers.asked(server)))
    file = Path(folder) / f"{name}{mcp_servers.SUFFIX}"
    document = server.model_copy(update={"tools": tools}).model_dump(exclude_defaults=True)
    before = file.read_bytes() if file.exists() else None
    file.write_text(json.dumps(document, indent=2, ensure_ascii=False) + "\n")
    try:
        registry.load(folder)
    except ConfigurationError:  # no stack would start with it
        file.unlink() if before is None else file.write_bytes(before)
        raise
    click.echo(lines_of(["name", "mode"], [[each.called or f"{name}_{each.name}", each.mode] for each in tools]))
    for each in tools:
        if each.called:
            click.echo(f"Renamed: {each.name} is {each.called}, since APIs of models take no other name.")
    click.echo(f"Written: {file}. Look at each mode: a tool that is `once` is not called again after a crash.")
