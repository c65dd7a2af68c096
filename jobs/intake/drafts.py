"""Drafts: jobs that are to be created, and what was checked of them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, NamedTuple

from batchyard.errors import RequestError
from batchyard.models import ModelSpec
from batchyard.recipes import Recipe, Stage
from jobs.catalogue import catalogue_of
from jobs.intake import identity
from store.jobs import lifecycle
from store.records import File, Job
from tasks.context import AppContext
from tasks.execution import engine_status
from tasks.intake.submission import NewInput


class Submission(NamedTuple):
    """What a client sends of a job: options, window, and `admin` if the client is an administrator."""

    values: Mapping[str, Any]
    completion_window: str
    admin: bool = False


class Configuration(NamedTuple):
    """What a job runs, after a check. A job whose items are jobs has no stages, and the models of them all.

    `expected` requests of an item in a stage are None where they are not known. `named_jobs` are by the option's place.
    """

    recipe: Recipe[Any]
    options: Any
    models: Mapping[str, ModelSpec]
    stages: Sequence[Stage] = ()
    expected: Sequence[float | None] = ()
    named_jobs: Mapping[str, tuple[str, str]] = MappingProxyType({})


@dataclass(frozen=True)
class JobDraft:
    """A job to create: its unsaved record, its input, None where there is none yet, and its stages."""

    job: Job
    source: File | NewInput | None
    stages: Sequence[Stage]
    expected: Sequence[float | None]


def configured(context: AppContext, job: Job, source: File | NewInput | None, configuration: Configuration) -> JobDraft:
    """Set an unsaved job's recipe, options and models, with hashes over them."""
    recipe, models = configuration.recipe, configuration.models
    job.recipe, job.recipe_sha256 = recipe.name, catalogue_of(context).sha256(recipe.name)
    job.options = configuration.options.model_dump(mode="json")
    job.models = {name: spec.model_dump(mode="json") for name, spec in models.items()}
    job.simulated = any(engine_status.capabilities(spec).simulated for spec in models.values())
    identify(job, recipe)
    return JobDraft(job, source, configuration.stages, configuration.expected)


def check_named_jobs(context: AppContext, project_id: str, configuration: Configuration) -> None:
    """Raise RequestError for an option that names no such job."""
    for place, (job_id, recipe) in configuration.named_jobs.items():
        with context.database.read() as session:
            found = lifecycle.by_ids(session, project_id, [job_id])
        if not found:
            raise RequestError(f"No job found with id '{job_id}'.", code="invalid_value", param=place)
        if found[0].recipe != recipe:
            message = f"Job '{job_id}' is of recipe '{found[0].recipe}', not of '{recipe}'."
            raise RequestError(message, code="invalid_value", param=place)


def identify(job: Job, recipe: Recipe[Any]) -> None:
    """Set the hashes over what an unsaved job runs."""
    for name, sha256 in identity.hashes(recipe.options, identity.configuration(job)).items():
        setattr(job, name, sha256)
