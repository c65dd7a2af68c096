"""/webhooks: the project's webhook endpoints, and what was sent to each."""

import hashlib
import hmac
import time
from typing import Any

import flask
from flask import Blueprint, Response
from flask.typing import ResponseReturnValue
from pydantic import Field
from werkzeug.datastructures import MultiDict

from batchyard.errors import BatchyardError, RequestError
from store import events, webhooks
from store.records import Webhook
from tasks.webhooks import samples
from webapp import webhooks as api
from webapp.pages import notices
from webapp.pages.forms import PageParams, Problem
from webapp.requests import caller, current_context, listed, query, validated
from webapp.webhooks import get_webhook
from webapp.wire.webhooks import CreateWebhook, SendSample, UpdateWebhook

routes = Blueprint("webhooks", __name__, url_prefix="/webhooks")

USUAL = ("batch.completed", "batch.failed", "batch.expired", "batch.cancelled")


class DeliveryParams(PageParams):
    """The query parameters of a webhook's page. `seen` is the stamp of the deliveries that the browser shows."""

    seen: str | None = Field(None, max_length=64)


@routes.post("")
def create() -> ResponseReturnValue:
    try:
        webhook = api.make(validated(CreateWebhook, _body()))
    except RequestError as error:
        return _list(Problem.of(error, {})), error.status
    return _redirect(webhook.id, webhook.secret)


@routes.get("/<webhook_id>")
def show_one(webhook_id: str) -> ResponseReturnValue:
    """Show a webhook with its deliveries. For htmx: only these, or nothing (204) if the browser shows them so."""
    if "HX-Request" in flask.request.headers:
        deliveries = _deliveries(get_webhook(webhook_id))
        if deliveries["stamp"] == query(DeliveryParams).seen:
            return Response(status=204)
        return flask.render_template("webhook_live.html", **deliveries)
    return notices.remove(_page(webhook_id), flask.request.path)


@routes.post("/<webhook_id>/change")
def change(webhook_id: str) -> ResponseReturnValue:
    get_webhook(webhook_id)
    try:
        api.change(webhook_id, validated(UpdateWebhook, _body()))
    except RequestError as error:
        return _page(webhook_id, Problem.of(error, {})), error.status
    return _redirect(webhook_id)


@routes.post("/<webhook_id>/pause", endpoint="pause")
@routes.post("/<webhook_id>/resume", endpoint="resume")
def _enable(webhook_id: str) -> ResponseReturnValue:
    return _redirect(api.change(webhook_id, UpdateWebhook(enabled=flask.request.path.endswith("/resume"))).id)


@routes.post("/<webhook_id>/rotate")
def rotate(webhook_id: str) -> ResponseReturnValue:
    """Replace the signing secret, and go to the page that shows the new one once."""
    webhook = api.rotate(webhook_id, keep_old="keep_old" in flask.request.form)
    return _redirect(webhook.id, webhook.secret)


@routes.post("/<webhook_id>/test")
def test(webhook_id: str) -> ResponseReturnValue:
    """Send a sample event, and go to the page that says once what the receiver answered."""
    webhook = get_webhook(webhook_id)
    try:
        type_ = validated(SendSample, {"event_type": flask.request.form.get("event_type")}).event_type
        status = samples.send_sample(current_context(), webhook, type_)
    except BatchyardError as error:
        return _page(webhook_id, Problem(error.message, None)), error.status
    return _redirect(webhook_id, str(status))


@routes.post("/<webhook_id>/deliveries/<delivery_id>")
def resend(webhook_id: str, delivery_id: str) -> ResponseReturnValue:
    api.resend(webhook_id, delivery_id)
    return flask.redirect(flask.url_for(".show_one", webhook_id=webhook_id, _anchor=delivery_id), 303)


@routes.post("/<webhook_id>/delete")
def delete(webhook_id: str) -> ResponseReturnValue:
    api.remove(webhook_id)
    return flask.redirect(flask.url_for(".show"), 303)


def _body() -> dict[str, Any]:
    fields = flask.request.form
    values = {name: fields.get(name, "").strip() for name in ("name", "url") if name in fields}
    return {**values, "event_types": fields.getlist("event_types")}


def _redirect(webhook_id: str, notice: str | None = None) -> ResponseReturnValue:
    """Go to a webhook's page, which shows `notice` once: a new secret, or the status of the answer to a sample."""
    path = flask.url_for(".show_one", webhook_id=webhook_id)
    return flask.redirect(path, 303) if notice is None else notices.redirect(path, notice)


@routes.get("", endpoint="show")
def _list(problem: Problem | None = None) -> str:
    records, has_more = listed(webhooks.page, PageParams, caller().project_id)
    with current_context().database.read() as session:
        latest = {webhook.id: webhooks.deliveries(session, webhook, after=None, limit=1)[0] for webhook in records}
    return flask.render_template(
        "webhooks.html",
        webhooks=records,
        latest=latest,
        has_more=has_more,
        **_form(flask.request.form or MultiDict([("event_types", type_) for type_ in USUAL]), problem),
    )


def _form(fields: MultiDict[str, str], problem: Problem | None) -> dict[str, Any]:
    return {"fields": fields, "chosen": set(fields.getlist("event_types")), "types": events.TYPES, "problem": problem}


def _deliveries(webhook: Webhook) -> dict[str, Any]:
    params = query(DeliveryParams)
    with current_context().database.read() as session:
        entries, has_more = webhooks.deliveries(session, webhook, after=params.after, limit=params.limit)
    states = [(one.id, one.state, one.attempts, one.next_attempt_at) for one, _ in entries]
    return {
        "now": time.time(),
        "webhook": webhook,
        "deliveries": entries,
        "has_more": has_more,
        "after": params.after,
        "stamp": hashlib.sha256(f"{webhook.enabled} {states}".encode()).hexdigest()[:16],
    }


def _page(webhook_id: str, problem: Problem | None = None) -> str:
    webhook = get_webhook(webhook_id)
    notice = notices.current()
    fields = MultiDict([("name", webhook.name), ("url", webhook.url)])
    fields.setlist("event_types", webhook.event_types)
    if problem is not None and "url" in flask.request.form:
        fields = flask.request.form
    return flask.render_template(
        "webhook.html",
        secret=webhook.secret if hmac.compare_digest(notice.encode(), webhook.secret.encode()) else None,
        answered=int(notice) if notice.isdecimal() and len(notice) == 3 else None,
        **_form(fields, problem),
        **_deliveries(webhook),
    )
