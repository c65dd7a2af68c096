"""/audit: who did what and when in all projects, for administrators."""

from __future__ import annotations

import flask
from flask import Blueprint
from flask.typing import ResponseReturnValue
from pydantic import Field

from store import events, projects
from webapp.pages.forms import PageParams
from webapp.requests import administrator, current_context, query

routes = Blueprint("audit", __name__, url_prefix="/audit")


class AuditParams(PageParams):
    limit: int = Field(100, ge=1, le=100)


@routes.get("")
def show() -> ResponseReturnValue:
    administrator()
    params = query(AuditParams)
    with current_context().database.read() as session:
        records, has_more = events.actions(session, None, after=params.after, limit=params.limit)
        names = projects.names(session, {record.project_id for record in records})
    return flask.render_template("audit.html", events=records, names=names, has_more=has_more, limit=params.limit)
