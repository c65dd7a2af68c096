"""Completion by the shell on Tab: ids of batches and jobs, names of models, from the server of the command.

A server that is away, slow or refuses offers nothing: nobody wants an error in the middle of a line.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from itertools import islice
from typing import Any

import click
from click.shell_completion import CompletionItem

from batchyard.cli import client
from batchyard.cli.client import Client
from batchyard.cli.options import load_settings
from batchyard.errors import BatchyardError

LIMIT = 100
PATIENCE: Mapping[str, Any] = {"timeout": 3.0, "max_retries": 0}
"""Options of the client: who pressed Tab does not wait."""

Source = Callable[[click.Context, click.Parameter, str], list[CompletionItem]]


def _from_server(fetch: Callable[[Client], Iterable[tuple[str, str]]]) -> Source:
    """Complete from what `fetch` returns: words, each with the help text that zsh and fish show beside it."""

    def complete(context: click.Context, _: click.Parameter, prefix: str) -> list[CompletionItem]:
        try:
            data = load_settings(data=context.params.get("data")).data
            words = list(fetch(client.connect(data, **PATIENCE)))
        except BatchyardError:
            return []
        return [CompletionItem(word, help=text) for word, text in words if word.startswith(prefix)]

    return complete


batches = _from_server(lambda server: ((batch["id"], batch["status"]) for batch in islice(server.batches(), LIMIT)))
models = _from_server(lambda server: ((model["id"], model["batchyard"]["engine"]) for model in server.models()))
jobs = _from_server(lambda server: ((job["id"], job["status"]) for job in islice(server.jobs(), LIMIT)))
