"""The input of a schedule's runs is there when they need it: pinned content, and templates that are filled."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sqlalchemy import update

from batchyard import cron
from batchyard.errors import RequestError
from store import batches, files, schedules
from store.records import Batch, File, Schedule
from tasks.context import AppContext
from tasks.finishing import garbage
from tasks.recurring import run_templates
from tasks.recurring.schedules import run_now
from tests.support.stacks import a_chat

NewSchedule = Callable[..., Schedule]
Upload = Callable[[bytes], File]


def test_a_deleted_file_is_still_run_and_its_content_kept_as_long_as_a_schedule_names_it(
    context: AppContext, new_schedule: NewSchedule, upload: Upload
) -> None:
    file = upload(b"input")
    schedule = new_schedule(input={"file_id": file.id})
    with context.database.write() as session:
        files.delete(session, file.project_id, file.id)
        session.execute(update(File).values(expires_at=0))
    path, shard = Path(context.artifacts.path(file.sha256)), file.sha256[:2]
    os.utime(path, (0, 0))
    garbage.shard(context, shard)
    assert path.exists()
    run = run_now(context, schedule.project_id, schedule.id)
    with context.database.write() as session:
        assert session.get_one(Batch, run.batch_id).input_sha256 == file.sha256
        batches.reject(session, run.batch_id or "", [])
    garbage.shard(context, shard)
    assert path.exists()
    with context.database.write() as session:
        schedules.delete(session, schedule.project_id, schedule.id)
    garbage.shard(context, shard)
    assert not path.exists()


def test_what_an_ended_batch_has_produced_can_be_an_input(
    context: AppContext, new_schedule: NewSchedule, new_batch: Callable[..., Batch], upload: Upload
) -> None:
    batch, output = new_batch(), upload(b"output")
    with context.database.write() as session:
        batches.add_artifact(session, batch, "next.jsonl", output.sha256, output.bytes, 1)
    named = {"artifact": {"batch_id": batch.id, "name": "next.jsonl"}}
    with pytest.raises(RequestError, match="ended batch"):
        new_schedule(input=named)
    with context.database.write() as session:
        batches.reject(session, batch.id, [])
    schedule = new_schedule(input=named)
    assert (schedule.input["kind"], schedule.input_sha256) == ("artifact", output.sha256)
    assert run_now(context, schedule.project_id, schedule.id).state == "created"


@pytest.mark.parametrize(
    ("template", "code"),
    [
        ("\n", "empty_file"),
        ("{{date}}\n", "invalid_json_line"),
        (json.dumps(a_chat("a", "b", model="nope")), "model_not_found"),
        (json.dumps({**a_chat("a", "b"), "url": "/v1/embeddings"}), "invalid_url"),
    ],
)
def test_a_template_that_no_batch_would_be_made_of_is_refused(
    new_schedule: NewSchedule, template: str, code: str
) -> None:
    with pytest.raises(RequestError) as refused:
        new_schedule(input={"template": template})
    assert (refused.value.code, refused.value.param) == (code, "input.template")


@given(text=st.text(max_size=60), at=st.integers(0, 4 * 10**9))
def test_filling_replaces_the_three_places_and_nothing_else(text: str, at: int) -> None:
    times = cron.parse("* * * * *", "Asia/Kathmandu")
    local = times.local(at)
    around = text.replace("{", "(")
    filled = run_templates.fill(f"{around}{{{{date}}}} {{{{ datetime }}}} {{{{scheduled_at}}}}{around}", times, at)
    assert filled == f"{around}{local.date()} {local.isoformat()} {at}{around}"
