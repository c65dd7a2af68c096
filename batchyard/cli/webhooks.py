"""Commands on a project's webhooks: `webhook create|list|delete|deliveries|redeliver`."""

from __future__ import annotations

from pathlib import Path

import click

from batchyard.cli.options import connect, data_option
from batchyard.cli.output import json_option, say, table, when


@click.group()
def webhook() -> None:
    """Where the project's events are sent to."""


@webhook.command()
@click.argument("url")
@click.option("--name", help="What it is called [its host].")
@click.option("--event", "event_types", multiple=True, metavar="TYPE", help="Send only these types [all].")
@data_option
@json_option
def create(url: str, name: str | None, event_types: tuple[str, ...], data: Path | None, as_json: bool) -> None:
    """Have events sent to URL; prints the webhook's id and, this once, its signing secret."""
    created = connect(data).create_webhook(url, event_types, name)
    say(created, f"{created['id']}\n{created['signing_secret']}", as_json)


@webhook.command("list")
@data_option
@json_option
def list_(data: Path | None, as_json: bool) -> None:
    """The project's webhooks, newest first."""
    webhooks = connect(data).webhooks()
    if as_json:
        return say(webhooks, "", True)
    rows = [
        [w["id"], w["name"], w["url"], ", ".join(w["event_types"]), "yes" if w["batchyard"]["enabled"] else "no"]
        for w in webhooks
    ]
    table(["webhook", "name", "url", "events", "enabled"], rows)


@webhook.command()
@click.argument("webhook_id", metavar="ID")
@data_option
@json_option
def delete(webhook_id: str, data: Path | None, as_json: bool) -> None:
    """Delete a webhook; what it was not sent yet is not sent any more."""
    say(connect(data).delete_webhook(webhook_id), f"{webhook_id} is deleted", as_json)


@webhook.command()
@click.argument("webhook_id", metavar="ID")
@click.option("--limit", default=20, show_default=True, help="Show this many, newest first; at most 100.")
@data_option
@json_option
def deliveries(webhook_id: str, limit: int, data: Path | None, as_json: bool) -> None:
    """What was sent to a webhook and what waits to be."""
    history = connect(data).deliveries(webhook_id, limit)
    if as_json:
        return say(history, "", True)
    rows = [
        [d["id"], d["event_type"], d["state"], d["attempts"], d["status_code"], d["error"], when(d["next_attempt_at"])]
        for d in history
    ]
    table(["delivery", "event", "state", "attempts", "answer", "error", "next attempt"], rows)


@webhook.command()
@click.argument("webhook_id", metavar="ID")
@click.argument("delivery_id", metavar="DELIVERY")
@data_option
@json_option
def redeliver(webhook_id: str, delivery_id: str, data: Path | None, as_json: bool) -> None:
    """Send a delivery again at once."""
    delivery = connect(data).redeliver(webhook_id, delivery_id)
    say(delivery, f"{delivery['id']} is {delivery['state']}", as_json)
