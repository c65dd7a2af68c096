"""/keys: the projects with their tier, limits and API keys, for administrators."""

from typing import Any

import flask
from flask import Blueprint
from flask.typing import ResponseReturnValue

from batchyard.errors import RequestError
from batchyard.json_lines import LONG
from store import keys, projects
from store.keys import Key
from store.records import now
from webapp.accounts.keys import caps_of, end, make
from webapp.pages import notices
from webapp.pages.forms import PageParams, Problem
from webapp.requests import administrator, current_context, query, validated
from webapp.wire.accounts import ChangeProject, CreateKey

routes = Blueprint("keys", __name__, url_prefix="/keys")
KEYS = 20


@routes.before_request
def _only_administrators() -> None:
    administrator()


@routes.get("")
def show() -> ResponseReturnValue:
    """Show the page. A key that was created just now is shown with its secret, this once."""
    secret = notices.current()
    with current_context().database.read() as session:
        owner = keys.authenticate(session, secret)
        new_key = (secret, keys.get(session, owner.key_id)) if owner else None
    return notices.remove(_page(new_key), flask.url_for("pages.keys.show"))


@routes.get("/<project_id>")
def show_project(project_id: str) -> ResponseReturnValue:
    return _page(project_id=project_id)


@routes.post("")
def create() -> ResponseReturnValue:
    """Create a key, and go to the page that shows it once."""
    fields = flask.request.form
    values: dict[str, Any] = {
        name: fields.get(name, "").strip() or None for name in ("label", "expires_after", "max_cost")
    }
    values |= {"project": fields.get("project", "").strip(), "admin": "admin" in fields}
    values["max_tokens"] = _number(fields.get("max_tokens", "").strip())
    try:
        key = make(validated(CreateKey, values))
    except RequestError as error:
        return _page(problem=Problem.of(error)), error.status
    return notices.redirect(flask.url_for("pages.keys.show"), key.key)


@routes.post("/<key_id>/revoke")
def revoke(key_id: str) -> ResponseReturnValue:
    end(key_id)
    return flask.redirect(flask.url_for("pages.keys.show"), 303)


@routes.post("/<project_id>/change")
def change(project_id: str) -> ResponseReturnValue:
    """Set a project's tier and limits. An empty field removes one."""
    try:
        texts = {name: flask.request.form.get(name, "").strip() for name in ChangeProject.model_fields}
        values = {name: _number(text) for name, text in texts.items()}
        settings = validated(ChangeProject, values)
        projects.check_tier(settings.tier, _tiers())
    except RequestError as error:
        return _page(problem=Problem.of(error)), error.status
    with current_context().database.write() as session:
        projects.update(session, project_id, **settings.model_dump())
    return flask.redirect(flask.url_for("pages.keys.show", _anchor=project_id), 303)


def _tiers() -> dict[str, int]:
    return current_context().settings.tier_seconds


def _page(new_key: tuple[str, Key] | None = None, problem: Problem | None = None, project_id: str | None = None) -> str:
    """Return the page of all projects, each with its newest keys, or of one project and all of its keys."""
    pages = query(PageParams).model_dump()
    own: dict[str, Any] = {"limit": KEYS}
    with current_context().database.read() as session:
        if project_id is None:
            records, has_more = projects.page(session, **pages)
        else:
            records, has_more, own = [projects.get(session, project_id)], False, pages
        project_keys = {project.id: keys.page(session, project=project.name, **own) for project in records}
    return flask.render_template(
        "keys.html",
        alone=project_id is not None,
        projects=records,
        project_keys=project_keys,
        has_more=has_more,
        tiers=_tiers(),
        new_key=new_key,
        now=now(),
        caps=caps_of([key.id for listed, _ in project_keys.values() for key in listed]),
        problem=problem,
        fields=flask.request.form,
    )


def _number(text: str) -> int | str | None:
    """Return a field as JSON has it: a whole number, None if it is empty, or what is no number for the check."""
    return int(text) if text.isdecimal() and len(text) < LONG else text or None
