"""/webhooks: receivers of a project's events are made, tried out and watched on their pages."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from flask.testing import FlaskClient
from playwright.sync_api import expect

from store import events, keys, webhooks
from store.records import Batch, Delivery, Webhook
from tasks.context import AppContext
from tasks.webhooks import delivery as sender
from tests.support.planned import plan_batch
from tests.support.receivers import Receiver, listening
from tests.support.webapps import context_in, project_of
from tests.webapp.pages.conftest import Visit, csrf_of, signed_in
from webapp import create_app

TYPES = ["batch.completed", "batch.held"]
NASTY = "<img src=x onerror=alert(1)>"


@pytest.fixture
def context(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AppContext:
    """A context whose broker is down, and that may post to this machine."""
    monkeypatch.setenv("REDIS_URL", "redis://127.0.0.1:1/0")
    return context_in(tmp_path, webhooks_allow_private=True)


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    with listening(Receiver()) as receiver:
        yield receiver


def make(client: FlaskClient, url: str, **changed: object) -> str:
    """Make a webhook by the form, and return its path."""
    form = {"csrf": csrf_of(client), "name": "ends", "url": url, "event_types": TYPES}
    answer = client.post("/webhooks", data=form | changed)
    assert answer.status_code == 303, answer.text
    return answer.location


def the_webhook(context: AppContext) -> Webhook:
    with context.database.read() as session:
        return session.query(Webhook).one()


def record(context: AppContext) -> Batch:
    """Let something happen to a new batch of the project that a webhook is told of."""
    batch = plan_batch(context, project_of(context), ["one"])
    with context.database.write() as session:
        events.record(session, session.get_one(Batch, batch.id), "batch.held")
    return batch


def deliver(context: AppContext) -> None:
    """Make the next attempt of all deliveries that are due."""
    with context.database.write() as session:
        claimed = webhooks.claim(session, at_once=9, per_project=9)
    assert claimed
    for delivery_id, attempts in claimed:
        sender.deliver(context, delivery_id, attempts)


def words(page: str) -> str:
    return " ".join(re.sub(r"<[^>]+>", " ", page).split())


def test_a_new_webhooks_secret_is_shown_once_and_signs_what_is_sent(
    client: FlaskClient, context: AppContext, receiver: Receiver
) -> None:
    path = make(client, receiver.url(), name=NASTY)
    webhook = the_webhook(context)
    assert (webhook.name, webhook.url, webhook.event_types) == (NASTY, receiver.url(), TYPES)
    assert webhook.secret in client.get(path).text
    for again in (path, "/webhooks"):
        page = client.get(again).text
        assert webhook.secret not in page and "&lt;img src=x" in page and "<img src=x" not in page
    client.post(f"{path}/rotate", data={"csrf": csrf_of(client), "keep_old": "1"})
    changed = the_webhook(context)
    assert changed.secret != webhook.secret == changed.old_secret
    assert changed.secret in client.get(path).text
    assert changed.secret not in client.get(path).text
    record(context)
    deliver(context)
    assert receiver.received[0].unwrap(changed.secret).type == "batch.held"


def test_a_cookie_that_was_made_up_shows_nothing(client: FlaskClient, context: AppContext, receiver: Receiver) -> None:
    path = make(client, receiver.url())
    client.get(path)
    client.set_cookie("batchyard_notice", "whsec_guessed", path=path)
    page = client.get(path).text
    assert "made-heading" not in page and "whsec_guessed" not in page


def test_the_answer_to_a_sample_is_said_once_and_loading_the_page_again_sends_nothing(
    client: FlaskClient, receiver: Receiver
) -> None:
    path = make(client, receiver.url())
    client.get(path)
    receiver.status = 418
    form = {"csrf": csrf_of(client), "event_type": "batch.late"}
    assert client.post(f"{path}/test", data=form).status_code == 303
    assert "answered the sample with status 418" in client.get(path).text
    assert "answered the sample" not in client.get(path).text
    assert [b"batch.late" in request.body for request in receiver.received] == [True]
    wrong = client.post(f"{path}/test", data=form | {"event_type": "batch.eaten"})
    assert (wrong.status_code, len(receiver.received)) == (400, 1)


def test_a_receiver_that_is_away_is_named_as_the_problem_of_a_sample(client: FlaskClient) -> None:
    path = make(client, "http://127.0.0.1:1/hook")
    answer = client.post(f"{path}/test", data={"csrf": csrf_of(client), "event_type": "batch.held"})
    assert (answer.status_code, "The sample could not be delivered" in answer.text) == (400, True)


def test_deliveries_say_what_became_of_them_and_one_is_sent_again(
    client: FlaskClient, context: AppContext, receiver: Receiver
) -> None:
    path = make(client, receiver.url())
    assert "Nothing sent yet" in client.get(path).text
    batch = record(context)
    receiver.status = 503
    deliver(context)
    page = client.get(path).text
    assert f'href="/batches/{batch.id}"' in page
    assert re.search(r"batch\.held .* pending 1 503 (in \d+ s|due now) . Send again", words(page)), words(page)
    assert "pending batch.held" in words(client.get("/webhooks").text)
    with context.database.read() as session:
        delivery_id = session.query(Delivery).one().id
    receiver.status = 200
    again = client.post(f"{path}/deliveries/{delivery_id}", data={"csrf": csrf_of(client)})
    assert (again.status_code, again.location) == (303, f"{path}#{delivery_id}")
    deliver(context)
    assert re.search(r"batch\.held .* delivered 2 200 ", words(client.get(path).text))
    assert len({request.id for request in receiver.received}) == 1
    assert client.post(f"{path}/deliveries/dlv_none", data={"csrf": csrf_of(client)}).status_code == 404


def test_deliveries_are_sent_to_a_browser_again_only_when_something_has_changed(
    client: FlaskClient, context: AppContext, receiver: Receiver
) -> None:
    path, polling = make(client, receiver.url()), {"HX-Request": "true"}
    poll = re.search(r'hx-get="([^"]*)"', client.get(path).text)
    assert poll is not None and client.get(poll[1], headers=polling).status_code == 204
    record(context)
    answer = client.get(poll[1], headers=polling)
    assert answer.status_code == 200 and "batch.held" in answer.text and "<html" not in answer.text


def test_a_webhook_is_changed_paused_resumed_and_deleted(
    client: FlaskClient, context: AppContext, receiver: Receiver
) -> None:
    path, csrf = make(client, receiver.url()), csrf_of(client)
    form = {"csrf": csrf, "name": "others", "url": f"{receiver.url()}2", "event_types": ["job.completed"]}
    assert client.post(f"{path}/change", data=form).status_code == 303
    webhook = the_webhook(context)
    assert (webhook.name, webhook.url, webhook.event_types) == ("others", f"{receiver.url()}2", ["job.completed"])
    client.post(f"{path}/pause", data={"csrf": csrf})
    assert not the_webhook(context).enabled and "paused" in words(client.get("/webhooks").text)
    client.post(f"{path}/resume", data={"csrf": csrf})
    assert the_webhook(context).enabled
    assert client.post(f"{path}/delete", data={"csrf": csrf}).location == "/webhooks"
    assert "No webhooks." in client.get("/webhooks").text


@pytest.mark.parametrize(
    ("fields", "field"), [({"name": ""}, "name"), ({"url": "ftp://there"}, "url"), ({"event_types": []}, "event_types")]
)
def test_what_is_no_webhook_comes_back_with_all_that_was_typed(
    client: FlaskClient, context: AppContext, receiver: Receiver, fields: dict[str, object], field: str
) -> None:
    form = {"csrf": csrf_of(client), "name": "ends", "url": receiver.url(), "event_types": TYPES, **fields}
    path = make(client, receiver.url())
    before = the_webhook(context)
    for target in ("/webhooks", f"{path}/change"):
        answer = client.post(target, data=form)
        assert answer.status_code == 400
        assert f'<a href="#{field}">' in answer.text and f'id="{field}"' in answer.text
        for type_ in form["event_types"]:  # type: ignore[attr-defined]
            assert f'value="{type_}" checked' in answer.text
    after = the_webhook(context)
    assert (after.name, after.url, after.event_types) == (before.name, before.url, before.event_types)


def test_another_projects_webhook_is_not_there(client: FlaskClient, context: AppContext, receiver: Receiver) -> None:
    path = make(client, receiver.url(), name="ours alone")
    record(context)
    with context.database.write() as session:
        stranger, delivery_id = keys.create(session, "other").key, session.query(Delivery).one().id
    theirs = signed_in(create_app(context).test_client(), stranger)
    csrf = csrf_of(theirs)
    assert "ours alone" not in theirs.get("/webhooks").text
    assert theirs.get(path).status_code == theirs.get(path, headers={"HX-Request": "true"}).status_code == 404
    form = {"csrf": csrf, "name": "mine", "url": receiver.url(), "event_types": TYPES, "event_type": "batch.late"}
    for action in ("change", "pause", "rotate", "test", "delete", f"deliveries/{delivery_id}"):
        assert theirs.post(f"{path}/{action}", data=form).status_code == 404, action
    webhook = the_webhook(context)
    assert (webhook.name, webhook.enabled, webhook.old_secret, receiver.received) == ("ours alone", True, None, [])


def test_a_webhook_is_made_tried_out_and_watched_in_a_browser(
    visit_served: Callable[..., Visit], context: AppContext, receiver: Receiver
) -> None:
    with context.database.write() as session:
        key = keys.create(session, "default").key
    window = visit_served()
    page = window.sign_in(key, "/webhooks")
    page.get_by_label("Name").fill("on a page")
    page.get_by_label("URL").fill(receiver.url())
    page.get_by_label("batch.held").check()
    window.check_accessibility()
    page.get_by_role("button", name="Create webhook").click()
    expect(page.locator("#made")).to_contain_text("whsec_")
    expect(page.get_by_role("button", name="Copy")).to_be_visible()
    page.get_by_label("Sample of").select_option("batch.held")
    page.get_by_role("button", name="Send a sample").click()
    expect(page.get_by_role("status")).to_contain_text("status 200")
    record(context)
    expect(page.get_by_role("row").filter(has_text="batch.held")).to_contain_text("pending")
    deliver(context)
    expect(page.get_by_role("row").filter(has_text="batch.held")).to_contain_text("delivered")
    window.check_accessibility()
    window.check_phone_in_the_dark()
