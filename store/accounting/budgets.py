"""Budgets: what a project or a key may use in a month (UTC), and how it stands.

What it has spent is its usage with the budget's currency, which is exact. A budget's `notice` is what was announced
last, as `2026-11 warning`: a compare-and-set of it announces each step once.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction
from typing import Any, Literal

from sqlalchemy import ColumnElement, and_, or_, select, update
from sqlalchemy.orm import Session

from batchyard import tariffs
from batchyard.errors import RequestError
from batchyard.models import ModelSpec
from batchyard.statuses import JOB_PAUSABLE, PAUSABLE
from store import events, keys, projects
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
PAUSED_BY_CAP = "its key's cap"
CAP_WARN_AT = 80


@dataclass(frozen=True)
class Standing:
    """How a budget stands in a month. The `live_` values are of live requests, and counted only for keys."""

    budget: Budget
    month: Month
    spent: Fraction
    tokens: int = 0
    live_spent: Fraction = Fraction(0)
    live_tokens: int = 0

    @property
    def amount(self) -> Fraction | None:
        return None if self.budget.amount is None else Fraction(self.budget.amount, tariffs.MICRO)

    @property
    def share(self) -> Fraction:
        """The share that is used of the limit of cost or of tokens, whichever is larger."""
        limits = ((self.spent, self.amount), (Fraction(self.tokens), self.budget.max_tokens))
        return max(used / limit if limit else Fraction(1) for used, limit in limits if limit is not None)

    @property
    def state(self) -> State:
        if self.share >= 1:
            return "exceeded"
        return "warning" if 100 * self.share >= self.budget.warn_at else "ok"

    @property
    def document(self) -> dict[str, Any]:
        """The budget as clients see it."""
        return {
            "key_id": self.budget.key_id or None,
            "amount": None if self.amount is None else tariffs.decimal(self.amount),
            "currency": self.budget.currency,
            "warn_at": self.budget.warn_at,
            "when_exceeded": self.budget.when_exceeded,
            "month": str(self.month),
            "spent": tariffs.decimal(self.spent),
            "max_tokens": self.budget.max_tokens,
            "tokens": self.tokens,
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
    of_cost = select(Project.name, Budget.currency).join(Budget, Budget.project_id == Project.id)
    rows = session.execute(of_cost.where(Budget.currency.is_not(None)).distinct())
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

    `amount` has tariffs.PLACES decimal places at most, and `warn_at` is the percent of it from which on there is a
    warning. Raises NotFoundError: there is no such project.
    """
    project = projects.get(session, project_id, lock=True)
    budget = session.get(Budget, (project_id, "")) or Budget(project_id=project_id)
    budget.amount, budget.currency = int(amount * tariffs.MICRO), currency
    budget.warn_at, budget.when_exceeded = warn_at, when_exceeded
    session.add(budget)
    session.flush()
    shown = {"project": project.name, "amount": tariffs.text(Fraction(amount), currency)}
    events.act(session, by, "budget.changed", project_id, **shown, warn_at=warn_at, when_exceeded=when_exceeded)
    return _announced(session, budget)


def _announced(session: Session, budget: Budget) -> Standing:
    standing = _standings(session, [budget])[0]
    if is_news(standing):
        announce(session, standing)
    return standing


def cap(session: Session, by: Principal, key_id: str, limits: Mapping[str, Any]) -> Standing | None:
    """Set what a key may use in a month, and record who did. None: it has no cap any more.

    `limits` has `max_tokens`, and `max_cost` as an amount and its currency; what is left out stays, None removes it.
    Raises NotFoundError.
    """
    key = keys.find(session, key_id, lock=True)
    budget = session.get(Budget, (key.project_id, key_id))
    new = budget or Budget(project_id=key.project_id, key_id=key_id, warn_at=CAP_WARN_AT, when_exceeded="pause")
    if "max_tokens" in limits:
        new.max_tokens = limits["max_tokens"]
    if "max_cost" in limits:
        amount, new.currency = limits["max_cost"] or (None, None)
        new.amount = None if amount is None else int(amount * tariffs.MICRO)
    cost = None if new.amount is None else tariffs.text(Fraction(new.amount, tariffs.MICRO), new.currency or "")
    shown = {"key": keys.name_of(key), "max_tokens": new.max_tokens, "amount": cost}
    events.act(session, by, "budget.changed", key.project_id, **shown)
    if new.amount is not None or new.max_tokens is not None:
        session.add(new)
        session.flush()
        return _announced(session, new)
    if budget is not None:
        session.delete(budget)
        _resume(session, budget)
    return None


def remove(session: Session, by: Principal, project_id: str) -> None:
    """Remove a project's budget, if it has one, and let go on what it has paused. Raises NotFoundError."""
    project = projects.get(session, project_id, lock=True)
    budget = session.get(Budget, (project_id, ""))
    if budget is not None:
        session.delete(budget)
        events.act(session, by, "budget.removed", project_id, project=project.name)
        _resume(session, budget)


def standing(session: Session, project_id: str, key_id: str = "") -> Standing | None:
    """Return how the budget of a project, or of its key, stands now; None if it has none."""
    budget = session.get(Budget, (project_id, key_id))
    return None if budget is None else _standings(session, [budget])[0]


def standings(session: Session, key_ids: Collection[str] | None = ("",)) -> list[Standing]:
    """Return how the budgets of these keys stand now; by default those of projects. None: of projects and all keys."""
    which = select(Budget).order_by(Budget.project_id)
    if key_ids is not None:
        which = which.where(Budget.key_id.in_(key_ids))
    return _standings(session, session.scalars(which).all())


def noticed(session: Session, project_id: str) -> State:
    """Return what was announced of a project's budget in this month. It costs the reading of one row."""
    notice = session.scalar(select(Budget.notice).where(Budget.project_id == project_id, Budget.key_id == ""))
    return _state_in(Month.of(), notice)


def is_news(standing: Standing) -> bool:
    """True if a budget stands otherwise than was announced."""
    return _notice(standing) != standing.budget.notice


def _notice(standing: Standing) -> str | None:
    return None if standing.state == "ok" else f"{standing.month} {standing.state}"


def announce(session: Session, standing: Standing) -> bool:
    """Announce a budget that stands worse, and pause or resume work. True if no other caller has."""
    budget, before, notice = standing.budget, standing.budget.notice, _notice(standing)
    of_scope = (Budget.project_id == budget.project_id, Budget.key_id == budget.key_id)
    unchanged = (*of_scope, Budget.notice.is_not_distinct_from(before))
    if not changed(session, update(Budget).where(*unchanged).values(notice=notice)):
        return False
    worse = STATES[STATES.index(_state_in(standing.month, before)) + 1 : STATES.index(standing.state) + 1]
    # A key may use all of a small cap at once: both events come then.
    for state in worse if budget.key_id else worse[-1:]:
        events.announce(session, budget.project_id, f"budget.{state}", **{**standing.document, "state": state})
    if standing.state != "exceeded":
        _resume(session, budget)
    elif budget.when_exceeded == "pause":
        _pause(session, budget)
    return True


def _state_in(month: Month, notice: str | None) -> State:
    noticed_month, _, state = (notice or "").partition(" ")
    return next((known for known in STATES if known == state and noticed_month == str(month)), "ok")


def _standings(session: Session, budgets: Sequence[Budget]) -> list[Standing]:
    month = Month.of()
    of_keys = {budget.key_id: budget.project_id for budget in budgets if budget.key_id}
    of_projects = {budget.project_id: budget.project_id for budget in budgets if not budget.key_id}
    used = usage.used(session, month, "project_id", of_projects) if of_projects else {}
    used |= usage.used(session, month, "key_id", of_keys) if of_keys else {}
    live = {usage.LIVE + key_id: project_id for key_id, project_id in of_keys.items()}
    used |= usage.used(session, month, "batch_id", live) if live else {}
    standings = []
    for budget in budgets:
        tokens, spent = used[budget.key_id or budget.project_id]
        live_tokens, live_spent = used.get(usage.LIVE + budget.key_id, usage.Used())
        all_spent, of_live = (sums.get(budget.currency or "", Fraction(0)) for sums in (spent, live_spent))
        standings.append(Standing(budget, month, all_spent, tokens, of_live, live_tokens))
    return standings


def paused_by(budget: Budget) -> str:
    """Return what has paused the work that a budget pauses."""
    return PAUSED_BY_CAP if budget.key_id else PAUSED_BY


def _pause(session: Session, budget: Budget) -> None:
    """Pause what runs, as a client would. What somebody else has paused keeps that name."""
    values = {"paused_at": now(), "paused_by": paused_by(budget)}
    # Jobs before batches, as in the ticks of jobs: in another order the two would wait for each other.
    for record, statuses in ((Job, JOB_PAUSABLE), (Batch, PAUSABLE)):
        to_change = (_of(record, budget), record.status.in_(statuses), record.paused_at.is_(None))
        statement = update(record).where(*to_change).values(**values)
        session.execute(statement.execution_options(synchronize_session=False))


def _of(record: type[Batch] | type[Job], budget: Budget) -> ColumnElement[bool]:
    """Return the condition for what counts against a budget: of a key also the batches of its jobs."""
    in_project = record.project_id == budget.project_id
    if not budget.key_id:
        return in_project
    of_key = record.created_by == budget.key_id
    if record is Batch:
        jobs = select(Job.id).where(Job.project_id == budget.project_id, Job.created_by == budget.key_id)
        of_key = or_(of_key, Batch.job_id.in_(jobs))
    return and_(in_project, of_key)


def _resume(session: Session, budget: Budget) -> None:
    values = {"paused_at": None, "paused_by": None}
    in_evaluation: dict[str, Any] = {"synchronize_session": False}
    jobs = update(Job).where(_of(Job, budget), Job.paused_by == paused_by(budget)).values(**values)
    for job_id in session.scalars(jobs.returning(Job.id).execution_options(**in_evaluation)).all():
        lifecycle.hasten(session, job_id)
    batches = update(Batch).where(_of(Batch, budget), Batch.paused_by == paused_by(budget)).values(**values)
    session.execute(batches.execution_options(**in_evaluation))
