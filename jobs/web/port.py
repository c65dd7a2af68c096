"""What jobs implement of the port of the web app, `webapp.port`."""

from collections.abc import Mapping, Sequence
from typing import Any

from flask import url_for

from batchyard.recipes import Recipe
from jobs.catalogue import catalogue_of
from jobs.submission import creation
from jobs.web import jobs, recipes
from jobs.web.pages import items, job, start
from store.records import Job
from tasks.intake.submission import NewInput
from webapp.port import WebPort
from webapp.requests import caller, current_context
from webapp.wire.jobs import JobObject, JobOptions
from webapp.wire.start import Start, Started


class WebJobs(WebPort):
    routes = (recipes.routes, jobs.routes)
    pages = (job.routes, items.routes, start.routes)

    def recipes(self) -> Sequence[Recipe[Any]]:
        return list(catalogue_of(current_context()).recipes.values())

    def to_wire(self, records: Sequence[Job]) -> list[JobObject]:
        return jobs.to_wire(records)

    def start(self, options: Start, source: NewInput | Sequence[Mapping[str, Any]]) -> Started:
        names = ("options", "completion_window", "metadata", "post_process", "callback_url")
        body = JobOptions(recipe=options.recipe or "", **{name: getattr(options, name) for name in names})
        request = jobs.request_of(body, source)
        context, project_id = current_context(), caller().project_id
        record = jobs.create_once(None, lambda: creation.draft(context, project_id, request)).record
        status_url = url_for("jobs.retrieve", job_id=record.id, _external=True)
        return Started(job_id=record.id, batch_id=None, file_id=record.input_file_id, status_url=status_url)

    def retry(self, job_id: str) -> None:
        job.retry_once(job_id)


PORT = WebJobs()
