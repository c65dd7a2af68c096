"""Fixtures of this folder: schedules."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from store import schedules
from store.records import Schedule
from tasks.context import AppContext
from tasks.recurring import definitions
from tests.support.stacks import a_chat

INPUT = {"file_id": None, "artifact": None, "template": None, "url": None}
BATCH = {
    "endpoint": "/v1/chat/completions",
    "completion_window": "24h",
    "metadata": None,
    "output_expires_after": None,
    "on_invalid": "fail",
    "priority": "normal",
    "post_process": [],
}


@pytest.fixture
def new_schedule(context: AppContext, project: str, validate_messages: list[str]) -> Callable[..., Schedule]:
    """Makes a schedule with these fields of a request, due at `due`. Its batches are in `validate_messages`."""

    def make(*, due: int | None = None, **options: Any) -> Schedule:
        fields = {
            "name": "nightly",
            "cron": "* * * * *",
            "timezone": "Europe/Berlin",
            "overlap": "allow",
            "catch_up": "latest",
            "paused": False,
            **options,
            "input": INPUT | options.get("input", {"template": json.dumps(a_chat("{{date}}", "hello"))}),
            "batch": BATCH | options.get("batch", {}),
        }
        values = definitions.define(context, project, fields)
        with context.database.write() as session:
            return schedules.create(session, project, **values | {"next_run_at": due})

    return make
