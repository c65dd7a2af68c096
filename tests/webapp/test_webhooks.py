"""/v1/webhook_endpoints without a sender: what is refused, what is kept, and what is nobody else's."""

from __future__ import annotations

from typing import Any

import pytest
from flask.testing import FlaskClient

from store import events, webhooks
from store.records import Batch
from tasks.context import AppContext
from tasks.webhooks import outbound
from tests.support.planned import plan_batch
from tests.support.webapps import client_of, project_of

PATH = "/v1/webhook_endpoints"
URL = "https://receiver.invalid/hook"
VALID: dict[str, Any] = {"name": "ends", "url": URL, "event_types": ["batch.completed", "batch.failed"]}
FOREIGN = "fine_tuning.job.succeeded"


@pytest.fixture
def client(context: AppContext) -> FlaskClient:
    """A client of an administrator, who alone reads the audit."""
    return client_of(context, admin=True)


def make(client: FlaskClient, **changes: Any) -> dict[str, Any]:
    answer = client.post(PATH, json=VALID | changes)
    assert answer.status_code == 200, answer.text
    return dict(answer.get_json())


def refusal(answer: Any, status: int = 400) -> dict[str, Any]:
    assert answer.status_code == status, answer.text
    return dict(answer.get_json()["error"])


def acts(client: FlaskClient) -> list[dict[str, Any]]:
    """What people have done with webhooks, the newest first."""
    entries = client.get("/v1/audit").get_json()["data"]
    return [entry for entry in entries if entry["type"].startswith("webhook.")]


@pytest.mark.parametrize(
    ("changed", "param"),
    [
        ({"name": None}, "name"),
        ({"name": "a\nb"}, "name"),
        ({"url": "ftp://receiver.invalid"}, "url"),
        ({"url": "https://user:password@receiver.invalid"}, "url"),
        ({"url": f"https://receiver.invalid/{'x' * outbound.MAX_URL}"}, "url"),
        ({"url": "http://127.0.0.1/hook"}, "url"),
        ({"url": "http://[::ffff:10.0.0.1]/hook"}, "url"),
        ({"url": 5}, "url"),
        ({"event_types": []}, "event_types"),
        ({"event_types": "batch.completed"}, "event_types"),
        ({"event_types": ["batch.completed", FOREIGN]}, "event_types.1"),
        ({"secret": "mine"}, "secret"),
    ],
)
def test_what_is_no_endpoint_is_refused_when_it_is_made_and_when_it_is_changed(
    client: FlaskClient, changed: dict[str, Any], param: str
) -> None:
    assert refusal(client.post(PATH, json=VALID | changed))["param"] == param
    made = make(client)
    path = f"{PATH}/{made['id']}"
    if changed != {"name": None}:  # as if it were left out
        assert refusal(client.post(path, json=changed))["param"] == param
    assert client.get(path).get_json()["updated_at"] == made["updated_at"]
    assert [entry["type"] for entry in acts(client)] == ["webhook.created"]


@pytest.mark.parametrize("missing", VALID)
def test_name_url_and_event_types_are_needed(client: FlaskClient, missing: str) -> None:
    body = {name: value for name, value in VALID.items() if name != missing}
    error = refusal(client.post(PATH, json=body))
    assert (error["param"], error["code"]) == (missing, "missing_required_parameter")


def test_a_type_that_never_happens_here_is_refused_with_those_that_do(client: FlaskClient) -> None:
    path = f"{PATH}/{make(client)['id']}"
    for answer in (
        client.post(PATH, json=VALID | {"event_types": [FOREIGN]}),
        client.post(path, json={"event_types": [FOREIGN]}),
        client.post(f"{path}/test", json={"event_type": FOREIGN}),
    ):
        assert all(f"'{name}'" in refusal(answer)["message"] for name in events.TYPES)


def test_endpoints_come_in_pages_and_the_twenty_first_of_a_project_is_refused(client: FlaskClient) -> None:
    ids = [make(client, name=f"number {number}")["id"] for number in range(webhooks.MAX_WEBHOOKS)][::-1]
    page = client.get(PATH).get_json()
    assert ([entry["id"] for entry in page["data"]], page["has_more"]) == (ids, False)
    page = client.get(f"{PATH}?limit=2&after={ids[4]}").get_json()
    assert ([entry["id"] for entry in page["data"]], page["has_more"]) == (ids[5:7], True)
    assert "no object with id" in refusal(client.get(f"{PATH}?after=wh_unknown"))["message"]
    assert refusal(client.post(PATH, json=VALID))["code"] == "too_many_webhook_endpoints"
    assert client.delete(f"{PATH}/{ids[0]}").status_code == 200
    make(client)


def test_a_change_keeps_what_it_leaves_out_and_is_recorded_without_the_url(client: FlaskClient) -> None:
    made = make(client)
    path = f"{PATH}/{made['id']}"
    changed = client.post(path, json={"url": URL + "?token=secret", "enabled": False}).get_json()
    assert changed == made_without_secret(made) | {
        "url": URL + "?token=secret",
        "updated_at": changed["updated_at"],
        "batchyard": {"enabled": False},
    }
    newest, first = acts(client)
    assert (newest["type"], first["type"]) == ("webhook.changed", "webhook.created")
    assert newest["data"]["fields"] == ["enabled", "url"]
    assert "token" not in str(acts(client)) and made["signing_secret"] not in str(acts(client))


def made_without_secret(made: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in made.items() if name != "signing_secret"}


def test_a_secret_is_in_the_answer_that_makes_it_and_in_no_other(client: FlaskClient) -> None:
    made = make(client)
    path = f"{PATH}/{made['id']}"
    rotated = client.post(f"{path}/rotate_secret").get_json()
    assert rotated["signing_secret"] != made["signing_secret"]
    for shown in (path, PATH, f"{path}/deliveries", "/v1/audit"):
        text = client.get(shown).text
        assert made["signing_secret"] not in text and rotated["signing_secret"] not in text
    assert client.get(path).get_json()["signing_secret_hint"] == f"whsec_...{rotated['signing_secret'][-4:]}"


@pytest.mark.parametrize(
    ("method", "path", "body"),
    [
        ("GET", "", None),
        ("POST", "", {"name": "mine"}),
        ("DELETE", "", None),
        ("POST", "/rotate_secret", {}),
        ("POST", "/test", {"event_type": "batch.failed"}),
        ("GET", "/deliveries", None),
        ("POST", "/deliveries/{delivery}/redeliver", None),
    ],
)
def test_another_projects_endpoint_is_not_there(
    client: FlaskClient, context: AppContext, method: str, path: str, body: dict[str, Any] | None
) -> None:
    made = make(client, event_types=["batch.held"])
    batch = plan_batch(context, project_of(context), ["one"])
    with context.database.write() as session:
        events.record(session, session.get_one(Batch, batch.id), "batch.held")
    (delivery,) = client.get(f"{PATH}/{made['id']}/deliveries").get_json()["data"]
    theirs = client_of(context, project="other", admin=True)
    path = f"{PATH}/{made['id']}{path.format(delivery=delivery['id'])}"
    assert theirs.open(path, method=method, json=body).status_code == 404
    assert client.get(f"{PATH}/{made['id']}").get_json() == made_without_secret(made)


BATCH = {"endpoint": "/v1/chat/completions", "completion_window": "24h", "input_file_id": "file-none"}


@pytest.mark.parametrize("url", ["http://127.0.0.1/hook", "https://10.0.0.1/hook", "https://[::ffff:10.0.0.1]/"])
def test_a_callback_to_an_address_of_ours_is_refused_with_its_batch_job_or_schedule(
    client: FlaskClient, url: str
) -> None:
    job = {"recipe": "batch", "input": {"prompts": ["one"]}, "options": {"model": "echo"}}
    nightly = {"name": "nightly", "cron": "0 3 * * *", "input": {"template": "{}"}}
    for path, body in (
        ("/v1/batches", BATCH | {"callback_url": url}),
        ("/v1/jobs", job | {"callback_url": url}),
        ("/v1/schedules", nightly | {"batch": {k: v for k, v in BATCH.items() if k[0] != "i"} | {"callback_url": url}}),
    ):
        assert refusal(client.post(path, json=body))["param"] == "callback_url", path


def test_the_first_callback_makes_the_projects_webhook_for_them_whose_secret_can_be_had_before(
    client: FlaskClient,
) -> None:
    path = f"{PATH}/callback_url"
    assert refusal(client.get(path), 404)
    secret = client.post(f"{path}/rotate_secret").get_json()["signing_secret"]
    made = client.post("/v1/batches", json=BATCH | {"callback_url": URL}).get_json()
    assert made["batchyard"]["callback_url"] == URL
    (hook,) = client.get(PATH).get_json()["data"]
    assert (hook["name"], hook["url"], hook["signing_secret_hint"][-4:]) == ("callback_url", "", secret[-4:])
    assert refusal(client.post(path, json={"url": URL}))["param"] == "url"
    assert refusal(client.post(f"{path}/test", json={"event_type": "batch.failed"}))
    again = client.post(f"/v1/batches/{made['id']}/retry", json={})
    assert again.status_code == 409, "a retry needs unanswered requests"
