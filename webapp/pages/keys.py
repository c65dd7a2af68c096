"""/keys: the projects, what is settled for each, and their API keys; for administrators."""

from __future__ import annotations

import flask
from flask import Blueprint
from flask.typing import ResponseReturnValue

from batchyard.errors import RequestError
from store import keys, projects
from store.keys import NewKey
from webapp.pages.forms import Older, Problem
from webapp.projects import SettleProject
from webapp.requests import administrator, current_context, query, validated

routes = Blueprint("keys", __name__, url_prefix="/keys")
KEYS = 20
"""So many keys of each project are shown, where more than one project is."""


@routes.before_request
def _only_administrators() -> None:
    administrator()


@routes.get("")
def show() -> ResponseReturnValue:
    return _page()


@routes.get("/<project_id>")
def show_project(project_id: str) -> ResponseReturnValue:
    """One project, with all its keys."""
    asked = query(Older)
    with current_context().database.read() as session:
        project = projects.get(session, project_id)
        found, more = keys.page(session, project=project.name, after=asked.after, limit=asked.limit)
    return flask.render_template(
        "project.html", project=project, keys=found, more=more, limit=asked.limit, tiers=_tiers()
    )


@routes.post("")
def create() -> ResponseReturnValue:
    """Make a key. The answer is the only time it is seen, so it is the page itself."""
    typed = flask.request.form
    try:
        with current_context().database.write() as session:
            made = keys.create(session, typed.get("project", "").strip(), admin="admin" in typed)
    except RequestError as error:
        return _page(problem=Problem.of(error)), error.status
    return _page(made=made)


@routes.post("/<key_id>/revoke")
def revoke(key_id: str) -> ResponseReturnValue:
    with current_context().database.write() as session:
        keys.revoke(session, key_id)
    return flask.redirect(flask.url_for("pages.keys.show"), 303)


@routes.post("/<project_id>/settle")
def settle(project_id: str) -> ResponseReturnValue:
    """Settle a project's tier and limits; an empty field is none."""
    try:
        asked = validated(SettleProject, {name: _given(name) for name in SettleProject.model_fields})
        projects.check_tier(asked.tier, _tiers())
    except RequestError as error:
        return _page(problem=Problem.of(error)), error.status
    with current_context().database.write() as session:
        projects.update(session, project_id, **asked.model_dump())
    return flask.redirect(flask.url_for("pages.keys.show", _anchor=project_id), 303)


def _given(name: str) -> str | int | None:
    text = flask.request.form.get(name, "").strip()
    return int(text) if text.isdecimal() else text or None


def _tiers() -> dict[str, int]:
    return current_context().settings.tier_seconds


def _page(made: NewKey | None = None, problem: Problem | None = None) -> str:
    asked = query(Older)
    with current_context().database.read() as session:
        found, more = projects.page(session, after=asked.after, limit=asked.limit)
        owned = {project.id: keys.page(session, project=project.name, limit=KEYS) for project in found}
    return flask.render_template(
        "keys.html",
        projects=found,
        owned=owned,
        more=more,
        limit=asked.limit,
        tiers=_tiers(),
        made=made,
        problem=problem,
        typed=flask.request.form,
    )
