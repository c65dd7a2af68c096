"""Dependencies: a waiting job starts once other jobs and batches have ended as it wants."""

import logging
from collections.abc import Mapping, Sequence
from typing import Any

from sqlalchemy.orm import Session

from batchyard.errors import RequestError
from batchyard.statuses import TERMINAL
from jobs import messages
from jobs.catalogue import catalogue_of
from jobs.intake import identity
from store.jobs import dependencies
from store.records import Job
from tasks.context import AppContext

log = logging.getLogger(__name__)


def holds(when: str, status: str | None) -> bool | None:
    """Return whether a dependency has come true, None while open. `status`: None if it was deleted."""
    if status is not None and status not in TERMINAL:
        return None
    if when == "afterany":
        return True
    return status is not None and (status == "completed") == (when == "afterok")


def check(session: Session, project_id: str, wanted: Sequence[Mapping[str, Any]]) -> None:
    known = dependencies.statuses(session, project_id, [entry["id"] for entry in wanted])
    for index, entry in enumerate(wanted):
        if entry["id"] not in known:
            raise RequestError(
                f"No job or batch found with id '{entry['id']}'.", code="invalid_value", param=f"depends_on.{index}.id"
            )


def release_ready(context: AppContext) -> None:
    """Start waiting jobs whose dependencies came true; cancel those for which they cannot."""
    with context.database.read() as session:
        waiting = dependencies.waiting(session)
    for job in waiting:
        try:
            with context.database.read() as session:
                ids = [entry["id"] for entry in job.depends_on]
                known = dependencies.statuses(session, job.project_id, ids)
            outcomes = {entry["id"]: holds(entry["when"], known.get(entry["id"])) for entry in job.depends_on}
            failed = next((entry for entry in job.depends_on if outcomes[entry["id"]] is False), None)
            if failed is not None:
                status = known.get(failed["id"])
                _fail(context, job, f"'{failed['id']}' has ended as '{status}', and the job wants {failed['when']} it.")
            elif None not in outcomes.values():
                _begin(context, job)
        except RequestError as error:  # its recipe is served no more: it waits until its window ends
            log.warning("waiting job not released: %s", error, extra={"job_id": job.id})


def _fail(context: AppContext, job: Job, message: str) -> None:
    with context.database.write() as session:
        dependencies.fail(session, job, message)


def _begin(context: AppContext, job: Job) -> None:
    values: dict[str, Any] = {}
    source = next((entry for entry in job.depends_on if entry.get("artifact")), None)
    if source is not None:
        with context.database.read() as session:
            file = dependencies.find_artifact(session, job.project_id, source["id"], source["artifact"])
        if file is None:
            _fail(context, job, f"'{source['id']}' has ended without an artifact '{source['artifact']}'.")
            return
        values = {"input_file_id": file.id, "input_sha256": file.sha256, "input_name": file.filename}
        configuration = identity.configuration(job) | {"input_sha256": file.sha256}
        values |= identity.hashes(catalogue_of(context).recipe(job.recipe).options, configuration)
    with context.database.write() as session:
        released = dependencies.release(session, job, **values)
    if released:
        messages.validate(job.id, job.name or job.recipe)
