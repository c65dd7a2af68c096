"""`chat`: questions to a model, answered at once."""

from __future__ import annotations

import collections
import contextlib
import json
import signal
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import click

from batchyard import durations
from batchyard.cli import completion
from batchyard.cli.options import connect, server_options
from batchyard.cli.output import complain, note, plain
from batchyard.endpoints.catalog import CHAT
from batchyard.errors import BatchyardError

if TYPE_CHECKING:
    from batchyard.client.chat import Chat

HELP = "/reset begins anew, /system TEXT sets the system message; Ctrl-C stops an answer, Ctrl-D ends the chat."


@click.command()
@click.argument("question", nargs=-1)
@click.option("-m", "--model", shell_complete=completion.models, help="Model; required if several can chat.")
@click.option("--system", help="System message.")
@click.option("--temperature", type=float, help="Temperature; 0 gives the likeliest answer.")
@click.option("--max-tokens", type=click.IntRange(1), help="Maximum tokens of an answer.")
@click.option("--sampling", metavar="JSON", help="Other request parameters, such as service_tier.")
@server_options
def chat(
    question: tuple[str, ...],
    model: str | None,
    system: str | None,
    temperature: float | None,
    max_tokens: int | None,
    sampling: str | None,
    data: Path | None,
    as_json: bool,
) -> None:
    """Chat with a model, or ask it a single question.

    With QUESTION or standard input, the command prints the answer and exits; standard input comes before QUESTION. With
    neither, it opens a conversation. These are live requests, which run before batches.
    """
    from batchyard.client.chat import Chat

    try:
        parameters = json.loads(sampling or "{}")
    except ValueError as error:
        raise click.UsageError(f"--sampling: no JSON: {error}") from error
    if not isinstance(parameters, dict):
        raise click.UsageError("--sampling: no JSON object")
    given = {"temperature": temperature, "max_tokens": max_tokens}
    parameters |= {name: value for name, value in given.items() if value is not None}
    piped = "" if sys.stdin.isatty() else sys.stdin.read().strip()
    text = "\n\n".join(part for part in (piped, " ".join(question)) if part)
    if not text and (as_json or not sys.stdin.isatty()):
        raise click.UsageError("there is no question: name one, or send it to standard input")
    server = connect(data)
    if model is None:
        names = [one["id"] for one in server.models() if CHAT.path in one["batchyard"]["endpoints"]]
        if len(names) != 1:
            choice = f"name one with --model: {', '.join(names)}" if names else "no model of this server can chat"
            raise click.UsageError(choice)
        model = str(names[0])
    conversation = Chat(server, model, system, parameters)
    if not text:
        return _converse(conversation)
    pieces = conversation.ask(text)
    if as_json:
        collections.deque(pieces, maxlen=0)
        return click.echo(json.dumps(conversation.reply.document()))
    _show(conversation, pieces)


def _show(conversation: Chat, pieces: Iterator[str]) -> None:
    """Print an answer as its pieces come, then on a terminal how fast it was. One that breaks off ends its line."""
    try:
        for piece in pieces:
            click.echo(plain(piece), nl=False)
    except BatchyardError:
        if conversation.reply.first_seconds is not None:
            click.echo()
        raise
    click.echo()
    reply = conversation.reply
    if reply.simulated:
        click.echo("batchyard: this answer is simulated", err=True)
    tokens, first = reply.usage.get("completion_tokens"), reply.first_seconds
    parts = (
        f"{tokens:,} tokens" if tokens else None,
        None if first is None else f"the first after {durations.brief(first)}",
        f"{reply.rate:.1f} a second" if reply.rate else None,
        "cut at --max-tokens" if reply.finish_reason == "length" else None,
    )
    note(", ".join(filter(None, parts)))


def _converse(conversation: Chat) -> None:
    with contextlib.suppress(ImportError):
        import readline  # noqa: F401 - arrow keys, and the questions before

    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGINT, signal.default_int_handler)  # each Ctrl-C ends what runs, and never the command
    click.echo(f"{plain(conversation.model)}. {HELP}", err=True)
    while True:
        try:
            line = input("> ").strip()
        except EOFError:
            return click.echo()
        except KeyboardInterrupt:
            click.echo("\nCtrl-D ends the chat.", err=True)
            continue
        command, _, rest = line.partition(" ")
        if command == "/reset":
            conversation.reset()
        elif command == "/system":
            conversation.system = rest.strip() or None
        elif command in ("/exit", "/quit"):
            return None
        elif command.startswith("/"):
            click.echo(HELP, err=True)
        elif line:
            pieces = conversation.ask(line)
            try:
                _show(conversation, pieces)
            except KeyboardInterrupt:
                pieces.close()  # type: ignore[attr-defined]
                click.echo("\nstopped", err=True)
            except BatchyardError as error:
                complain(error.message)
