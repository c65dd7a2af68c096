"""What commands share: where the data is, the settings in force, and the server to talk to."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from batchyard import settings
from batchyard.cli import client
from batchyard.cli.client import Client

data_option = click.option("--data", type=click.Path(path_type=Path), help="Folder that holds all state [./data].")
models_option = click.option("--models", type=click.Path(path_type=Path), help="The models file [./models.toml].")


def load_settings(**overrides: Any) -> settings.Settings:
    """The settings in force, with what the command line gave."""
    return settings.load(**{name: value for name, value in overrides.items() if value is not None})


def connect(data: Path | None) -> Client:
    """A client of the server that BATCHYARD_URL names or that runs on the data folder."""
    return client.connect(load_settings(data=data).data)
