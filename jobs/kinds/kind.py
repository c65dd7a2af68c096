"""What all kinds of recipes offer to a job's tasks and to intake."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Generic, NamedTuple, TypeVar

from pydantic import BaseModel

from batchyard.recipes import Recipe
from jobs.intake.drafts import Configuration, JobDraft, Submission
from store.leases import Lease
from store.records import Job
from tasks.context import AppContext
from tasks.intake.estimate import Part
from tasks.intake.validation import ValidationReport

R = TypeVar("R", bound=Recipe[Any])
Warnings = list[tuple[str, str]]
"""Code and message of each."""


class FirstRequest(NamedTuple):
    stage: str
    endpoint: str
    body: Mapping[str, Any]


class StageOutlook(NamedTuple):
    """A stage of a job.

    `expected` counts its requests, None if the answers decide how many there are: then `least` and `most` bound them,
    as far as that is known.
    """

    name: str
    endpoint: str
    expected: float | None
    least: float | None = None
    most: float | None = None

    def times(self, factor: float) -> StageOutlook:
        counts = [count if count is None else round(count * factor) for count in self[2:]]
        return StageOutlook(self.name, self.endpoint, *counts)


@dataclass(frozen=True)
class JobEstimate:
    """What a job would do. None stands for what nobody can know; `warnings` say why.

    `earliest` and `latest` are for the fewest and the most requests, where `seconds` is None. `parts` are what all
    requests ask of each model, `requests` those of the first item's first turn, `errors` as in `errors.data` of a job.
    """

    items: int | None
    stages: Sequence[StageOutlook] = ()
    seconds: float | None = None
    warnings: Sequence[tuple[str, str]] = ()
    cells: Sequence[BaseModel] = ()
    parts: Mapping[str, Part] | None = None
    requests: Sequence[FirstRequest] = ()
    errors: Sequence[Mapping[str, Any]] = ()
    earliest: float | None = None
    latest: float | None = None


class ChildRow(NamedTuple):
    """A started or future child of a job, `taken` if it is an earlier job.

    Jobs of one `round` of a tune's cell run side by side.
    """

    key: str
    variant: str
    repeat: int
    round: int
    status: str
    job_id: str | None
    taken: bool
    metrics: Mapping[str, Any]
    problem: str | None


class RecipeKind(ABC, Generic[R]):
    """A kind of recipe. Its methods get recipes of this kind, and jobs of such recipes."""

    has_journal: ClassVar[bool] = False
    """True if the items of its jobs make requests, whose journal is an artifact; else they are jobs, or start some."""

    @abstractmethod
    def check(self, context: AppContext, recipe: R, sent: Submission) -> Configuration:
        """Return what a job with these options runs. Raises RequestError, with `param`; PermissionDeniedError."""

    @abstractmethod
    def estimate(self, context: AppContext, recipe: R, draft: JobDraft) -> JobEstimate:
        """Return what a job would do. Raises RequestError."""

    @abstractmethod
    def write_items(self, context: AppContext, recipe: R, job: Job, report: ValidationReport) -> tuple[str, int]:
        """Write a new job's items file, errors to the report. Return SHA-256 and number of items."""

    @abstractmethod
    def tick(self, context: AppContext, lease: Lease, job: Job) -> None:
        """Advance a job that is in progress or being cancelled. Raises LeaseLost, UnavailableError."""

    def expected(self, context: AppContext, job: Job) -> dict[int, int | None]:
        return {}

    def children(self, context: AppContext, job: Job) -> list[ChildRow]:
        return []
