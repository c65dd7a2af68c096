"""The port of batches: what they tell and ask the programs over them. The package `jobs` implements it."""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable, Mapping, Sequence, Set
from typing import IO, TYPE_CHECKING, Any, Protocol, TypeVar

from sqlalchemy.orm import Session

from batchyard.errors import RequestError
from batchyard.models import ModelSpec
from batchyard.settings import Settings
from store.queue import BacklogEntry
from store.records import Batch, File, Job, Schedule
from store.speeds import Throughput
from tasks.context import AppContext

if TYPE_CHECKING:
    from tasks.intake.submission import NewInput
    from tasks.scheduling.forecast import Forecast

P = TypeVar("P")


class CheckedJob(Protocol):
    """A job that was checked and is not created yet, with its unsaved record."""

    @property
    def job(self) -> Job: ...


class BatchPort:
    """A deployment without programs over batches."""

    def prepare(self, settings: Settings) -> None:
        """Load what jobs may name. Raises ConfigurationError for what cannot be used."""

    def register_tasks(self) -> None:
        """Add the Celery tasks of jobs to the application."""

    def chunk_appended(self, context: AppContext, job_id: str, *, last: bool) -> None:
        """Note that answers of a job's segment were stored. `last`: the segment has no others."""

    def batch_ended(self, context: AppContext) -> None:
        """Note that a batch of a job has ended."""

    def validate(self, context: AppContext, job_id: str, holder: str) -> bool:
        """Validate a job and start it. False if another worker does, or did."""
        return False

    def finish(self, context: AppContext, job_id: str, holder: str) -> bool:
        """Write a job's artifacts and end it. False as `validate`."""
        return False

    def recover(self, session: Session) -> Callable[[AppContext], None]:
        """End what is past its window or past help, and claim what lost its message. Return what to do after."""
        return lambda _: None

    def returns(self, context: AppContext, session: Session, job_id: str) -> bool:
        """True if items of a job come back to a stage, so that a replica has their beginnings in its cache."""
        return False

    def backlog(self, session: Session) -> Sequence[BacklogEntry]:
        """Return the requests that jobs still have outside batches, as pending segments."""
        return []

    def forecasts(
        self,
        context: AppContext,
        batches: Sequence[Batch],
        ends: Callable[[], Mapping[str, Forecast]],
        throughputs: Mapping[tuple[str, str], Throughput],
        waiting: Set[str],
        now: float,
    ) -> dict[str, Forecast]:
        """Return the expected end of each job, and note which are late.

        `ends` returns when the last answer of each entry of the backlog is expected. `waiting` are batches that do not
        move.
        """
        return {}

    def extra_models(self, session: Session) -> Mapping[str, ModelSpec]:
        """Return the models that unended jobs run beside the served ones, by name."""
        return {}

    def totals(self, context: AppContext) -> Mapping[tuple[str, ...], int]:
        """Return what jobs have counted for /metrics. Raises redis.RedisError."""
        return {}

    def check_template(self, context: AppContext, project_id: str, job: Mapping[str, Any]) -> None:
        """Raise RequestError for the job of a schedule that could not be created. `param` is the place in it."""
        raise RequestError("This deployment runs no jobs.", code="invalid_value", param="recipe")

    def check_file(self, name: str, param: str) -> None:
        """Raise RequestError about `param` for a file of this name that cannot be a job's input."""

    def check_rows(self, content: IO[bytes]) -> None:
        """Raise RequestError for the first of these JSON lines that no job could have as a row."""

    def draft(
        self, context: AppContext, schedule: Schedule, source: File | NewInput, values: Mapping[str, Any]
    ) -> CheckedJob:
        """Check the job of a schedule's run, with its name, metadata, window and expiry. Raises RequestError."""
        raise RequestError("This deployment runs no jobs.")

    def submit(self, context: AppContext, session: Session, checked: CheckedJob) -> Job:
        """Create a job that was checked; after the transaction the caller calls `send`. Raises RequestError."""
        raise RequestError("This deployment runs no jobs.")

    def send(self, job: Job) -> None:
        """Send a new job to a worker."""


def implementation(name: str, default: type[P]) -> P:
    """Return `PORT` of a module of package `jobs`, or the default."""
    try:
        importlib.import_module("jobs")
    except ModuleNotFoundError:
        return default()
    port: P = importlib.import_module(f"jobs.{name}").PORT
    return port


def running_models(context: AppContext, session: Session) -> dict[str, ModelSpec]:
    """Return the models that may run by name: the served and the removed ones, and those of unended jobs."""
    return {**context.draining, **context.models, **port().extra_models(session)}


@functools.cache
def port() -> BatchPort:
    return implementation("port", BatchPort)
