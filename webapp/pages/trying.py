"""/models/<name>/try: a prompt to a model, answered as a live request.

This process checks the session and the form, and hands the request to the gateway (webapp.gateway.tickets).
"""

import secrets
from collections.abc import Mapping
from typing import Annotated, Any

import flask
from flask import Blueprint, Response
from flask.typing import ResponseReturnValue
from pydantic import BaseModel, Field, StringConstraints

from batchyard.endpoints.catalog import CHAT, COMPLETIONS
from batchyard.errors import NotFoundError, RequestError
from batchyard.models import ModelSpec, served_by_name
from batchyard.wording import quoted
from tasks.execution import engine_status
from tasks.live.demand import answers_live
from webapp.gateway import tickets
from webapp.gateway.tickets import Ticket
from webapp.pages import forms, snippets
from webapp.pages.forms import Blank, Problem
from webapp.requests import caller, current_context, validated

routes = Blueprint("trying", __name__, url_prefix="/models")

ENDPOINTS = (CHAT.path, COMPLETIONS.path)
"""The endpoints that answer a prompt with a text, the better one first."""
EVENTS = "text/event-stream"


class TryForm(BaseModel):
    """The fields of the form; blank ones are left out of the request."""

    prompt: Annotated[str, StringConstraints(min_length=1, strip_whitespace=True)]
    system: Annotated[str | None, Blank] = None
    temperature: Annotated[float | None, Blank] = None
    max_tokens: Annotated[int | None, Blank] = Field(None, ge=1)
    top_p: Annotated[float | None, Blank] = None
    seed: Annotated[int | None, Blank] = None


def endpoint_of(spec: ModelSpec) -> str | None:
    """Return the endpoint by which a prompt can be tried; None if the model answers none live, or with no text."""
    if not answers_live(spec):
        return None
    return next((path for path in ENDPOINTS if path in spec.endpoints), None)


@routes.get("/<path:name>/try")
def show(name: str) -> ResponseReturnValue:
    _endpoint(name)
    return _page(name)


@routes.post("/<path:name>/try")
def ask(name: str) -> ResponseReturnValue:
    """Hand the prompt to the gateway: a stream for a script, a page for a form without one."""
    endpoint, streams = _endpoint(name), EVENTS in flask.request.headers.get("Accept", "")
    try:
        body = _body(name, endpoint, flask.request.form)
    except RequestError as error:
        if streams:
            return {"error": {"message": error.message, "param": error.param}}, error.status
        return _page(name, Problem(error.message, error.param)), error.status
    body |= {"stream": True, "stream_options": {"include_usage": True}} if streams else {}
    place = secrets.token_hex(16)
    before, _, after = ("", "", "") if streams else _page(name, place=place).partition(place)
    page = None if streams else (before, after)
    ticket = Ticket(principal=caller(), endpoint=endpoint, body=body, page=page)
    response = Response(ticket.model_dump_json(), content_type="application/json")
    response.headers[tickets.HEADER] = "1"
    return response


@routes.post("/<path:name>/try/code")
def code(name: str) -> str:
    """Show the form as code."""
    return flask.render_template("snippets.html", snippets=_code(name))


def _code(name: str) -> dict[str, str]:
    """Return the form as code; a field that is wrong or missing is left out."""
    fields, endpoint = flask.request.form, _endpoint(name)
    try:
        body = _body(name, endpoint, fields)
    except RequestError:
        body = _body(name, endpoint, {"prompt": fields.get("prompt", "").strip() or "…"})
    return snippets.live(endpoint, body)


def _body(name: str, endpoint: str, fields: Mapping[str, str]) -> dict[str, Any]:
    """Return the request of a form. Raises RequestError."""
    form = validated(TryForm, {field: forms.text(fields, field) for field in TryForm.model_fields})
    body: dict[str, Any] = {"model": name, **form.model_dump(exclude_none=True, exclude={"prompt", "system"})}
    if endpoint == CHAT.path:
        system = [{"role": "system", "content": form.system}] if form.system else []
        return body | {"messages": [*system, {"role": "user", "content": form.prompt}]}
    return body | {"prompt": form.prompt}


def _page(name: str, problem: Problem | None = None, place: str | None = None) -> str:
    """Return the page. `place`: a text that stands where the answer is to be."""
    spec = served_by_name(current_context().models)[name]
    return flask.render_template(
        "try.html",
        name=name,
        spec=spec,
        others=[other for other, one in served_by_name(current_context().models).items() if endpoint_of(one)],
        simulated=engine_status.capabilities(spec).simulated,
        chats=endpoint_of(spec) == CHAT.path,
        snippets=_code(name),
        fields=flask.request.form,
        problem=problem,
        place=place,
    )


def _endpoint(name: str) -> str:
    spec = served_by_name(current_context().models).get(name)
    if spec is None:
        raise NotFoundError(f"There is no model {quoted(name)}.")
    endpoint = endpoint_of(spec)
    if endpoint is None:
        raise NotFoundError(f"Model {quoted(name)} answers no prompt live; send it batches.")
    return endpoint
