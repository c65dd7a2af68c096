"""Creation: checks of a new job, its record, and its outlook before it is made."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from sqlalchemy.orm import Session

from batchyard import json_lines
from batchyard.errors import NotFoundError, RequestError
from batchyard.models import ModelSpec
from batchyard.statuses import TERMINAL
from jobs import messages
from jobs.catalogue import catalogue_of
from jobs.intake import identity, rows
from jobs.intake.drafts import JobDraft, check_named_jobs, configured
from jobs.kinds.kind import JobEstimate
from jobs.kinds.registry import check, kind_of
from jobs.submission import dependencies
from store import webhooks
from store.jobs import dependencies as records
from store.jobs import lifecycle, reading
from store.records import File, Job
from tasks.context import AppContext
from tasks.intake import submission, validation
from tasks.intake.submission import NewInput


@dataclass(frozen=True)
class ArtifactName:
    owner_id: str
    name: str


_COLUMNS = (
    *("name", "seed", "completion_window", "output_expires_after", "callback_url"),
    *("answers_from", "sample_rows", "stop_when"),
)
"""What a job's record has as its request says it."""
JobSource: TypeAlias = str | File | ArtifactName | NewInput | Sequence[Mapping[str, Any]]
"""A file or its id, an artifact, stored content, or rows."""


@dataclass(frozen=True)
class JobRequest:
    """A job that a client wants. `depends_on` has `id` and `when` of jobs and batches."""

    recipe: str
    input: JobSource
    completion_window: str = "24h"
    options: Mapping[str, Any] = field(default_factory=dict)
    seed: int = 0
    name: str | None = None
    metadata: dict[str, str] | None = None
    output_expires_after: int | None = None
    callback_url: str | None = None
    answers_from: str | None = None
    depends_on: Sequence[Mapping[str, Any]] = ()
    post_process: Sequence[dict[str, Any]] = ()
    sample_rows: int | None = None
    stop_when: dict[str, float] | None = None
    admin: bool = False


@dataclass(frozen=True)
class JobOutlook:
    """What a job would be. `same_as` is the id of the project's newest job with this `config_sha256`."""

    estimate: JobEstimate
    config_sha256: str
    work_sha256: str
    same_as: str | None
    due_at: int
    warnings: Sequence[tuple[str, str]]


def dry_run(context: AppContext, project_id: str, request: JobRequest) -> JobOutlook:
    """Check a job as `draft` does, and return what it would be. Nothing is created. Raises RequestError."""
    new = draft(context, project_id, request)
    job = new.job
    recipe = catalogue_of(context).recipe(job.recipe)
    with context.database.read() as session:
        same = reading.same(session, project_id, job.config_sha256)
    estimate = kind_of(recipe).estimate(context, recipe, new)
    due_at, slow = submission.due_if_created_now(context, job), warnings(context, job.models)
    return JobOutlook(estimate, job.config_sha256, job.work_sha256, same, due_at, [*slow, *estimate.warnings])


def draft(context: AppContext, project_id: str, request: JobRequest) -> JobDraft:
    """Check and prepare a job before its transaction. Raises RequestError, with `param`; PermissionDeniedError."""
    configuration = check(context, request.recipe, request.options, request.completion_window, admin=request.admin)
    check_named_jobs(context, project_id, configuration)
    options = {"post_process": request.post_process, "callback_url": request.callback_url}
    submission.check_options(context.settings, project_id, options)
    with context.database.read() as session:
        dependencies.check(session, project_id, request.depends_on)
    depends_on = [dict(entry) for entry in request.depends_on]
    source = _source(context, project_id, request)
    if source is None and isinstance(request.input, ArtifactName):
        depends_on.append({"id": request.input.owner_id, "when": "afterok", "artifact": request.input.name})
    sha256 = "" if source is None else source.sha256 if isinstance(source, File) else source.content.sha256
    job = Job(
        project_id=project_id,
        input_sha256=sha256,
        request_metadata=request.metadata,
        post_process=list(request.post_process),
        depends_on=depends_on,
        **{name: getattr(request, name) for name in _COLUMNS},
    )
    of_rows = {"plan": request.sample_rows, "stop_when": request.stop_when, "answers_from": request.answers_from}
    for name, value in of_rows.items():
        if value is not None and not kind_of(configuration.recipe).has_journal:
            message = f"A job of recipe {request.recipe!r} has no rows of its own, so it takes no {name}; leave it out."
            raise RequestError(message, code="invalid_value", param=name)
    draft = configured(context, job, source, configuration)
    if request.answers_from is not None:
        _check_source(context, job, request.answers_from)
    return draft


def _check_source(context: AppContext, job: Job, job_id: str) -> None:
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
        message = (
            f"Job '{job_id}' {reason}; answers are taken from an ended job of the same recipe, input, seed and models."
        )
        raise RequestError(message, code="invalid_value", param="answers_from")


def submit(context: AppContext, session: Session, draft: JobDraft, idempotency: tuple[str, str] | None = None) -> Job:
    """Create a job that the caller sends after the transaction. Raises RateLimitError for too many bytes."""
    job, source, due_after = draft.job, draft.source, None
    if isinstance(source, NewInput):
        source = submission.name_input(session, job.project_id, source, purpose="user_data")
    if job.parent_id is None:  # else its parent was admitted, with the input that both have
        due_after = submission.admit(context, session, job.project_id, source.bytes if source else 0)
    if job.callback_url is not None:
        webhooks.callbacks(session, job.project_id)
    if source is not None:
        job.input_file_id, job.input_name = source.id, source.filename
    return lifecycle.create(session, job, due_after=due_after, idempotency=idempotency)


def send(job: Job) -> None:
    if job.status == "validating":
        messages.validate(job.id, job.name or job.recipe)


def job_warnings(context: AppContext, job: Job) -> list[tuple[str, str]]:
    """Return code and message of what slows a job, or of its report once it has ended."""
    if job.status in TERMINAL:
        return [(code, message) for code, message in (job.report or {}).get("warnings", [])]
    specs = {name: ModelSpec.model_validate(config) for name, config in job.models.items()}
    unpriced = [(entry["code"], entry["message"]) for entry in validation.without_price(job.stop_when, specs)]
    return [*unpriced, *warnings(context, job.models)]


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
    source = request.input
    if not isinstance(source, str | File | ArtifactName | NewInput):
        with context.artifacts.create() as content:
            for item in source:
                content.write(json_lines.line(item))
        return NewInput("items.jsonl", content)
    file: File | NewInput | None
    with context.database.read() as session:
        if isinstance(source, NewInput):
            file, name, param = source, source.name, "file"
        elif isinstance(source, File):
            file, name, param = source, source.filename, "input"
        elif isinstance(source, str):
            file = submission.input_file(session, project_id, source, purposes=submission.JOB_PURPOSES)
            name, param = file.filename, "input_file_id"
        else:
            file = records.find_artifact(session, project_id, source.owner_id, source.name)
            status = records.statuses(session, project_id, [source.owner_id]).get(source.owner_id)
            if file is None and (status is None or status in TERMINAL):  # it will never be there
                message = f"The project has no batch or job '{source.owner_id}' with an artifact '{source.name}'."
                raise RequestError(message, code="invalid_value", param="input.artifact")
            name, param = file.filename if file else source.name, "input.artifact"
    rows.check_name(name, param)
    return file
