"""What the shell offers on Tab: ids of batches and names of models, from the server that the command would ask.

A server that is away, slow or refuses offers nothing: nobody wants an error in the middle of a line.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import islice

import click
from click.shell_completion import CompletionItem

from batchyard.cli import client
from batchyard.cli.client import Client
from batchyard.cli.options import load_settings
from batchyard.errors import BatchyardError

MOST = 100
SECONDS = 3.0

Source = Callable[[click.Context, click.Parameter, str], list[CompletionItem]]


def _from_server(offer: Callable[[Client], Iterable[tuple[str, str]]]) -> Source:
    """Offers what `offer` finds: words, each with what zsh and fish show beside it."""

    def complete(context: click.Context, _: click.Parameter, begun: str) -> list[CompletionItem]:
        try:
            data = load_settings(data=context.params.get("data")).data
            words = list(offer(client.connect(data, timeout=SECONDS, max_retries=0)))
        except BatchyardError:
            return []
        return [CompletionItem(word, help=about) for word, about in words if word.startswith(begun)]

    return complete


batches = _from_server(lambda server: ((batch["id"], batch["status"]) for batch in islice(server.batches(), MOST)))
models = _from_server(lambda server: ((model["id"], model["batchyard"]["engine"]) for model in server.models()))
