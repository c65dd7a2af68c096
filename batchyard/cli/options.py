"""What commands share: the data folder, the models file, the settings, and the server that follow from them.

What takes long to import is imported where it is used, here and in the commands: `--help` and Tab completion do without
the settings (pydantic) and the client (openai).
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from batchyard.errors import ConfigurationError, UnavailableError
from batchyard.local_state import local_state

if TYPE_CHECKING:
    from batchyard.cli.client import Client
    from batchyard.settings import Settings

PATIENCE = 3.0
"""Seconds that `fetch` waits: who pressed Tab does not."""
_LOOPBACK = ("127.0.0.1", "localhost", "::1")

data_option = click.option("--data", type=click.Path(path_type=Path), help="Folder that holds all state [./data].")
models_option = click.option("--models", type=click.Path(path_type=Path), help="The models file [./models.toml].")


def load_settings(**overrides: Any) -> Settings:
    """The settings in force. Overrides come from the command line; None leaves a setting as it is."""
    from batchyard import settings

    return settings.load(**{name: value for name, value in overrides.items() if value is not None})


def environment() -> dict[str, str | None]:
    """Return the variables of the environment and of `.env`."""
    if not Path(".env").is_file():
        return dict(os.environ)
    from dotenv import dotenv_values

    return {**dotenv_values(".env"), **os.environ}


def data_folder(data: Path | None) -> Path:
    """Return the data folder as the settings have it, without them."""
    return data or Path(environment().get("BATCHYARD_DATA") or "data")


def configured_url() -> str | None:
    """The server that BATCHYARD_URL names, in the environment or `.env`; None if unset."""
    return environment().get("BATCHYARD_URL")


def server_runs(data: Path) -> bool:
    """True if there is a server to use: BATCHYARD_URL names one, or a local stack runs on the folder `data`."""
    return configured_url() is not None or bool(local_state(data))


def address(data: Path) -> tuple[str, str]:
    """Return URL and key of the server at BATCHYARD_URL, or of the local stack on the folder `data`.

    Without BATCHYARD_API_KEY the key is the local stack's admin key, but for this machine only.

    Raises:
        ConfigurationError: there is no key to send.
    """
    from urllib.parse import urlsplit

    url = configured_url() or local_state(data).get("url") or "http://127.0.0.1:8000"
    key = environment().get("BATCHYARD_API_KEY")
    key_file = data / "admin.key"
    if not key and urlsplit(url).hostname in _LOOPBACK and key_file.is_file():
        key = key_file.read_text().strip()
    if not key:
        raise ConfigurationError(
            f"no API key for {url}: set BATCHYARD_API_KEY, or name a local stack's folder with --data "
            f"({key_file} is not there)"
        )
    return url.rstrip("/"), key


def connect(data: Path | None) -> Client:
    """Return a client of the server that BATCHYARD_URL names, or of the local stack on the data folder."""
    from batchyard.cli import client

    return client.connect(load_settings(data=data).data)


def fetch(data: Path, path: str) -> list[dict[str, Any]]:
    """Return the first objects of a list of the server, such as `/models`, for Tab completion and `--help`.

    Raises:
        ConfigurationError: there is no key to send.
        UnavailableError: the server is away, slow, or refuses.
    """
    import http.client
    import urllib.request

    url, key = address(data)
    request = urllib.request.Request(f"{url}/v1{path}", headers={"Authorization": f"Bearer {key}"})
    try:
        with urllib.request.urlopen(request, timeout=PATIENCE) as response:
            return list(json.load(response)["data"])
    except (OSError, http.client.HTTPException, ValueError, LookupError, TypeError) as error:
        raise UnavailableError(f"{url}: {error}") from error
