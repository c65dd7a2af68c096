"""What commands share: the data folder, the models file, the settings, and the server that follows from them.

What takes long to import is imported where it is used, here and in the commands: `--help` and Tab completion do without
the settings (pydantic) and the client (httpx).
"""

from __future__ import annotations

import functools
import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from batchyard.cli.output import say
from batchyard.client import api
from batchyard.client.address import address
from batchyard.client.api import ApiClient
from batchyard.errors import UnavailableError

if TYPE_CHECKING:
    from batchyard.settings import Settings

PATIENCE = 3.0
"""Seconds that `fetch` waits: who pressed Tab does not."""

data_option = click.option("--data", type=click.Path(path_type=Path), help="Folder that holds all state [./data].")
json_option = click.option("--json", "as_json", is_flag=True, help="One JSON document on standard output.")
servers_option = click.option(
    "--server",
    "servers",
    metavar="URL",
    multiple=True,
    help="An OpenAI-compatible server, such as http://gpu1:8000/v1.",
)
key_env_option = click.option(
    "--server-key-env", metavar="VARIABLE", help="The environment variable with the API key of these servers."
)
models_option = click.option("--models", type=click.Path(path_type=Path), help="The models file [./models.toml].")


def add_options(*options: Callable[..., Any]) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    def add(command: Callable[..., Any]) -> Callable[..., Any]:
        for option in reversed(options):
            command = option(command)
        return command

    return add


server_options = add_options(data_option, json_option)
stack_options = add_options(data_option, models_option, json_option)


Said = tuple[Any, str]
"""What a command says: a document for scripts, and a text for people."""


def on_server(command: Callable[..., Said]) -> Callable[..., None]:
    """Call a command with a client, and print what it returns. Adds --data and --json."""

    @server_options
    @functools.wraps(command)
    def run(data: Path | None, as_json: bool, **arguments: Any) -> None:
        say(*command(connect(data), **arguments), as_json)

    return run


def load_settings(**overrides: Any) -> Settings:
    """Return the settings in force. An override of None leaves its setting."""
    from batchyard import settings

    return settings.load(**{name: value for name, value in overrides.items() if value is not None})


def connect(data: Path | None) -> ApiClient:
    """Return a client of the server that BATCHYARD_URL names, or of the local stack on the data folder."""
    return api.connect(load_settings(data=data).data)


def fetch(data: Path, path: str) -> list[dict[str, Any]]:
    """Return the first objects of a list of the server, such as `/models`, for Tab completion and `--help`."""
    import http.client
    import urllib.request

    from batchyard import proxies

    url, key = address(data)
    request = urllib.request.Request(f"{url}/v1{path}", headers={"Authorization": f"Bearer {key}"})
    try:
        with proxies.opener(url).open(request, timeout=PATIENCE) as response:
            return list(json.load(response)["data"])
    except (OSError, http.client.HTTPException, ValueError, LookupError, TypeError) as error:
        raise UnavailableError(f"{url}: {error}") from error
