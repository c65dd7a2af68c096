"""Commands on a project's webhooks: `webhook create|list|delete|deliveries|redeliver`."""

from __future__ import annotations

from pathlib import Path

import click

from batchyard.cli.options import connect, server_options
from batchyard.cli.output import say, say_table, when


@click.group()
def webhook() -> None:
    """Where the project's events are sent to."""


@webhook.command()
@click.argument("url")
@click.option("--name", help="What it is called [its host].")
@click.option("--event", "event_types", multiple=True, metavar="TYPE", help="Send only these types [all].")
@server_options
def create(url: str, name: str | None, event_types: tuple[str, ...], data: Path | None, as_json: bool) -> None:
    """Have events sent to URL; prints the webhook's id and, this once, its signing secret."""
    server = connect(data)
    host = url.partition("://")[2].partition("/")[0]
    types = list(event_types) or server.call("GET", "/webhook_event_types")["data"]
    body = {"url": url, "event_types": types, "name": name or (host or url)[:128]}
    created = server.call("POST", "/webhook_endpoints", body)
    say(created, f"{created['id']}\n{created['signing_secret']}", as_json)


@webhook.command("list")
@server_options
def list_(data: Path | None, as_json: bool) -> None:
    """The project's webhooks, newest first."""
    webhooks = list(connect(data).listed("/webhook_endpoints"))
    rows = [
        [w["id"], w["name"], w["url"], ", ".join(w["event_types"]), "yes" if w["batchyard"]["enabled"] else "no"]
        for w in webhooks
    ]
    say_table(webhooks, ["webhook", "name", "url", "events", "enabled"], rows, as_json)


@webhook.command()
@click.argument("webhook_id", metavar="ID")
@server_options
def delete(webhook_id: str, data: Path | None, as_json: bool) -> None:
    """Delete a webhook; what it was not sent yet is not sent any more."""
    say(connect(data).call("DELETE", f"/webhook_endpoints/{webhook_id}"), f"{webhook_id} is deleted", as_json)


@webhook.command()
@click.argument("webhook_id", metavar="ID")
@click.option("--limit", default=20, show_default=True, help="Show this many, newest first; at most 100.")
@server_options
def deliveries(webhook_id: str, limit: int, data: Path | None, as_json: bool) -> None:
    """What was sent to a webhook and what waits to be."""
    history = connect(data).call("GET", f"/webhook_endpoints/{webhook_id}/deliveries", limit=limit)["data"]
    rows = [
        [d["id"], d["event_type"], d["state"], d["attempts"], d["status_code"], d["error"], when(d["next_attempt_at"])]
        for d in history
    ]
    columns = ["delivery", "event", "state", "attempts", "answer", "error", "next attempt"]
    say_table(history, columns, rows, as_json)


@webhook.command()
@click.argument("webhook_id", metavar="ID")
@click.argument("delivery_id", metavar="DELIVERY")
@server_options
def redeliver(webhook_id: str, delivery_id: str, data: Path | None, as_json: bool) -> None:
    """Send a delivery again at once."""
    delivery = connect(data).call("POST", f"/webhook_endpoints/{webhook_id}/deliveries/{delivery_id}/redeliver")
    say(delivery, f"{delivery['id']} is {delivery['state']}", as_json)
