"""/files: the project's files."""

from __future__ import annotations

import flask
from flask import Blueprint, Response
from flask.typing import ResponseReturnValue
from pydantic import Field

from store import files
from webapp.files import get_file, remove, send, to_wire
from webapp.pages.forms import PageParams
from webapp.requests import caller, current_context, query

routes = Blueprint("files", __name__, url_prefix="/files")


class FilesParams(PageParams):
    runs: bool = Field(False, description="also the files that runs of schedules have made")


@routes.get("")
def show() -> ResponseReturnValue:
    params, project_id = query(FilesParams), caller().project_id
    with current_context().database.read() as session:
        records, has_more = files.page(
            session,
            project_id,
            after=params.after,
            limit=params.limit,
            descending=True,
            purpose=None,
            of_runs=params.runs,
        )
        lines = files.lines(session, [file.id for file in records])
    return flask.render_template(
        "files.html",
        files=[to_wire(file) for file in records],
        lines=lines,
        has_more=has_more,
        limit=params.limit,
        runs=params.runs,
    )


@routes.get("/<file_id>/content")
def content(file_id: str) -> Response:
    return send(get_file(file_id))


@routes.post("/<file_id>/delete")
def delete(file_id: str) -> ResponseReturnValue:
    remove(file_id)
    return flask.redirect(flask.url_for("pages.files.show"), 303)
