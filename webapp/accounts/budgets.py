"""/v1/projects/{id}/budget: what a project may spend in a month, for administrators."""

from flask import Blueprint

from batchyard.errors import NotFoundError
from store import projects
from store.accounting import budgets
from store.accounting.budgets import Standing
from webapp.document import operation
from webapp.requests import administrator, current_context, parse_body
from webapp.wire.usage import BudgetObject, BudgetRemoved, SetBudget

routes = Blueprint("budgets", __name__)


@routes.get("/v1/projects/<project_id>/budget")
@operation(BudgetObject, refusals=(403, 404))
def retrieve(project_id: str) -> BudgetObject:
    """Look at a project's budget. A project sees its own with GET /v1/usage."""
    administrator()
    with current_context().database.read() as session:
        projects.get(session, project_id)
        standing = budgets.standing(session, project_id)
    if standing is None:
        raise NotFoundError(f"Project '{project_id}' has no budget.", param="project_id")
    return BudgetObject.model_validate(standing.document)


@routes.post("/v1/projects/<project_id>/budget")
@operation(BudgetObject, json=SetBudget, refusals=(403, 404, 413))
def change(project_id: str) -> BudgetObject:
    """Set what a project may spend in a month. Once it has, its new batches and jobs are refused."""
    administrator()
    return BudgetObject.model_validate(set_budget(project_id, parse_body(SetBudget)).document)


def set_budget(project_id: str, body: SetBudget) -> Standing:
    """Set a project's budget, and record who did. Raises NotFoundError, RequestError."""
    budgets.check_currency(body.currency, current_context().models)
    with current_context().database.write() as session:
        return budgets.change(session, administrator(), project_id, **body.model_dump())


@routes.delete("/v1/projects/<project_id>/budget")
@operation(BudgetRemoved, refusals=(403, 404))
def remove(project_id: str) -> BudgetRemoved:
    """Remove a project's budget, and let go on what it has paused."""
    remove_budget(project_id)
    return BudgetRemoved()


def remove_budget(project_id: str) -> None:
    """Remove a project's budget, and record who did. Raises NotFoundError."""
    owner = administrator()
    with current_context().database.write() as session:
        budgets.remove(session, owner, project_id)
