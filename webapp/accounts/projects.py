"""/v1/projects: the tenants, with their tier and limits, for administrators."""

from flask import Blueprint

from store import projects
from store.deletion import erasure
from webapp.document import operation
from webapp.requests import administrator, current_context, listed, parse_body
from webapp.wire.accounts import ChangeProject, ListProjects, ProjectObject, ProjectPage

routes = Blueprint("projects", __name__)


@routes.get("/v1/projects")
@operation(ProjectPage, query=ListProjects, refusals=(403,))
def list_() -> ProjectPage:
    """List the projects, newest first. A project is made with its first key."""
    administrator()
    records, has_more = listed(projects.page, ListProjects)
    return ProjectPage.of([ProjectObject.model_validate(project) for project in records], has_more=has_more)


@routes.post("/v1/projects/<project_id>")
@operation(ProjectObject, json=ChangeProject, refusals=(403, 404, 413))
def change(project_id: str) -> ProjectObject:
    """Change a project's tier, for its batches from now on, its limit, its result cache, live tier and retention."""
    administrator()
    body = parse_body(ChangeProject)
    projects.check_tier(body.tier, current_context().settings.tier_seconds)
    with current_context().database.write() as session:
        project = projects.update(session, project_id, **body.model_dump(include=body.model_fields_set))
    return ProjectObject.model_validate(project)


@routes.delete("/v1/projects/<project_id>")
@operation(ProjectObject, refusals=(403, 404, 409))
def erase(project_id: str) -> ProjectObject:
    """Erase a project whole: its keys end at once, what runs is cancelled, and then all that it had is deleted.

    The project is in the list, with `erasing_at`, until that is done.
    """
    owner = administrator()
    with current_context().database.write() as session:
        project = erasure.begin(session, owner, project_id)
    return ProjectObject.model_validate(project)
