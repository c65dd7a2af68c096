"""/files: the project's files."""

from __future__ import annotations

import flask
from flask import Blueprint, Response
from flask.typing import ResponseReturnValue

from store import files
from webapp.files import send, to_wire
from webapp.pages.forms import Older
from webapp.requests import caller, current_context, query

routes = Blueprint("files", __name__, url_prefix="/files")


@routes.get("")
def show() -> ResponseReturnValue:
    asked, project_id = query(Older), caller().project_id
    with current_context().database.read() as session:
        found, more = files.page(
            session, project_id, after=asked.after, limit=asked.limit, descending=True, purpose=None
        )
        lines = files.lines(session, [file.id for file in found])
    return flask.render_template(
        "files.html", files=[to_wire(file) for file in found], lines=lines, more=more, limit=asked.limit
    )


@routes.get("/<file_id>/content")
def content(file_id: str) -> Response:
    with current_context().database.read() as session:
        file = files.get(session, caller().project_id, file_id)
    return send(file)


@routes.post("/<file_id>/delete")
def delete(file_id: str) -> ResponseReturnValue:
    with current_context().database.write() as session:
        files.delete(session, caller().project_id, file_id)
    return flask.redirect(flask.url_for("pages.files.show"), 303)
