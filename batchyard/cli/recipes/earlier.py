"""The earlier job of a command that is run again: taken up, or the source of a new one's answers."""

from typing import Any

import click

from batchyard.cli import job_view
from batchyard.client import resume
from batchyard.client.api import ApiClient
from batchyard.errors import NotFoundError
from batchyard.statuses import TERMINAL
from batchyard.wording import count

_NOT_COUNTED = ("failed", "cancelling")


def find(server: ApiClient, recipe: str, mark: dict[str, str]) -> tuple[dict[str, Any] | None, str | None]:
    """Return the job that the same command has made before; or the id of the one whose answers a new job takes.

    It is not taken up if it was cancelled or has expired, or if requests of it have failed for a passing reason: a new
    job asks for what is missing. Jobs of jobs take completed ones by themselves. Standard error says what is done.
    """
    job = resume.Earlier(server.jobs(recipe=recipe), _NOT_COUNTED).find(mark, None)
    if job is None:
        return None, None
    name, asks = resume.name_of(job), bool(job["batchyard"]["stages"])
    missing = "items" if job["status"] in ("expired", "cancelled") else _missing(server, job, asks)
    if missing is None:
        click.echo(f"taking up {name}; {resume.AGAIN}", err=True)
        return job, None
    remedy = f"a new job takes what it has and tries the rest again; {resume.AGAIN}"
    click.echo(f"{name} lacks {missing}: {remedy}", err=True)
    return None, job["id"] if asks else None


def _missing(server: ApiClient, job: dict[str, Any], asks: bool) -> str | None:
    """Return what an ended job lacks and another one may have, in words; None if there is nothing."""
    counts, kind = job["request_counts"], job_view.kind_of(job)
    failed, unanswered = counts["failed"] + counts["stuck"], job["batchyard"]["counters"].get("unanswered", 0)
    if job["status"] not in TERMINAL or not (failed or unanswered) or (kind.may_fail_in_part and not asks):
        return None
    failing = [stage["batch_id"] for stage in job["batchyard"]["stages"] if stage["failed"]]
    if asks and not any(_has_passing_error(server, batch_id) for batch_id in failing):
        return None
    return count(unanswered, "answer") if unanswered else count(failed, kind.items.removesuffix("s"))


def _has_passing_error(server: ApiClient, batch_id: str) -> bool:
    """True if a request of a batch has failed that may be answered if it is asked again."""
    from batchyard import json_lines
    from batchyard.endpoints import output_lines

    lines = server.lines(server.batch(batch_id)["error_file_id"])
    try:
        return any(output_lines.is_passing(json_lines.loads(line)) for line in lines)
    except NotFoundError:  # nobody knows any more
        return False
