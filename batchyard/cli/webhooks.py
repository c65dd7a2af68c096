"""Commands on a project's webhooks: `webhook create|list|delete|deliveries|redeliver`."""

import click

from batchyard.cli.options import Said, on_server
from batchyard.cli.output import lines_of, when
from batchyard.client.api import ApiClient


@click.group()
def webhook() -> None:
    """Manage the receivers of the project's events."""


@webhook.command()
@click.argument("url")
@click.option("--name", help="Name of the webhook [its host].")
@click.option("--event", "event_types", multiple=True, metavar="TYPE", help="Event type to send; repeatable [all].")
@on_server
def create(server: ApiClient, url: str, name: str | None, event_types: tuple[str, ...]) -> Said:
    """Send the project's events to URL.

    Prints the webhook's id and its signing secret, which is shown only once.
    """
    host = url.partition("://")[2].partition("/")[0]
    types = list(event_types) or server.call("GET", "/webhook_event_types")["data"]
    body = {"url": url, "event_types": types, "name": name or (host or url)[:128]}
    created = server.call("POST", "/webhook_endpoints", body)
    return created, f"{created['id']}\n{created['signing_secret']}"


@webhook.command("list")
@on_server
def list_(server: ApiClient) -> Said:
    """List the webhooks of the project, newest first."""
    webhooks = list(server.listed("/webhook_endpoints"))
    rows = [
        [w["id"], w["name"], w["url"], ", ".join(w["event_types"]), "yes" if w["batchyard"]["enabled"] else "no"]
        for w in webhooks
    ]
    return webhooks, lines_of(["webhook", "name", "url", "events", "enabled"], rows)


@webhook.command()
@click.argument("webhook_id", metavar="ID")
@on_server
def delete(server: ApiClient, webhook_id: str) -> Said:
    """Delete a webhook. Pending deliveries are dropped."""
    return server.call("DELETE", f"/webhook_endpoints/{webhook_id}"), f"{webhook_id} is deleted"


@webhook.command()
@click.argument("webhook_id", metavar="ID")
@click.option("--keep-old", is_flag=True, help="Sign with the old secret, too, for 24 hours.")
@on_server
def rotate(server: ApiClient, webhook_id: str, keep_old: bool) -> Said:
    """Replace the signing secret of a webhook, or of callbacks: ID is then callback_url.

    Prints the new secret, which is shown only once.
    """
    body = {"keep_old_secret_active_for_24_hours": keep_old}
    changed = server.call("POST", f"/webhook_endpoints/{webhook_id}/rotate_secret", body)
    return changed, changed["signing_secret"]


@webhook.command()
@click.argument("webhook_id", metavar="ID")
@click.option("--limit", default=20, show_default=True, help="Maximum number to list, up to 100.")
@on_server
def deliveries(server: ApiClient, webhook_id: str, limit: int) -> Said:
    """List sent and pending deliveries of a webhook."""
    history = server.call("GET", f"/webhook_endpoints/{webhook_id}/deliveries", limit=limit)["data"]
    rows = [
        [d["id"], d["event_type"], d["state"], d["attempts"], d["status_code"], d["error"], when(d["next_attempt_at"])]
        for d in history
    ]
    columns = ["delivery", "event", "state", "attempts", "answer", "error", "next attempt"]
    return history, lines_of(columns, rows)


@webhook.command()
@click.argument("webhook_id", metavar="ID")
@click.argument("delivery_id", metavar="DELIVERY")
@on_server
def redeliver(server: ApiClient, webhook_id: str, delivery_id: str) -> Said:
    """Send a delivery again now."""
    delivery = server.call("POST", f"/webhook_endpoints/{webhook_id}/deliveries/{delivery_id}/redeliver")
    return delivery, f"{delivery['id']} is {delivery['state']}"
