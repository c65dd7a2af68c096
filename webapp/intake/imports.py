"""/v1/imports: files of objects in a bucket."""

from flask import Blueprint

from store import files
from tasks.intake import imports
from webapp.document import operation
from webapp.files import base_name, expires_after, to_wire
from webapp.requests import caller, current_context, parse_body
from webapp.wire.files import CreateImport, ImportedFiles

routes = Blueprint("imports", __name__)


@routes.post("/v1/imports")
@operation(ImportedFiles, json=CreateImport, refusals=(403, 404, 413))
def create() -> ImportedFiles:
    """Make files of the objects at a URL of a bucket that the operator allows: one of all of them, or one of each."""
    owner, context = caller(), current_context()
    body = parse_body(CreateImport)
    if body.join:
        contents = [imports.joined(context, owner.project_id, body.url)]
    else:
        contents = imports.each(context, owner.project_id, body.url)
    with context.database.write() as session:
        files.check_room(session, owner.project_id, sum(content.size for _, content in contents))
        records = [
            files.create(
                session,
                owner.project_id,
                filename=base_name(name),
                purpose=body.purpose,
                size=content.size,
                sha256=content.sha256,
                expires_after=expires_after(body),
            )
            for name, content in contents
        ]
    return ImportedFiles(data=[to_wire(record) for record in records])
