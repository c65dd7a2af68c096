"""The outlook of a job that is not made."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from jobs.submission import creation
from store.records import File, Job
from tasks.context import AppContext
from tests.jobs.submission.test_creation import ROWS, request
from tests.support.jobs import submit_job
from tests.support.messages import SentMessages


@pytest.fixture
def file(upload: Callable[[bytes], File]) -> File:
    return upload(ROWS)


def test_a_dry_run_counts_rows_and_requests_and_creates_nothing(context: AppContext, project: str, file: File) -> None:
    outlook = creation.dry_run(context, project, request(file, options={"limit": 2}))
    (stage,) = outlook.estimate.stages
    assert (outlook.estimate.items, stage.expected, outlook.same_as) == (2, 2, None)
    assert outlook.estimate.seconds is None
    assert [code for code, _ in outlook.warnings] == ["not_measured"]
    with context.database.read() as session:
        assert session.query(Job).count() == 0


def test_a_dry_run_names_the_newest_job_of_the_same_configuration(
    context: AppContext, project: str, file: File, sent: SentMessages
) -> None:
    job = submit_job(context, project, request(file))
    assert creation.dry_run(context, project, request(file)).same_as == job.id
