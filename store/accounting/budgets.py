"""Budgets: what a project may spend in a month (UTC), and how it stands.

What it has spent is its usage with the budget's currency, which is exact. A budget's `notice` is what was announced
last, as `2026-11 warning`: a compare-and-set of it announces each step once.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction
from typing import Any, Literal

from sqlalchemy import select, update
from sqlalchemy.orm import Session

from batchyard import tariffs
from batchyard.errors import RequestError
from batchyard.models import ModelSpec
from batchyard.statuses import JOB_PAUSABLE, PAUSABLE
from store import events, projects
from store.accounting import usage
from store.accounting.months import Month
from store.database import changed
from store.jobs import lifecycle
from store.keys import Principal
from store.records import Batch, Budget, Job, Project, now

State = Literal["ok", "warning", "exceeded"]
STATES: tuple[State, ...] = ("ok", "warning", "exceeded")
WhenExceeded = Literal["finish", "pause"]
"""What running batches and jobs do when the budget is exceeded: they run to their end, or are paused."""
PAUSED_BY = "the project's budget"


@dataclass(frozen=True)
class Standing:
    """How a budget stands in a month."""

    budget: Budget
    month: Month
    spent: Fraction

    @property
    def amount(self) -> Fraction:
        return Fraction(self.budget.amount, tariffs.MICRO)

    @property
    def state(self) -> State:
        if self.spent >= self.amount:
            return "exceeded"
        return "warning" if 100 * self.spent >= self.budget.warn_at * self.amount else "ok"

    @property
    def document(self) -> dict[str, Any]:
        """The budget as clients see it."""
        return {
            "amount": tariffs.decimal(self.amount),
            "currency": self.budget.currency,
            "warn_at": self.budget.warn_at,
            "when_exceeded": self.budget.when_exceeded,
            "month": str(self.month),
            "spent": tariffs.decimal(self.spent),
            "state": self.state,
        }


def check_currency(currency: str, models: Mapping[str, ModelSpec]) -> None:
    """Raise RequestError if these models have tariffs, and none in the currency: nothing would be spent of a budget."""
    priced = _currencies(models)
    if priced and currency not in priced:
        raise RequestError(
            f"The tariffs are in {', '.join(sorted(priced))}, and nothing counts against a budget in {currency}; set "
            "it in the currency of models.toml.",
            code="invalid_value",
            param="currency",
        )


def _currencies(models: Mapping[str, ModelSpec]) -> set[str]:
    return {spec.price.currency for spec in models.values() if spec.price}


def without_effect(session: Session, models: Mapping[str, ModelSpec]) -> list[str]:
    """Return a warning for each budget in a currency that no tariff of these models has."""
    priced = _currencies(models)
    rows = session.execute(select(Project.name, Budget.currency).join(Budget, Budget.project_id == Project.id))
    return [
        f"the budget of project {name} is in {currency}, and no price of models.toml is: nothing counts against it; "
        "set another with `batchyard project budget`, or change the prices"
        for name, currency in rows
        if currency not in priced
    ]


def change(
    session: Session,
    by: Principal,
    project_id: str,
    *,
    amount: Decimal,
    currency: str,
    warn_at: int,
    when_exceeded: WhenExceeded,
) -> Standing:
    """Set a project's budget of each month, and record who did.

    Args:
        amount: with tariffs.PLACES decimal places at most.
        warn_at: percent of it from which on there is a warning.

    Raises NotFoundError: there is no such project.
    """
    project = projects.get(session, project_id, lock=True)
    budget = session.get(Budget, project_id) or Budget(project_id=project_id)
    budget.amount, budget.currency = int(amount * tariffs.MICRO), currency
    budget.warn_at, budget.when_exceeded = warn_at, when_exceeded
    session.add(budget)
    session.flush()
    shown = {"project": project.name, "amount": tariffs.text(Fraction(amount), currency)}
    events.act(session, by, "budget.changed", project_id, **shown, warn_at=warn_at, when_exceeded=when_exceeded)
    standing = _standings(session, [budget], Month.of())[0]
    if is_news(standing):
        announce(session, standing)
    return standing


def remove(session: Session, by: Principal, project_id: str) -> None:
    """Remove a project's budget, if it has one, and let go on what it has paused. Raises NotFoundError."""
    project = projects.get(session, project_id, lock=True)
    budget = session.get(Budget, project_id)
    if budget is not None:
        session.delete(budget)
        events.act(session, by, "budget.removed", project_id, project=project.name)
        _resume(session, project_id)


def standing(session: Session, project_id: str) -> Standing | None:
    """Return how a project's budget stands now; None if it has none."""
    budget = session.get(Budget, project_id)
    return None if budget is None else _standings(session, [budget], Month.of())[0]


def standings(session: Session) -> list[Standing]:
    """Return how all budgets stand now."""
    return _standings(session, session.scalars(select(Budget).order_by(Budget.project_id)).all(), Month.of())


def noticed(session: Session, project_id: str) -> State:
    """Return what was announced of a project's budget in this month. It costs the reading of one row."""
    notice = session.scalar(select(Budget.notice).where(Budget.project_id == project_id))
    return _state_in(Month.of(), notice)


def is_news(standing: Standing) -> bool:
    """True if a budget stands otherwise than was announced."""
    return _notice(standing) != standing.budget.notice


def _notice(standing: Standing) -> str | None:
    return None if standing.state == "ok" else f"{standing.month} {standing.state}"


def announce(session: Session, standing: Standing) -> bool:
    """Announce a budget that stands worse, and pause or resume work. True if no other caller has."""
    budget, before, notice = standing.budget, standing.budget.notice, _notice(standing)
    unchanged = (Budget.project_id == budget.project_id, Budget.notice.is_not_distinct_from(before))
    if not changed(session, update(Budget).where(*unchanged).values(notice=notice)):
        return False
    if STATES.index(standing.state) > STATES.index(_state_in(standing.month, before)):
        events.announce(session, budget.project_id, f"budget.{standing.state}", **standing.document)
    if standing.state != "exceeded":
        _resume(session, budget.project_id)
    elif budget.when_exceeded == "pause":
        _pause(session, budget.project_id)
    return True


def _state_in(month: Month, notice: str | None) -> State:
    noticed_month, _, state = (notice or "").partition(" ")
    return next((known for known in STATES if known == state and noticed_month == str(month)), "ok")


def _standings(session: Session, budgets: Iterable[Budget], month: Month) -> list[Standing]:
    by_project = {budget.project_id: budget for budget in budgets}
    spent = usage.spent(session, month, by_project)
    standings = []
    for project_id, budget in by_project.items():
        amounts = spent[project_id].amounts if project_id in spent else {}
        standings.append(Standing(budget, month, amounts.get(budget.currency, Fraction(0))))
    return standings


def _pause(session: Session, project_id: str) -> None:
    """Pause what runs in a project, as a client would. What somebody else has paused keeps that name."""
    values = {"paused_at": now(), "paused_by": PAUSED_BY}
    # Jobs before batches, as in the ticks of jobs: in another order the two would wait for each other.
    for record, statuses in ((Job, JOB_PAUSABLE), (Batch, PAUSABLE)):
        to_change = (record.project_id == project_id, record.status.in_(statuses), record.paused_at.is_(None))
        session.execute(update(record).where(*to_change).values(**values))


def _resume(session: Session, project_id: str) -> None:
    values = {"paused_at": None, "paused_by": None}
    jobs = (Job.project_id == project_id, Job.paused_by == PAUSED_BY)
    for job_id in session.scalars(update(Job).where(*jobs).values(**values).returning(Job.id)).all():
        lifecycle.hasten(session, job_id)
    session.execute(update(Batch).where(Batch.project_id == project_id, Batch.paused_by == PAUSED_BY).values(**values))
