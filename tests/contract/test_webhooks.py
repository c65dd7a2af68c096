"""Webhook endpoints, as the `openai` package manages them, and what is our own: deliveries, events and the terminal."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from typing import Any

import openai
import pytest
from click.testing import CliRunner
from openai.types.webhooks import WebhookEndpointWithSecret

from batchyard.cli.main import cli
from batchyard.errors import NotFoundError
from batchyard.wording import FLAWS
from store import events
from tasks.webhooks.samples import SAMPLE_ID
from tests.support.receivers import Receiver, listening
from tests.support.rows import until
from tests.support.stacks import RunningStack

COUNTS = ("total", "completed", "failed", "expired", "cancelled", *FLAWS)
URL = "https://receiver.invalid/hook"
VALID = {"name": "ends", "url": URL, "event_types": ["batch.completed", "batch.failed"]}


@pytest.fixture
def project(stack: RunningStack) -> Iterator[RunningStack]:
    """A new project, whose webhook endpoints are deleted afterwards."""
    body = {"project": f"hooks-{time.time_ns()}"}
    key: Any = stack.client.post("/keys", cast_to=object, body=body)
    own = RunningStack(stack.process, stack.data, stack.url, key["key"])
    yield own
    for endpoint in own.client.webhooks.list():
        own.client.webhooks.delete(endpoint.id)


def create(project: RunningStack, **changed: Any) -> WebhookEndpointWithSecret:
    return project.client.webhooks.create(**VALID | changed)


def get(project: RunningStack, path: str, **params: Any) -> Any:
    return project.client.get(path, cast_to=object, options={"params": params})


def test_an_endpoint_is_made_listed_changed_and_deleted_by_openais_client(project: RunningStack) -> None:
    hooks = project.client.webhooks
    endpoint = create(project).to_dict()
    secret = str(endpoint.pop("signing_secret"))
    assert secret.startswith("whsec_")
    assert endpoint == VALID | {
        "id": endpoint["id"],
        "object": "webhook_endpoint",
        "signing_secret_hint": f"whsec_...{secret[-4:]}",
        "created_at": endpoint["created_at"],
        "updated_at": endpoint["created_at"],
        "batchyard": {"enabled": True},
    }
    endpoint_id = str(endpoint["id"])
    assert hooks.retrieve(endpoint_id).to_dict() == endpoint
    assert [entry.to_dict() for entry in hooks.list()] == [endpoint]
    assert hooks.update(endpoint_id, url=URL + "2").to_dict() == endpoint | {"url": URL + "2", "updated_at": _any()}
    wanted: Any = {"name": "late", "event_types": ["batch.late"]}
    changed = hooks.update(endpoint_id, **wanted, extra_body={"enabled": False}).to_dict()
    assert changed == endpoint | wanted | {"url": URL + "2", "updated_at": _any(), "batchyard": {"enabled": False}}
    assert hooks.retrieve(endpoint_id).to_dict() == changed
    rotated = hooks.rotate_secret(endpoint_id)
    assert rotated.signing_secret != secret
    for path in ("", f"/{endpoint_id}", f"/{endpoint_id}/deliveries"):
        shown = project.client.get(f"/webhook_endpoints{path}", cast_to=openai.HttpxBinaryResponseContent).text
        assert '"signing_secret"' not in shown
        assert rotated.signing_secret not in shown
    assert hooks.delete(endpoint_id).to_dict() == {
        "id": endpoint_id,
        "object": "webhook_endpoint.deleted",
        "deleted": True,
    }
    with pytest.raises(openai.NotFoundError, match="No webhook endpoint found"):
        hooks.retrieve(endpoint_id)


def _any() -> Any:
    return pytest.approx(time.time(), abs=60)


def test_the_event_types_are_those_that_can_happen_here(project: RunningStack) -> None:
    listed = project.client.webhooks.event_types.list()
    assert (listed.object, tuple(listed.data)) == ("list", events.TYPES)
    assert create(project, event_types=listed.data).event_types == listed.data


def test_a_sample_is_sent_at_once_and_its_receivers_status_is_told_whatever_it_is(project: RunningStack) -> None:
    hooks = project.client.webhooks
    with listening(Receiver()) as receiver:
        endpoint = create(project, url=receiver.url())
        hooks.update(endpoint.id, extra_body={"enabled": False})
        for receiver.status in (204, 307, 410, 500):
            assert hooks.test(endpoint.id, event_type="batch.expired").to_dict() == {
                "object": "webhook_endpoint.test",
                "webhook_endpoint_id": endpoint.id,
                "event_type": "batch.expired",
                "status_code": receiver.status,
                "success": True,
            }
    samples = [request.unwrap(endpoint.signing_secret) for request in receiver.received]
    assert [(sample.type, sample.data.id) for sample in samples] == [("batch.expired", SAMPLE_ID)] * 4
    assert len({sample.id for sample in samples}) == 4
    assert get(project, f"/webhook_endpoints/{endpoint.id}/deliveries")["data"] == []
    patient = project.client.with_options(max_retries=2)
    with pytest.raises(openai.BadRequestError, match="refused") as unreachable:  # the client does not retry
        patient.webhooks.test(endpoint.id, event_type="batch.expired")
    assert unreachable.value.code == "webhook_endpoint_unreachable"


def test_for_a_day_after_a_rotation_either_secret_verifies_if_that_was_asked_for(project: RunningStack) -> None:
    hooks = project.client.webhooks
    with listening(Receiver()) as receiver:
        first = create(project, url=receiver.url())
        second = hooks.rotate_secret(first.id, keep_old_secret_active_for_24_hours=True)
        ended(project)
        (request,) = receiver.wait(1)
        third = hooks.rotate_secret(first.id)
        hooks.test(first.id, event_type="batch.failed")
    for secret in (first.signing_secret, second.signing_secret):
        assert request.unwrap(secret).type == "batch.failed"
    receiver.received[1].unwrap(third.signing_secret)
    with pytest.raises(openai.InvalidWebhookSignatureError):
        receiver.received[1].unwrap(second.signing_secret)


def ended(project: RunningStack) -> Any:
    """Return a batch that failed validation."""
    return project.wait(project.submit("no json"))


def tried(project: RunningStack, endpoint_id: str) -> dict[str, Any]:
    """Return the endpoint's newest delivery between two attempts."""
    deadline = time.monotonic() + 180
    while True:
        data = get(project, f"/webhook_endpoints/{endpoint_id}/deliveries")["data"]
        if data and data[0]["error"] and data[0]["state"] == "pending":
            return dict(data[0])
        assert time.monotonic() < deadline, data
        time.sleep(0.1)


def test_deliveries_say_what_became_of_them_come_in_pages_and_are_sent_again_on_demand(project: RunningStack) -> None:
    receiver = Receiver()
    endpoint = create(project, url=receiver.url())
    batches = [ended(project) for _ in range(3)][::-1]
    path = f"/webhook_endpoints/{endpoint.id}/deliveries"
    newest = tried(project, endpoint.id)
    first = get(project, path, limit=2)
    rest = get(project, path, limit=2, after=first["last_id"])
    happened = [get(project, f"/batches/{batch.id}/events")["data"][-1] for batch in batches]
    assert [d["event_id"] for d in first["data"] + rest["data"]] == [event["id"] for event in happened]
    assert (first["has_more"], rest["has_more"]) == (True, False)
    with pytest.raises(openai.BadRequestError, match="no object with id"):
        get(project, path, after="dlv_unknown")
    assert newest == newest | {
        "object": "webhook_endpoint.delivery",
        "webhook_endpoint_id": endpoint.id,
        "event_type": "batch.failed",
        "state": "pending",
        "status_code": None,
    }
    assert newest["attempts"] >= 1
    assert newest["next_attempt_at"] >= newest["created_at"]
    with listening(receiver):
        again = project.client.post(f"{path}/{newest['id']}/redeliver", cast_to=object)
        assert again["next_attempt_at"] <= time.time() + 1  # type: ignore[index]
        # The others are tried again by themselves, and may come first.
        until(lambda: newest["event_id"] in [request.id for request in receiver.received])
    sent = {request.id: json.loads(request.body) for request in receiver.received}
    assert sent[newest["event_id"]] | {"by": None} == happened[0]
    assert happened[0] == {
        "id": newest["event_id"],
        "object": "event",
        "created_at": pytest.approx(batches[0].failed_at, abs=10),
        "type": "batch.failed",
        "data": {"id": batches[0].id, "counts": dict.fromkeys(COUNTS, 0)},
        "by": None,
    }
    project.client.webhooks.update(endpoint.id, extra_body={"enabled": False})
    with pytest.raises(openai.ConflictError) as disabled:
        project.client.post(f"{path}/{newest['id']}/redeliver", cast_to=object)
    assert disabled.value.response.headers["x-should-retry"] == "false"


def test_the_terminal_makes_lists_and_deletes_webhooks(project: RunningStack) -> None:
    runner = CliRunner(env={"BATCHYARD_URL": project.url, "BATCHYARD_API_KEY": project.key})

    def terminal(*arguments: str) -> str:
        return runner.invoke(cli, ["webhook", *arguments], catch_exceptions=False, standalone_mode=False).output

    webhook_id, secret = terminal("create", URL).split()
    assert secret.startswith("whsec_")
    endpoint = project.client.webhooks.retrieve(webhook_id)
    assert (endpoint.name, tuple(endpoint.event_types)) == ("receiver.invalid", events.TYPES)
    other = json.loads(terminal("create", URL, "--name", "late", "--event", "batch.late", "--json"))
    assert (other["name"], other["event_types"]) == ("late", ["batch.late"])
    assert webhook_id in terminal("list")
    ended(project)
    delivery = tried(project, webhook_id)
    assert delivery["id"] in terminal("deliveries", webhook_id)
    assert terminal("redeliver", webhook_id, delivery["id"]).startswith(delivery["id"])
    assert json.loads(terminal("delete", webhook_id, "--json"))["deleted"]
    with pytest.raises(NotFoundError):
        terminal("deliveries", webhook_id)
