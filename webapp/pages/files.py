"""/files: the project's files, grouped by the batch or job that they belong to."""

from collections.abc import Sequence
from functools import partial
from typing import Annotated, Literal, TypeAlias

import flask
from flask import Blueprint, Response
from flask.typing import ResponseReturnValue
from pydantic import Field

from store import files
from store.formats.results import OUTPUT
from store.records import File
from store.work import file_groups
from store.work.file_groups import FileFilter, FileGroup, Kind
from webapp.files import get_file, output_retention, remove, send
from webapp.pages.forms import Blank, PageParams
from webapp.port import port
from webapp.requests import caller, current_context, query
from webapp.work import title

routes = Blueprint("files", __name__, url_prefix="/files")

FILES = 12
"""Files of a batch or a job that are shown: its page has all."""
Chosen: TypeAlias = Kind | Literal["unused"]
KINDS: dict[Chosen, str] = {
    "input": "inputs",
    "output": "outputs",
    "errors": "errors",
    "manifest": "manifests",
    "other": "others",
    "unused": "not used yet",
}


class FilesParams(PageParams):
    limit: int = Field(10, ge=1, le=100)
    q: Annotated[str | None, Blank] = Field(None, max_length=200)
    kind: Annotated[Chosen | None, Blank] = None
    runs: bool = Field(False, description="include the files of schedules' runs")


@routes.get("")
def show() -> ResponseReturnValue:
    """Show groups of files, before them those that nothing uses yet; with kind `unused` these alone, page by page."""
    params, project_id, context = query(FilesParams), caller().project_id, current_context()
    text = (params.q or "").strip() or None
    groups, has_more = list[FileGroup](), False
    unused: Sequence[File] = ()
    more_unused = False
    with context.database.read() as session:
        if params.kind == "unused":
            unused, has_more = file_groups.unused(session, project_id, text, after=params.after, limit=params.limit)
        else:
            outputs = {OUTPUT, *(recipe.main for recipe in port().recipes())}
            wanted = FileFilter(outputs, text, params.kind, params.runs)
            groups, has_more = file_groups.page(session, project_id, wanted, after=params.after, limit=params.limit)
            if params.kind is None and params.after is None:
                unused, more_unused = file_groups.unused(session, project_id, text, after=None, limit=params.limit)
    ids = [file.id for file in unused] if params.kind == "unused" else [group.work.id for group in groups]
    return flask.render_template(
        "files.html",
        params=params,
        expires_at=partial(files.deleted_at, retention=output_retention()),
        kinds=KINDS,
        groups=groups,
        names={group.work.id: title(group.work) for group in groups},
        has_more=has_more,
        unused=unused,
        more_unused=more_unused,
        last=ids[-1] if ids else None,
        most=FILES,
    )


@routes.get("/<file_id>/content")
def content(file_id: str) -> Response:
    return send(get_file(file_id))


@routes.post("/<file_id>/delete")
def delete(file_id: str) -> ResponseReturnValue:
    remove(file_id)
    return flask.redirect(flask.url_for("pages.files.show"), 303)
