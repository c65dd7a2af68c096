"""Budgets: refuses new work of projects that spent theirs, and announces how they stand."""

import logging
from fractions import Fraction

from sqlalchemy.orm import Session

from batchyard import tariffs
from batchyard.errors import PermissionDeniedError
from store import projects
from store.accounting import budgets
from store.accounting.budgets import Standing
from store.accounting.months import day_text
from store.keys import Principal
from store.records import Batch, Job
from tasks.context import AppContext

log = logging.getLogger(__name__)


def check(session: Session, project_id: str, name: str) -> None:
    """Raise PermissionDeniedError if the project has spent its budget of this month. `name`: what it is called."""
    standing = budgets.standing(session, project_id)
    if standing is not None and standing.state == "exceeded":
        raise _exceeded(standing, name, "New batches and jobs are accepted")


def check_resume(session: Session, by: Principal, work: Batch | Job) -> None:
    """Raise PermissionDeniedError if an exceeded budget pauses work, unless by an administrator."""
    standing = None if by.admin or work.paused_at is None else budgets.standing(session, work.project_id)
    if standing is None or standing.state != "exceeded":
        return
    if work.paused_by == budgets.PAUSED_BY or standing.budget.when_exceeded == "pause":
        name = projects.get(session, work.project_id).name
        raise _exceeded(standing, name, "It goes on")


def _exceeded(standing: Standing, name: str, what: str) -> PermissionDeniedError:
    currency = standing.budget.currency
    spent, amount = (tariffs.text(Fraction(sum_), currency) for sum_ in (standing.spent, standing.amount))
    return PermissionDeniedError(
        f"Project '{name}' has spent {spent} of its budget of {amount} for {standing.month}. {what} "
        f"again from {day_text(standing.month.end)} (UTC) on, or when an administrator raises the budget.",
        code="budget_exceeded",
    )


def tick(context: AppContext) -> None:
    """Announce budgets that stand otherwise than before, and pause or resume work as they say."""
    with context.database.read() as session:
        standings = budgets.standings(session)
    for standing in standings:
        if budgets.is_news(standing):
            with context.database.write() as session:
                if budgets.announce(session, standing):
                    log.warning("budget %s", standing.state, extra={"project_id": standing.budget.project_id})
