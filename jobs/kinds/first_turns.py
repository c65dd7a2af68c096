"""The first turns of a preview's items: what a recipe asks first, within seconds."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

from batchyard.recipes import FlowRecipe
from batchyard.settings import Settings
from jobs.intake import author_calls
from jobs.intake.requests import PreparedRequest
from jobs.intake.rows import Columns, RowError
from jobs.kinds.item_checks import ItemChecker
from store.records import Job
from tasks.context import AppContext
from tasks.intake.validation import ValidationReport

REMEDY = "A turn only says what to ask next; its author has to take out of it what waits or does not end."

FirstTurns: TypeAlias = tuple[list[list[PreparedRequest]], list[dict[str, Any]]]
"""The requests of each item's first turn, and what is wrong with rows, as in `errors.data` of a job."""


def of(context: AppContext, recipe: FlowRecipe[Any], job: Job, sample: Sequence[Columns | RowError]) -> FirstTurns:
    """Return the first turns of a job's first rows.

    Raises:
        RequestError: see author_calls.call.
    """
    first: FirstTurns = author_calls.call(context, recipe, "first turn", REMEDY, _checked, job, sample)
    return first


def _checked(settings: Settings, recipe: FlowRecipe[Any], job: Job, sample: Sequence[Columns | RowError]) -> FirstTurns:
    report = ValidationReport()
    checker = ItemChecker(settings, job, recipe, report)
    checker.order_columns(sample, uniform=False)
    turns = []
    for number, row in enumerate(sample, 1):
        checker.checked(number, row, probed=True)
        turns.append(checker.first_turn)
    return turns, report.errors
