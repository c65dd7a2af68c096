"""Submission: checks of a new job, and its record."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import orjson
from sqlalchemy.orm import Session

from batchyard.errors import ConfigurationError, ConflictError, NotFoundError, PermissionDeniedError, RequestError
from batchyard.models import ModelSpec
from batchyard.recipes import BareOptions, Child, Recipe, Stage
from batchyard.statuses import RETRIABLE_STATES, TERMINAL
from recipes.tune import recipe as tune
from recipes.tune.cells import Cell
from recipes.tune.recipe import Tune
from store import files
from store.artifacts import Writer
from store.formats import items as items_file
from store.jobs import dependencies as records
from store.jobs import lifecycle
from store.records import File, Job
from tasks import derived, messages
from tasks.context import AppContext
from tasks.execution import engine_status
from tasks.intake import submission
from tasks.intake.submission import NewInput
from tasks.jobs.finishing import journal
from tasks.jobs.intake import identity, rows
from tasks.jobs.intake import options as job_options
from tasks.jobs.items import reading
from tasks.jobs.submission import dependencies
from tasks.steps import registry

PURPOSES = ("user_data", "batch")
_CHOOSING = ("limit", "shuffle")
"""Options that choose among the rows of an input."""


@dataclass(frozen=True)
class ArtifactName:
    """An artifact of an ended batch or job of the same project."""

    owner_id: str
    name: str


@dataclass(frozen=True)
class JobRequest:
    """A job that a client wants.

    Attributes:
        input: a file or its id, an artifact, stored content, or rows.
        output_expires_after: seconds.
        depends_on: `id` and `when` (tasks.jobs.submission.dependencies.When) of jobs and batches.
        admin: an administrator wants it.
    """

    recipe: str
    input: str | File | ArtifactName | NewInput | Sequence[Mapping[str, Any]]
    completion_window: str = "24h"
    options: Mapping[str, Any] = field(default_factory=dict)
    seed: int = 0
    name: str | None = None
    metadata: dict[str, str] | None = None
    output_expires_after: int | None = None
    answers_from: str | None = None
    depends_on: Sequence[Mapping[str, Any]] = ()
    post_process: Sequence[dict[str, Any]] = ()
    admin: bool = False


@dataclass(frozen=True)
class JobDraft:
    """A job that is to be created: its record, which is not saved yet, its input and its stages.

    `source` is None for an artifact that does not exist yet, and if the record names the input.

    `expected` has the requests of an item in each stage, None where they are not known.
    """

    job: Job
    source: File | NewInput | None
    stages: Sequence[Stage]
    expected: Sequence[float | None]


class ChildInput(NamedTuple):
    """What the input of a child is: its file if there is one, its content, and its name."""

    file_id: str | None
    sha256: str
    name: str


def draft(context: AppContext, project_id: str, request: JobRequest) -> JobDraft:
    """Check a job and prepare it. Reads the artifact store, so call it before the transaction that submits the job.

    Raises:
        RequestError: something in the request is unknown or invalid; `param` says what.
        PermissionDeniedError: the recipe is for administrators.
    """
    recipe, options, stages, specs = check(
        context, request.recipe, request.options, completion_window=request.completion_window, admin=request.admin
    )
    with context.database.read() as session:
        dependencies.check(session, project_id, request.depends_on)
    depends_on = [dict(entry) for entry in request.depends_on]
    source = _source(context, project_id, request)
    if source is None and isinstance(request.input, ArtifactName):
        depends_on.append({"id": request.input.owner_id, "when": "afterok", "artifact": request.input.name})
    job = Job(
        project_id=project_id,
        name=request.name,
        seed=request.seed,
        input_sha256=_sha256(source),
        completion_window=request.completion_window,
        request_metadata=request.metadata,
        output_expires_after=request.output_expires_after,
        post_process=list(request.post_process),
        depends_on=depends_on,
        answers_from=request.answers_from,
    )
    _configure(context, job, recipe, options, specs)
    if request.answers_from is not None:
        if recipe.children is not None:
            message = f"A job of recipe {recipe.name!r} takes no answers; its option 'reuse' takes completed jobs."
            raise RequestError(message, code="invalid_value", param="answers_from")
        _check_source(context, job, request.answers_from)
    return JobDraft(job, source, stages, job_options.expected(recipe, options, stages))


def child(context: AppContext, parent: Job, wanted: Child, source: ChildInput) -> JobDraft:
    """Prepare a job that a composite starts. It ends with the composite's window.

    Raises:
        RequestError: a recipe, a model or a reward is not there any more.
    """
    recipe, options, stages, specs = check(
        context, wanted.recipe, wanted.options, completion_window=parent.completion_window
    )
    job = Job(
        project_id=parent.project_id,
        name=wanted.key,
        seed=parent.seed + wanted.repeat,
        input_file_id=source.file_id,
        input_sha256=source.sha256,
        input_name=source.name,
        completion_window=parent.completion_window,
        output_expires_after=parent.output_expires_after,
        parent_id=parent.id,
        child_key=wanted.key,
        variant=wanted.variant,
        expires_at=parent.expires_at,
        due_at=parent.due_at,
    )
    _configure(context, job, recipe, options, specs)
    return JobDraft(job, None, stages, job_options.expected(recipe, options, stages))


def rescore(context: AppContext, project_id: str, job_id: str, values: Mapping[str, Any]) -> JobDraft:
    """Prepare a job that judges the answers of an ended one anew. It issues no request.

    Args:
        values: options that replace those of the job; they may only judge.

    Raises:
        NotFoundError: the project has no such job.
        ConflictError: it has not ended, or its answers are not kept any more.
        RequestError: an option is unknown, invalid, or does more than judge.
    """
    with context.database.read() as session:
        source = lifecycle.get(session, project_id, job_id)
        _refuse_composite(context, source)
        kept = [artifact.name for artifact, _ in lifecycle.artifacts(session, [job_id])[job_id]]
    if source.status not in TERMINAL or journal.NAME not in kept:
        reason = "has not ended" if source.status not in TERMINAL else "has no journal"
        raise ConflictError(f"Job '{job_id}' {reason}, so its answers cannot be judged anew.", param="job_id")
    recipe = context.recipes.recipe(source.recipe)
    judging = identity.judgement_fields(recipe.options)
    for name in values:
        if name in recipe.options.model_fields and name not in judging:
            raise RequestError(
                f"The option '{name}' changes the requests; those that only judge are: {', '.join(judging) or 'none'}.",
                code="invalid_value",
                param=f"options.{name}",
            )
    recipe, options, stages, _ = check(
        context, source.recipe, source.options | dict(values), completion_window=source.completion_window
    )
    job = _again(
        source,
        recipe=source.recipe,
        recipe_sha256=source.recipe_sha256,
        options=options.model_dump(mode="json"),
        models=source.models,
        simulated=source.simulated,
        completion_window=source.completion_window,
        input_file_id=source.input_file_id,
        input_name=source.input_name,
        items_sha256=source.items_sha256 if source.retry_of else None,
        retry_of=source.retry_of,
        answers_from=source.id,
    )
    _identify(job, recipe)
    return JobDraft(job, None, stages, [0.0] * len(stages))


def retry(
    context: AppContext,
    project_id: str,
    job_id: str,
    *,
    states: Sequence[str] = RETRIABLE_STATES,
    values: Mapping[str, Any] | None = None,
    completion_window: str | None = None,
) -> JobDraft:
    """Prepare a job of the items of an ended one that did not complete. It asks all of their requests again.

    Its items are a file of its own, with the numbers, ids and rows that they have in the ended job.

    Args:
        states: of the items that it takes, some of RETRIABLE_STATES.
        values: options that replace those of the ended job.
        completion_window: None for that of the ended job.

    Raises:
        NotFoundError: the project has no such job.
        ConflictError: it has not ended, or its items or its input are not kept any more.
        RequestError: none of its items is in such a state; an option is unknown or invalid, or chooses rows.
    """
    with context.database.read() as session:
        source = lifecycle.get(session, project_id, job_id)
        _refuse_composite(context, source)
        file = files.find(session, project_id, source.input_file_id or "")
    if source.status not in TERMINAL:
        message = f"Job '{job_id}' is {source.status}; wait for its end, or cancel it, and then retry it."
        raise ConflictError(message, param="job_id")
    for name in _CHOOSING:
        if values and name in values:
            message = f"The option '{name}' chooses among the rows of an input; a retry takes items. Leave it out."
            raise RequestError(message, code="invalid_value", param=f"options.{name}")
    window = completion_window or source.completion_window
    recipe, options, stages, specs = check(
        context, source.recipe, source.options | dict(values or {}), completion_window=window
    )
    if file is None:
        message = f"The input of job '{job_id}' was deleted or has expired; upload it again, and create a new job."
        raise ConflictError(message, param="job_id")
    items = _uncompleted(context, source, states)
    job = _again(source, completion_window=window, items_sha256=items.sha256, retry_of=source.id)
    _configure(context, job, recipe, options, specs)
    return JobDraft(job, file, stages, job_options.expected(recipe, options, stages))


def _again(source: Job, **values: Any) -> Job:
    """Return an unsaved job with the input and the labels of an ended one, and with these columns."""
    return Job(
        project_id=source.project_id,
        name=source.name,
        seed=source.seed,
        input_sha256=source.input_sha256,
        request_metadata=source.request_metadata,
        output_expires_after=source.output_expires_after,
        post_process=[registry.request(entry) for entry in source.post_process],
        **values,
    )


def _refuse_composite(context: AppContext, job: Job) -> None:
    """Raise ConflictError for a job whose items are jobs."""
    if context.recipes.is_composite(job.recipe):
        message = (
            f"Job '{job.id}' is of recipe '{job.recipe}': create it again, with other options if you like. Completed "
            "jobs of the same configuration are taken as they are, and what is missing runs."
        )
        raise ConflictError(message, param="job_id")


def _configure(
    context: AppContext, job: Job, recipe: Recipe[Any], options: BareOptions, specs: Mapping[str, ModelSpec]
) -> None:
    """Set what an unsaved job runs: its recipe, its options and its models, with the hashes over all of it."""
    job.recipe, job.recipe_sha256 = recipe.name, context.recipes.sha256(recipe.name)
    job.options = options.model_dump(mode="json")
    job.models = {name: spec.model_dump(mode="json") for name, spec in specs.items()}
    job.simulated = any(engine_status.capabilities(spec).simulated for spec in specs.values())
    _identify(job, recipe)


def _identify(job: Job, recipe: Recipe[Any]) -> None:
    for name, sha256 in identity.hashes(recipe.options, identity.configuration(job)).items():
        setattr(job, name, sha256)


def _uncompleted(context: AppContext, job: Job, states: Sequence[str]) -> Writer:
    """Store the items of an ended job that are in one of these states. Raises ConflictError, RequestError."""
    if not job.total:
        raise _nothing(job, "it has no items. Create a new job.")
    reader, positions = reading.select(context, job, states)
    if not positions.size:
        wanted = " or ".join(states)
        raise _nothing(job, f"none of its {job.total} items is {wanted}. Name other 'states', or create a new job.")
    with context.artifacts.create() as content:
        target = items_file.Writer(content)
        reader.copy(positions, target)
        target.close()
    return content


def _nothing(job: Job, reason: str) -> RequestError:
    message = f"Job '{job.id}' has nothing to retry: {reason}"
    return RequestError(message, code="nothing_to_retry", param="states")


def _check_source(context: AppContext, job: Job, job_id: str) -> None:
    """Check that an unsaved job may take the answers of another. Raises RequestError."""
    try:
        with context.database.read() as session:
            source = lifecycle.get(session, job.project_id, job_id)
    except NotFoundError as error:
        raise RequestError(error.message, code="invalid_value", param="answers_from") from None
    differs = [name for name in ("recipe", "seed", "input_sha256") if getattr(source, name) != getattr(job, name)]
    if identity.unpriced(source.models) != identity.unpriced(job.models):
        differs.append("models")
    if source.status not in TERMINAL or differs:
        reason = f"has another {differs[0].removesuffix('_sha256')}" if differs else "has not ended"
        raise RequestError(
            f"Job '{job_id}' {reason}; answers are taken from an ended job of the same recipe, input, seed and models.",
            code="invalid_value",
            param="answers_from",
        )


def check(
    context: AppContext, recipe_name: str, values: Mapping[str, Any], *, completion_window: str, admin: bool = False
) -> tuple[Recipe[Any], Any, list[Stage], dict[str, ModelSpec]]:
    """Return a job's recipe, options, stages and models; those of all its children for a composite.

    Args:
        admin: an administrator wants it.

    Raises:
        RequestError: something is unknown or invalid; `param` says what.
        PermissionDeniedError: the recipe is for administrators.
    """
    submission.check_window(context.settings, completion_window)
    recipe = context.recipes.recipe(recipe_name)
    if recipe.cells is not None and not admin:
        message = f"Recipe '{recipe_name}' starts and stops engines, so it needs an admin key, and has no schedule."
        raise PermissionDeniedError(message, param="recipe")
    options: Any = job_options.parse(recipe, values)
    if recipe.cells is not None:
        return recipe, options, [], _check_cells(context, recipe, options, completion_window)
    if recipe.children is not None:
        return recipe, options, [], _check_children(context, recipe.children(options), options, completion_window)
    stages = job_options.stages(recipe, options)
    return recipe, options, stages, job_options.models(context, context.recipes, recipe, options, stages)


def cells(recipe: Recipe[Any], options: Any, models: Mapping[str, Any]) -> list[Cell]:
    """Return the cells of a tune that are known before it begins. `models`: configurations. Raises RequestError."""
    bases = derived.bases(models, options.models)
    chosen: list[Cell] = job_options.called(recipe, "cells", lambda own: recipe.cells(own, bases), options)  # type: ignore[misc]
    return chosen


def _check_cells(
    context: AppContext, recipe: Recipe[Any], options: Tune, completion_window: str
) -> dict[str, ModelSpec]:
    """Check each cell of a tune as a job on its derived model. Return the models that it tunes. Raises RequestError."""
    for index, name in enumerate(options.models):
        job_options.check_model(context, name, f"options.models.{index}")
    models = {name: context.models[name] for name in options.models}
    configurations = {name: spec.model_dump(mode="json") for name, spec in models.items()}
    bases = {base.name: base for base in derived.bases(configurations, options.models)}
    for cell in cells(recipe, options, configurations):
        try:
            spec = derived.spec_of(cell, bases[cell.model])
        except ConfigurationError as error:
            message = f"Cell '{cell.name}': {error.message}"
            raise RequestError(message, code="invalid_value", param="options.set") from None
        own = tune.requests(options, spec.name)
        try:
            check(derived.knowing(context, spec), tune.RECIPE, own, completion_window=completion_window)
        except RequestError as error:
            place = (error.param or "").replace("options.", "options.options.", 1)
            raise RequestError(f"Cell '{cell.name}': {error.message}", code=error.code, param=place) from None
    return models


def _check_children(
    context: AppContext, children: Sequence[Child], options: Any, completion_window: str
) -> dict[str, ModelSpec]:
    """Check each variant of a composite as a job of its own. Return the models of all. Raises RequestError."""
    variants: dict[bytes, str] = {}
    models: dict[str, ModelSpec] = {}
    for own in {child.variant: child for child in children}.values():
        if context.recipes.is_composite(own.recipe):
            message = f"Recipe '{own.recipe}' starts jobs itself, so it cannot be that of a child."
            raise RequestError(message, code="invalid_value", param="options.recipe")
        try:
            _, parsed, _, specs = check(context, own.recipe, own.options, completion_window=completion_window)
        except RequestError as error:
            message, param = f"Variant '{own.variant}': {error.message}", options.place(own.variant, error.param or "")
            raise RequestError(message, code=error.code, param=param) from None
        if own.artifact is not None:
            rows.check_name(own.artifact, "options.round_input")
        other = variants.setdefault(identity.canonical(parsed.model_dump(mode="json")), own.variant)
        if other != own.variant:
            raise RequestError(
                f"Variants '{other}' and '{own.variant}' are one configuration; leave one of them out.",
                code="same_configuration",
                param=f"options.variants.{own.variant}",
            )
        models |= specs
    return models


def submit(context: AppContext, session: Session, draft: JobDraft, idempotency: tuple[str, str] | None = None) -> Job:
    """Create a job if the limits allow it; `idempotency` as in `store.jobs.lifecycle.repeated`.

    After the transaction the caller calls `send`.

    Raises:
        RateLimitError: the project has too many bytes in flight.
    """
    job, source, due_after = draft.job, draft.source, None
    if isinstance(source, NewInput):
        source = submission.name_input(session, job.project_id, source, purpose="user_data")
    if job.parent_id is None:  # else its parent was admitted, with the input that both have
        due_after = submission.admit(context, session, job.project_id, source.bytes if source else 0)
    if source is not None:
        job.input_file_id, job.input_name = source.id, source.filename
    return lifecycle.create(session, job, due_after=due_after, idempotency=idempotency)


def create(context: AppContext, project_id: str, request: JobRequest) -> Job:
    """Create a job and send it to a worker. Raises RequestError."""
    new = draft(context, project_id, request)
    with context.database.write() as session:
        job = submit(context, session, new)
    send(job)
    return job


def send(job: Job) -> None:
    """Send a new job to a worker, unless it waits for others."""
    if job.status == "validating":
        messages.validate_job(job.id)


def expected(context: AppContext, job: Job) -> dict[int, int | None]:
    """Return how many requests each stage of a job will have, by number, as far as its recipe says."""
    try:
        recipe = context.recipes.recipe(job.recipe)
        options = job_options.parse(recipe, job.options)
        each = job_options.expected(recipe, options, job_options.stages(recipe, options))
    except RequestError:  # of another version of the recipe
        return {}
    return {number: None if count is None else round(count * job.total) for number, count in enumerate(each)}


def job_warnings(context: AppContext, job: Job) -> list[tuple[str, str]]:
    """Return code and message of what makes a job slow; of one that has ended, what its recipe's report warns of."""
    if job.status in TERMINAL:
        return [(code, message) for code, message in (job.report or {}).get("warnings", [])]
    return warnings(context, job.models)


def warnings(context: AppContext, models: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return code and message of what makes a job of these models slow."""
    wanted = 2 * len(models)
    if len(models) < 2 or context.settings.max_segments >= wanted:
        return []
    return [
        (
            "few_segments",
            f"A job on {len(models)} models is fastest with BATCHYARD_MAX_SEGMENTS of {wanted} or more; it is "
            f"{context.settings.max_segments}.",
        )
    ]


def _source(context: AppContext, project_id: str, request: JobRequest) -> File | NewInput | None:
    """Return the input of a job, None for an artifact that what the job waits for will write. Raises RequestError."""
    source = request.input
    if not isinstance(source, str | File | ArtifactName | NewInput):
        return _inline(context, source)
    file: File | NewInput | None
    with context.database.read() as session:
        if isinstance(source, NewInput):
            file, name, param = source, source.name, "file"
        elif isinstance(source, File):
            file, name, param = source, source.filename, "input"
        elif isinstance(source, str):
            file = submission.input_file(session, project_id, source, purposes=PURPOSES)
            name, param = file.filename, "input_file_id"
        else:
            file = _artifact(session, project_id, source)
            name, param = file.filename if file else source.name, "input.artifact"
    rows.check_name(name, param)
    return file


def _artifact(session: Session, project_id: str, artifact: ArtifactName) -> File | None:
    """Return an artifact, None if its batch or job has not ended. Raises RequestError if it will never be there."""
    source = dependencies.find_artifact(session, project_id, artifact.owner_id, artifact.name)
    status = records.statuses(session, project_id, [artifact.owner_id]).get(artifact.owner_id)
    if source is None and (status is None or status in TERMINAL):
        raise RequestError(
            f"The project has no batch or job '{artifact.owner_id}' with an artifact '{artifact.name}'.",
            code="invalid_value",
            param="input.artifact",
        )
    return source


def _sha256(source: File | NewInput | None) -> str:
    if source is None:
        return ""
    return source.sha256 if isinstance(source, File) else source.content.sha256


def _inline(context: AppContext, items: Sequence[Mapping[str, Any]]) -> NewInput:
    with context.artifacts.create() as content:
        for item in items:
            content.write(orjson.dumps(item) + b"\n")
    return NewInput("items.jsonl", content)
