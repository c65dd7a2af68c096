"""Jobs over an ended one's items: a retry asks again, a rescoring judges anew."""

from collections.abc import Mapping, Sequence
from typing import Any

from sqlalchemy.orm import Session

from batchyard.errors import ConflictError, RequestError
from batchyard.statuses import RETRIABLE_STATES, TERMINAL
from jobs.catalogue import catalogue_of
from jobs.finishing import journal
from jobs.intake import identity
from jobs.intake.drafts import JobDraft, check_named_jobs, configured, identify
from jobs.items.states import select
from jobs.kinds.registry import check, kind_of_job
from store import files
from store.formats import items as items_file
from store.jobs import lifecycle
from store.records import Job
from tasks.context import AppContext
from tasks.steps import registry

_CHOOSING = ("limit", "shuffle", "null_values")
_LABELS = (
    *("project_id", "name", "seed", "input_sha256", "request_metadata", "output_expires_after"),
    *("callback_url", "stop_when"),
)
_SAME_REQUESTS = ("recipe", "recipe_sha256", "models", "simulated", "completion_window", "input_file_id", "input_name")
"""What a rescoring has of the job whose answers it judges."""


def rescore(context: AppContext, project_id: str, job_id: str, values: Mapping[str, Any]) -> JobDraft:
    """Prepare a job that judges an ended one's answers anew, with `values` over its options. Raises as `retry`."""
    with context.database.read() as session:
        source = _repeatable(context, session, project_id, job_id)
        kept = [artifact.name for artifact, _ in lifecycle.artifacts(session, [job_id])[job_id]]
    if source.status not in TERMINAL or journal.NAME not in kept:
        reason = "has not ended" if source.status not in TERMINAL else "has no journal"
        raise ConflictError(f"Job '{job_id}' {reason}, so its answers cannot be judged anew.", param="job_id")
    recipe = catalogue_of(context).recipe(source.recipe)
    judging = identity.judgement_fields(recipe.options)
    for name in values:
        if name in recipe.options.model_fields and name not in judging:
            message = (
                f"The option '{name}' changes the requests; those that only judge are: {', '.join(judging) or 'none'}."
            )
            raise RequestError(message, code="invalid_value", param=f"options.{name}")
    configuration = check(context, source.recipe, source.options | dict(values), source.completion_window)
    if values:
        check_named_jobs(context, project_id, configuration)
    job = _again(
        source,
        **{name: getattr(source, name) for name in (*_SAME_REQUESTS, "retry_of")},
        options=configuration.options.model_dump(mode="json"),
        items_sha256=source.items_sha256 if source.retry_of else None,
        answers_from=source.id,
        only_judges=True,
    )
    identify(job, recipe)
    return JobDraft(job, None, configuration.stages, [0.0] * len(configuration.stages))


def retry(
    context: AppContext,
    project_id: str,
    job_id: str,
    *,
    states: Sequence[str] = RETRIABLE_STATES,
    values: Mapping[str, Any] | None = None,
    completion_window: str | None = None,
) -> JobDraft:
    """Prepare a job of an ended one's items that did not complete, with all requests anew.

    Its items are a file of its own, with the numbers, ids and rows that they have in the ended job. `values` replace
    options of that job.

    Raises NotFoundError; ConflictError: it has not ended, or its items or its input are not kept any more;
    RequestError: no item is in one of `states`; an option is unknown or invalid, or chooses rows.
    """
    with context.database.read() as session:
        source = _repeatable(context, session, project_id, job_id)
        file = files.find(session, project_id, source.input_file_id or "")
    if source.status not in TERMINAL:
        message = f"Job '{job_id}' is {source.status}; wait for its end, or cancel it, and then retry it."
        raise ConflictError(message, param="job_id")
    for name in _CHOOSING:
        if values and name in values:
            message = f"The option '{name}' chooses among the rows of an input; a retry takes items. Leave it out."
            raise RequestError(message, code="invalid_value", param=f"options.{name}")
    window = completion_window or source.completion_window
    configuration = check(context, source.recipe, source.options | dict(values or {}), window)
    if values:
        check_named_jobs(context, project_id, configuration)
    if file is None:
        message = f"The input of job '{job_id}' was deleted or has expired; upload it again, and create a new job."
        raise ConflictError(message, param="job_id")
    if not source.total:
        raise _nothing(source, "it has no items. Create a new job.")
    reader, positions = select(context, source, states)
    if not positions.size:
        why = f"none of its {source.total} items is {' or '.join(states)}. Name other 'states', or create a new job."
        raise _nothing(source, why)
    with context.artifacts.create() as items:
        target = items_file.ItemsWriter(items)
        reader.copy(positions, target)
        target.close()
    job = _again(source, completion_window=window, items_sha256=items.sha256, retry_of=source.id)
    return configured(context, job, file, configuration)


def _repeatable(context: AppContext, session: Session, project_id: str, job_id: str) -> Job:
    """Return a job whose items can be asked or judged again."""
    source = lifecycle.get(session, project_id, job_id)
    if not kind_of_job(context, source).has_journal:
        message = (
            f"Job '{job_id}' is of recipe '{source.recipe}': create it again, with other options if you like. "
            "Completed jobs of the same configuration are taken as they are, and what is missing runs."
        )
        raise ConflictError(message, param="job_id")
    return source


def _again(source: Job, **values: Any) -> Job:
    return Job(
        **{name: getattr(source, name) for name in _LABELS},
        post_process=[registry.request(entry) for entry in source.post_process],
        **values,
    )


def _nothing(job: Job, reason: str) -> RequestError:
    message = f"Job '{job.id}' has nothing to retry: {reason}"
    return RequestError(message, code="nothing_to_retry", param="states")
