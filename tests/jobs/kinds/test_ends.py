"""The recorded ends of children and cells."""

from __future__ import annotations

import pytest

from jobs.kinds.nested import recorded
from tasks.context import AppContext
from tests.support.webapps import on_sqlite
from tests.support.written_jobs import Written


@pytest.fixture
def written(context: AppContext, project: str) -> Written:
    return Written(context, project)


@on_sqlite
def test_each_item_has_its_state_its_result_and_why_it_failed(written: Written) -> None:
    assert recorded(written.context, written.job.id) == {}
    written.end((0, "completed"), job_id="job_1", metrics={"accuracy": 0.5})
    written.end((1, "failed"), job_id=None, error={"code": "not_run", "message": "The round before failed."})
    ends = recorded(written.context, written.job.id)
    assert list(ends) == ["id-3", "id-0"]
    assert (ends["id-3"].state, ends["id-3"].result["job_id"], ends["id-3"].error) == ("completed", "job_1", None)
    assert ends["id-3"].result["metrics"] == {"accuracy": 0.5}
    assert (ends["id-0"].state, ends["id-0"].result["job_id"]) == ("failed", None)
    assert ends["id-0"].error == {"code": "not_run", "message": "The round before failed."}
