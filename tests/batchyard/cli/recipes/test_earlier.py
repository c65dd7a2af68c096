"""The same command again takes up its job, or makes a new one of what that lacks."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, cast

import pytest

from batchyard.cli.recipes import earlier
from batchyard.client import resume
from batchyard.client.api import ApiClient
from batchyard.endpoints import output_lines
from batchyard.errors import NotFoundError

MARK = resume.fingerprint("rollout", "1" * 64)
BUSY = output_lines.line("a", 503, b'{"error": {"code": "busy", "message": "Come again."}}', None)
WRONG = output_lines.line("b", 400, b'{"error": {"code": "wrong", "message": "No such thing."}}', None)


def job(status: str = "completed", recipe: str = "rollout", **changes: Any) -> dict[str, Any]:
    counts = {name: changes.pop(name, 0) for name in ("failed", "stuck")}
    stages = changes.pop("stages", [{"batch_id": "batch_1", "failed": 2}])
    ours = {"retry_of": None, "stages": stages, "counters": changes.pop("counters", {})}
    return {
        **{"id": "job_1", "object": "job", "recipe": recipe, "status": status, "metadata": MARK},
        **{"request_counts": counts, "batchyard": ours},
    }


class Server:
    """A server with these jobs, whose stages have these lines in their error files."""

    def __init__(self, *jobs: dict[str, Any], errors: list[str] | None = None) -> None:
        self._jobs = jobs
        self._errors = errors

    def jobs(self, **_: Any) -> Iterator[dict[str, Any]]:
        yield from self._jobs

    def batch(self, batch_id: str) -> dict[str, Any]:
        return {"id": batch_id, "error_file_id": "file_1"}

    def lines(self, file_id: str) -> Iterator[bytes]:
        if self._errors is None:
            raise NotFoundError(f"No file {file_id}.")
        yield from map(str.encode, self._errors)


def found(*jobs: dict[str, Any], errors: list[str] | None = None) -> tuple[str | None, str | None]:
    """Return the ids of the job that is taken up, and of the one whose answers are taken."""
    document, answers_from = earlier.find(cast(ApiClient, Server(*jobs, errors=errors)), "rollout", MARK)
    return document and document["id"], answers_from


@pytest.mark.parametrize(
    ("document", "errors"),
    [
        (job("in_progress", failed=1), [BUSY]),
        (job(), [BUSY]),
        (job(failed=1), [WRONG]),
        (job(failed=1, stages=[{"batch_id": "batch_1", "failed": 0}]), [BUSY]),
        (job(failed=1), None),
        (job(recipe="tune", failed=1, stages=[]), None),
        (job(recipe="experiment", stages=[]), None),
    ],
    ids=["runs", "lacks nothing", "was refused", "asked nothing", "errors gone", "cells that cannot start", "of jobs"],
)
def test_a_job_that_another_could_not_better_is_taken_up(
    document: dict[str, Any], errors: list[str] | None, capsys: pytest.CaptureFixture[str]
) -> None:
    assert found(document, errors=errors) == ("job_1", None)
    assert f"taking up job job_1 ({document['status']}); --again" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("document", "lacks", "answers_from"),
    [
        (job(counters={"unanswered": 3}), "3 answers", "job_1"),
        (job(failed=1, stuck=1), "2 items", "job_1"),
        (job("expired"), "items", "job_1"),
        (job("cancelled"), "items", "job_1"),
        (job(recipe="experiment", failed=1, stages=[]), "1 job", None),
    ],
)
def test_what_an_ended_job_lacks_is_tried_again_by_a_new_one(
    document: dict[str, Any], lacks: str, answers_from: str | None, capsys: pytest.CaptureFixture[str]
) -> None:
    assert found(document, errors=[WRONG, BUSY]) == (None, answers_from)
    status = document["status"]
    words = f"job job_1 ({status}) lacks {lacks}: a new job takes what it has and tries the rest again; --again"
    assert words in capsys.readouterr().err


@pytest.mark.parametrize("jobs", [[], [job("failed")], [job("cancelling")], [job() | {"metadata": None}]])
def test_where_there_is_no_such_job_nothing_is_said(
    jobs: list[dict[str, Any]], capsys: pytest.CaptureFixture[str]
) -> None:
    assert found(*jobs) == (None, None)
    assert capsys.readouterr().err == ""
