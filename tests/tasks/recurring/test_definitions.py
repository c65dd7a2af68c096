"""What a client may set of a schedule: checked as a batch or a job would be, and pinned by its hash."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from batchyard.errors import RequestError
from batchyard.models import ModelSpec
from store import keys, schedules
from store.keys import Principal
from store.records import Schedule, now
from tasks.context import AppContext
from tasks.recurring import definitions
from tests.support.webapps import on_sqlite

pytestmark = on_sqlite


@pytest.fixture
def owner(context: AppContext, project: str) -> Principal:
    with context.database.write() as session:
        return keys.terminal(session, project="default")


def refusal(context: AppContext, project: str, old: Schedule, **fields: Any) -> tuple[str | None, str | None]:
    with pytest.raises(RequestError) as caught:
        definitions.define(context, project, fields, old)
    return caught.value.code, caught.value.param


def test_a_change_of_its_times_moves_its_next_run_and_nothing_else(
    context: AppContext, project: str, new_schedule: Callable[..., Schedule]
) -> None:
    old, at = new_schedule(), now()
    values = definitions.define(context, project, {"cron": "0 3 * * *"}, old)
    assert values.keys() == {"cron", "next_run_at"} and values["next_run_at"] > at
    assert definitions.define(context, project, {"name": "weekly"}, old) == {"name": "weekly"}


def test_a_paused_schedule_has_no_next_run(
    context: AppContext, project: str, new_schedule: Callable[..., Schedule]
) -> None:
    values = definitions.define(context, project, {"cron": "0 3 * * *"}, new_schedule(paused=True))
    assert values["next_run_at"] is None


def test_a_schedule_of_batches_does_not_become_one_of_jobs(
    context: AppContext, project: str, new_schedule: Callable[..., Schedule]
) -> None:
    assert refusal(context, project, new_schedule(), job={"recipe": "batch"}) == ("invalid_value", "job")


def test_a_change_that_makes_its_runs_invalid_is_refused_at_once(
    context: AppContext, project: str, new_schedule: Callable[..., Schedule]
) -> None:
    old = new_schedule()
    assert refusal(context, project, old, cron="never")[1] == "cron"
    not_served = refusal(context, project, old, batch={**old.batch, "endpoint": "/v1/embeddings"})
    assert not_served == ("invalid_value", "endpoint")
    _, param = refusal(context, project, old, batch={**old.batch, "endpoint": "/v1/completions"})
    assert param is not None and param.startswith("input"), "the template is of another endpoint"


def test_pausing_twice_changes_nothing_and_resuming_waits_for_the_next_time(
    context: AppContext, owner: Principal, new_schedule: Callable[..., Schedule]
) -> None:
    old = new_schedule()
    paused = definitions.set_paused(context, owner, old.id, paused=True)
    assert (paused.paused, paused.next_run_at) == (True, None)
    again = definitions.set_paused(context, owner, old.id, paused=True)
    assert again.version == paused.version
    at = now()
    resumed = definitions.set_paused(context, owner, old.id, paused=False)
    assert resumed.next_run_at is not None and resumed.next_run_at > at and resumed.version > paused.version
    with context.database.read() as session:
        assert not schedules.get(session, owner.project_id, old.id).paused


def test_what_no_run_could_make_is_refused_before_there_is_a_schedule(
    context: AppContext, project: str, new_schedule: Callable[..., Schedule]
) -> None:
    context.models["vectors"] = ModelSpec(name="vectors", engine="echo", endpoints=("/v1/embeddings",))
    old = new_schedule()
    guarded = {**old.batch, "endpoint": "/v1/embeddings", "guard": "repetition"}
    assert refusal(context, project, old, batch=guarded)[1] == "guard"
    exported = {**old.batch, "post_process": [{"step": "export", "url": "s3://elsewhere/out/"}]}
    assert refusal(context, project, old, batch=exported)[1] == "post_process"
