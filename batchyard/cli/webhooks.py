"""Commands on a project's webhooks: `webhook create|list|delete|deliveries|redeliver`."""

from __future__ import annotations

from pathlib import Path

import click

from batchyard.cli.options import connect, server_options
from batchyard.cli.output import say, say_table, when


@click.group()
def webhook() -> None:
    """Manage the receivers of the project's events."""


@webhook.command()
@click.argument("url")
@click.option("--name", help="Name of the webhook [its host].")
@click.option("--event", "event_types", multiple=True, metavar="TYPE", help="Event type to send; repeatable [all].")
@server_options
def create(url: str, name: str | None, event_types: tuple[str, ...], data: Path | None, as_json: bool) -> None:
    """Send the project's events to URL.

    Prints the webhook's id and its signing secret, which is shown only once.
    """
    server = connect(data)
    host = url.partition("://")[2].partition("/")[0]
    types = list(event_types) or server.call("GET", "/webhook_event_types")["data"]
    body = {"url": url, "event_types": types, "name": name or (host or url)[:128]}
    created = server.call("POST", "/webhook_endpoints", body)
    say(created, f"{created['id']}\n{created['signing_secret']}", as_json)


@webhook.command("list")
@server_options
def list_(data: Path | None, as_json: bool) -> None:
    """List the webhooks of the project, newest first."""
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
    """Delete a webhook. Pending deliveries are dropped."""
    say(connect(data).call("DELETE", f"/webhook_endpoints/{webhook_id}"), f"{webhook_id} is deleted", as_json)


@webhook.command()
@click.argument("webhook_id", metavar="ID")
@click.option("--limit", default=20, show_default=True, help="Maximum number to list, up to 100.")
@server_options
def deliveries(webhook_id: str, limit: int, data: Path | None, as_json: bool) -> None:
    """List sent and pending deliveries of a webhook."""
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
    """Send a delivery again now."""
    delivery = connect(data).call("POST", f"/webhook_endpoints/{webhook_id}/deliveries/{delivery_id}/redeliver")
    say(delivery, f"{delivery['id']} is {delivery['state']}", as_json)
