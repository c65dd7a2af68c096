"""Options that commands share: the data folder, the models file, the settings and the server that follow from them."""

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
    """The settings in force. Overrides come from the command line; None leaves a setting as it is."""
    return settings.load(**{name: value for name, value in overrides.items() if value is not None})


def connect(data: Path | None) -> Client:
    """Return a client of the server that BATCHYARD_URL names, or of the local stack on the data folder."""
    return client.connect(load_settings(data=data).data)
