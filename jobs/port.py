"""What jobs implement of the port of batches, `tasks.port`."""

import importlib
from collections.abc import Callable, Mapping
from typing import IO, Any, cast

from sqlalchemy.orm import Session

from batchyard.errors import RequestError
from batchyard.models import ModelSpec
from batchyard.recipes import FlowRecipe
from batchyard.settings import Settings
from batchyard.wording import MAX_MESSAGE, cut
from jobs import finish, forecasts, messages, progress, validation
from jobs.catalogue import catalogue_of
from jobs.intake import rows
from jobs.intake.drafts import JobDraft, check_named_jobs
from jobs.kinds import registry as kinds
from jobs.submission import creation, dependencies
from jobs.submission.creation import JobRequest
from recipes import registry
from store.jobs import composites
from store.jobs.lifecycle import JOBS
from store.records import File, Job, Schedule
from tasks.context import AppContext
from tasks.intake.submission import NewInput
from tasks.port import BatchPort, CheckedJob
from tasks.recovery import Recovered

IDLE_SECONDS = 5.0
"""A job that was woken is woken again if nobody has advanced it by then: its message may be lost."""
CHUNK_SECONDS = 0.25
"""After a chunk its job waits so long for chunks of other segments, which come at the same time. It does not wait after
the last one of a segment: the job's end may depend on it."""


class JobsPort(BatchPort):
    finish = staticmethod(finish.run)
    batch_ended = staticmethod(messages.finish_ready)
    backlog = staticmethod(forecasts.backlog)
    forecasts = staticmethod(forecasts.update)
    totals = staticmethod(progress.totals)
    check_file = staticmethod(rows.check_name)
    send = staticmethod(creation.send)

    def prepare(self, settings: Settings) -> None:
        registry.catalogue(settings)

    def register_tasks(self) -> None:
        importlib.import_module("jobs.app")  # its decorators add them

    def chunk_appended(self, context: AppContext, job_id: str, *, last: bool) -> None:
        messages.wake(context.redis, job_id, 0.0 if last else CHUNK_SECONDS)

    def validate(self, context: AppContext, job_id: str, holder: str) -> bool:
        if not validation.run(context, job_id, holder):
            return False
        messages.wake(context.redis, job_id)
        return True

    def recover(self, session: Session) -> Callable[[AppContext], None]:
        recovered = Recovered.of(session, JOBS)
        wanted = {*recovered.expired, *JOBS.claim_advanceable(session, IDLE_SECONDS)}

        def start(context: AppContext) -> None:
            recovered.announce(context, "job", messages.validate, progress.publish)
            for job_id in wanted:
                messages.advance(job_id)  # whatever message is said to be on its way
            dependencies.release_ready(context)
            messages.finish_ready(context)

        return start

    def returns(self, context: AppContext, session: Session, job_id: str) -> bool:
        job = session.get(Job, job_id)
        recipe = None if job is None else catalogue_of(context).recipes.get(job.recipe)
        return isinstance(recipe, FlowRecipe) and recipe.loops

    def extra_models(self, session: Session) -> Mapping[str, ModelSpec]:
        specs = composites.derived_models(session)
        return {name: ModelSpec.model_validate(spec) for name, spec in specs.items()}

    def check_template(self, context: AppContext, project_id: str, job: Mapping[str, Any]) -> None:
        configuration = kinds.check(context, job["recipe"], job["options"], job["completion_window"])
        check_named_jobs(context, project_id, configuration)

    def check_rows(self, content: IO[bytes]) -> None:
        count = 0
        for row in rows.rows(content, "template.jsonl"):
            count += 1
            if isinstance(row, rows.RowError):
                message = f"Row {count} of the template: {cut(row.message, MAX_MESSAGE)}"
                raise RequestError(message, code="invalid_value", param="input.template")
        if not count:
            raise RequestError("The template has no rows.", code="empty_file", param="input.template")

    def draft(
        self, context: AppContext, schedule: Schedule, source: File | NewInput, values: Mapping[str, Any]
    ) -> CheckedJob:
        options = schedule.job or {}
        template = {name: options[name] for name in ("recipe", "options", "seed", "post_process")}
        return creation.draft(context, schedule.project_id, JobRequest(input=source, **template, **values))

    def submit(self, context: AppContext, session: Session, checked: CheckedJob) -> Job:
        return creation.submit(context, session, cast(JobDraft, checked))


PORT = JobsPort()
