"""Jobs that other jobs start: what they have of their parent, and which cannot be."""

from __future__ import annotations

from typing import Any

import pytest

from batchyard.errors import RequestError
from batchyard.recipes import Child
from jobs.kinds import nested
from jobs.kinds.nested import ChildInput
from store.records import Job
from tasks.context import AppContext
from tests.support.webapps import on_sqlite

pytestmark = on_sqlite
SOURCE = ChildInput("file-1", "1" * 64, "rows.jsonl")


def parent(**values: Any) -> Job:
    fields = {"completion_window": "24h", "output_expires_after": 3600, "expires_at": 900, "due_at": 800}
    return Job(id="job_1", project_id="proj_1", seed=7, **{**fields, **values})


def child(context: AppContext, **values: Any) -> Child:
    options = {"model": next(iter(context.models))}
    fields = {"variant": "small", "repeat": 2, "round": 0, "recipe": "batch", "options": options}
    return Child(**{**fields, **values})


def test_a_child_has_its_own_seed_and_key_and_ends_with_its_parent(context: AppContext) -> None:
    draft = nested.draft(context, parent(), child(context), SOURCE)
    job = draft.job
    assert (job.parent_id, job.child_key, job.variant, job.name) == ("job_1", "small/2/0", "small", "small/2/0")
    assert (job.seed, job.expires_at, job.due_at, job.output_expires_after) == (9, 900, 800, 3600)
    assert (job.input_file_id, job.input_sha256, job.input_name) == SOURCE
    assert draft.source is None, "the parent's input is the child's"


@pytest.mark.parametrize(
    ("changes", "code", "message"),
    [
        ({"recipe": "experiment"}, "invalid_value", "Recipe 'experiment' starts jobs itself"),
        ({"recipe": "nothing"}, None, "nothing"),
        ({"options": {"model": "gone"}}, "model_not_found", "The model 'gone' is not served here"),
        ({"options": {}}, "missing_required_parameter", "options.model"),
    ],
)
def test_a_child_that_cannot_be_is_refused(
    context: AppContext, changes: dict[str, Any], code: str | None, message: str
) -> None:
    with pytest.raises(RequestError) as refused:
        nested.draft(context, parent(), child(context, **changes), SOURCE)
    assert message in refused.value.message
    assert code is None or refused.value.code == code
