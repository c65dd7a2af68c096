"""New jobs, and jobs over the items of an ended one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from batchyard.errors import ConflictError, NotFoundError, RequestError
from jobs import validation
from jobs.submission import again, creation
from jobs.submission.creation import ArtifactName, JobRequest
from store.jobs import lifecycle
from store.records import File
from tasks.context import AppContext
from tests.support.jobs import submit_job
from tests.support.messages import SentMessages

ROWS = b'{"prompt": "a"}\n{"prompt": "b"}\n{"prompt": "c"}\n'


@pytest.fixture
def file(upload: Callable[[bytes], File]) -> File:
    return upload(ROWS)


def request(source: Any, **values: Any) -> JobRequest:
    return JobRequest(recipe="batch", input=source, options={"model": "echo"} | values.pop("options", {}), **values)


def test_a_job_has_its_configuration_and_is_sent_once(
    context: AppContext, project: str, file: File, sent: SentMessages
) -> None:
    job = submit_job(context, project, request(file, seed=7))
    assert (job.status, job.seed, job.input_file_id, list(job.models)) == ("validating", 7, file.id, ["echo"])
    assert sent.ids("validate_job") == [job.id]
    same = submit_job(context, project, request(file.id, seed=7))
    other = submit_job(context, project, request(file.id, seed=8))
    assert same.config_sha256 == job.config_sha256 != other.config_sha256


@pytest.mark.parametrize(
    ("source", "param"),
    [("file_none", "input_file_id"), (ArtifactName("job_none", "best.jsonl"), "input.artifact")],
)
def test_an_input_that_will_never_be_there_is_refused(
    context: AppContext, project: str, source: Any, param: str
) -> None:
    with pytest.raises((NotFoundError, RequestError)) as refused:
        creation.draft(context, project, request(source))
    assert refused.value.param == param


def test_answers_come_from_an_ended_job_of_the_same_work(
    context: AppContext, project: str, file: File, sent: SentMessages
) -> None:
    job = submit_job(context, project, request(file))
    with pytest.raises(RequestError, match="has not ended") as refused:
        creation.draft(context, project, request(file, answers_from=job.id))
    assert refused.value.param == "answers_from"
    with context.database.write() as session:
        lifecycle.transition(session, job.id, "validating", "failed")
    assert creation.draft(context, project, request(file, answers_from=job.id)).job.answers_from == job.id
    with pytest.raises(RequestError, match="has another seed"):
        creation.draft(context, project, request(file, answers_from=job.id, seed=1))


def test_a_job_that_has_not_ended_is_neither_retried_nor_judged_anew(
    context: AppContext, project: str, file: File, sent: SentMessages
) -> None:
    job = submit_job(context, project, request(file))
    assert validation.run(context, job.id, "here/1/task")
    with pytest.raises(ConflictError, match="is in_progress; wait for its end"):
        again.retry(context, project, job.id)
    with pytest.raises(ConflictError, match="has not ended, so its answers cannot be judged anew"):
        again.rescore(context, project, job.id, {})


def test_a_retry_takes_the_items_that_did_not_complete_and_chooses_no_rows(
    context: AppContext, project: str, file: File, sent: SentMessages
) -> None:
    job = submit_job(context, project, request(file))
    assert validation.run(context, job.id, "here/1/task")
    with context.database.write() as session:
        assert lifecycle.transition(session, job.id, "in_progress", "finalizing", outcome="expired")
        assert lifecycle.transition(session, job.id, "finalizing", "expired")
    with pytest.raises(RequestError, match="chooses among the rows") as refused:
        again.retry(context, project, job.id, values={"limit": 1})
    assert refused.value.param == "options.limit"
    with pytest.raises(RequestError, match="nothing to retry"):
        again.retry(context, project, job.id, states=["failed"])
    retried = again.retry(context, project, job.id, states=["expired"]).job
    assert (retried.retry_of, retried.answers_from, retried.input_sha256) == (job.id, None, file.sha256)
    assert retried.items_sha256 is not None
