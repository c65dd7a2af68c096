"""Budgets: refuses new work of projects that spent theirs, and announces how they stand."""

from __future__ import annotations

import logging
from fractions import Fraction

from sqlalchemy.orm import Session

from batchyard import tariffs
from batchyard.errors import PermissionDeniedError
from store.accounting import budgets
from store.accounting.months import day_text
from tasks.context import AppContext

log = logging.getLogger(__name__)


def check(session: Session, project_id: str, name: str) -> None:
    """Raise PermissionDeniedError if the project has spent its budget of this month. `name`: what it is called."""
    standing = budgets.standing(session, project_id)
    if standing is None or standing.state != "exceeded":
        return
    currency = standing.budget.currency
    spent, amount = (tariffs.text(Fraction(sum_), currency) for sum_ in (standing.spent, standing.amount))
    raise PermissionDeniedError(
        f"Project '{name}' has spent {spent} of its budget of {amount} for {standing.month}. New batches and jobs are "
        f"accepted again from {day_text(standing.month.end)} (UTC) on, or when an administrator raises the budget.",
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
