"""Budgets: refuses new work of projects and keys that spent theirs, and announces how they stand."""

from fractions import Fraction

from sqlalchemy.orm import Session

from batchyard import tariffs
from batchyard.errors import PermissionDeniedError
from store import keys, projects
from store.accounting import budgets
from store.accounting.budgets import Standing
from store.accounting.months import day_text
from store.keys import Principal
from store.records import Batch, Job
from tasks.context import AppContext
from tasks.scheduling import caps


def check(context: AppContext, session: Session, project_id: str, key_id: str = "") -> None:
    """Raise PermissionDeniedError if the project, or this key of it, has spent its budget of this month."""
    standing = budgets.standing(session, project_id, key_id)
    if standing is not None:
        refuse(context, standing, _whose(session, standing))


def refuse_capped(session: Session, by: Principal, why: str) -> None:
    """Raise PermissionDeniedError if a key has a cap. `why`: what its cap would not count, and the remedy."""
    if not by.admin and budgets.standing(session, by.project_id, by.key_id) is not None:
        raise PermissionDeniedError(f"This key has a cap, and {why}.", code="key_not_allowed")


def _whose(session: Session, standing: Standing) -> str:
    budget = standing.budget
    if budget.key_id:
        return f"Key '{keys.get(session, budget.key_id).name}'"
    return f"Project '{projects.get(session, budget.project_id).name}'"


def refuse(context: AppContext, standing: Standing, whose: str, what: str = "New batches and jobs") -> None:
    """Raise PermissionDeniedError if a budget is spent now."""
    if standing.budget.key_id:
        standing = caps.current(context, standing)
    if standing.state == "exceeded":
        raise _exceeded(standing, whose, f"{what} are accepted")


def check_resume(session: Session, by: Principal, work: Batch | Job) -> None:
    """Raise PermissionDeniedError if an exceeded budget pauses work, unless by an administrator."""
    if by.admin or work.paused_at is None:
        return
    for key_id in dict.fromkeys(("", work.created_by or "")):
        standing = budgets.standing(session, work.project_id, key_id)
        if standing is None or standing.state != "exceeded":
            continue
        if work.paused_by == budgets.paused_by(standing.budget) or standing.budget.when_exceeded == "pause":
            raise _exceeded(standing, _whose(session, standing), "It goes on")


def _exceeded(standing: Standing, whose: str, what: str) -> PermissionDeniedError:
    budget, amount = standing.budget, standing.amount
    kind, remedy = ("cap", "raises its cap") if budget.key_id else ("budget", "raises the budget")
    if amount is not None and standing.spent >= amount:
        spent, limit = (tariffs.text(Fraction(sum_), budget.currency or "") for sum_ in (standing.spent, amount))
        used = f"spent {spent} of its {kind} of {limit}"
    else:
        used = f"used {standing.tokens:,} of its {kind} of {budget.max_tokens:,} tokens"
    return PermissionDeniedError(
        f"{whose} has {used} for {standing.month}. {what} again from {day_text(standing.month.end)} (UTC) on, or when "
        f"an administrator {remedy}.",
        code="budget_exceeded",
    )


def tick(context: AppContext) -> None:
    """Announce budgets that stand otherwise than before, and pause or resume work as they say."""
    with context.database.read() as session:
        standings = budgets.standings(session, key_ids=None)
    for standing in standings:
        caps.settle(context, standing)
