"""/v1/projects/{id}/budget: what a project may spend in a month, for administrators."""

from __future__ import annotations

from decimal import Decimal
from typing import Annotated, Literal

from flask import Blueprint
from pydantic import BaseModel, ConfigDict, Field

from batchyard.errors import NotFoundError
from batchyard.tariffs import CURRENCY, PLACES
from store import projects
from store.accounting import budgets
from store.accounting.budgets import Standing, State, WhenExceeded
from webapp.document import operation
from webapp.requests import administrator, current_context, parse_body

routes = Blueprint("budgets", __name__)


class BudgetObject(BaseModel):
    """A project's budget of each month, and how it stands in this one."""

    object: Literal["budget"] = "budget"
    amount: str
    currency: str
    warn_at: int = Field(description="percent of it from which on there is a warning")
    when_exceeded: WhenExceeded = Field(description="what runs then is to run to its end, or is paused")
    month: str = Field(description="of UTC")
    spent: str = Field(description="so far, by tariffs with its currency; exact")
    state: State


class BudgetRemoved(BaseModel):
    object: Literal["budget"] = "budget"
    deleted: Literal[True] = True


class SettleBudget(BaseModel):
    """The body of POST /v1/projects/{id}/budget."""

    model_config = ConfigDict(extra="forbid")
    amount: Annotated[Decimal, Field(ge=0, lt=10**12, decimal_places=PLACES)] = Field(
        description="what may be spent in a month; a number, or one as a text"
    )
    currency: str = Field(pattern=f"^{CURRENCY.pattern}$", description="that of the tariffs in models.toml")
    warn_at: int = Field(80, ge=1, le=100, description="percent of it from which on there is a warning")
    when_exceeded: WhenExceeded = Field("finish", description="what runs then runs to its end, or is paused")


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
@operation(BudgetObject, json=SettleBudget, refusals=(403, 404, 413))
def settle(project_id: str) -> BudgetObject:
    """Set what a project may spend in a month. Once it has, its new batches and jobs are refused."""
    administrator()
    return BudgetObject.model_validate(set_budget(project_id, parse_body(SettleBudget)).document)


def set_budget(project_id: str, body: SettleBudget) -> Standing:
    """Set a project's budget, and record who did. Raises NotFoundError."""
    with current_context().database.write() as session:
        return budgets.settle(session, administrator(), project_id, **body.model_dump())


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
