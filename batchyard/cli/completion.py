"""Tab completion of ids and models from the server of the command.

A server that is away, slow or refuses offers nothing: nobody wants an error in the middle of a line.
"""

from collections.abc import Callable
from typing import Any

import click
from click.shell_completion import CompletionItem

from batchyard.cli.options import fetch
from batchyard.client.address import data_folder
from batchyard.errors import BatchyardError

Source = Callable[[click.Context, click.Parameter, str], list[CompletionItem]]


def _ids(path: str, help_of: Callable[[dict[str, Any]], str]) -> Source:
    """Complete ids of a list of the server; zsh and fish show `help_of` beside them."""

    def complete(context: click.Context, _: click.Parameter, prefix: str) -> list[CompletionItem]:
        try:
            entries = fetch(data_folder(context.params.get("data")), path)
        except BatchyardError:
            return []
        return [CompletionItem(entry["id"], help=help_of(entry)) for entry in entries if entry["id"].startswith(prefix)]

    return complete


batches = _ids("/batches?limit=100", lambda batch: str(batch["status"]))
models = _ids("/models", lambda model: str(model["batchyard"]["engine"]))
jobs = _ids("/jobs?limit=100", lambda job: str(job["status"]))
