"""`top` shows what runs."""

from __future__ import annotations

import json
import re
from typing import Any

from tests.support.rows import until
from tests.support.stacks import RunningStack


def test_top_shows_the_queue_the_engines_and_what_runs(terminal: Any, stack: RunningStack) -> None:
    batch = stack.submit_endless()
    stack.wait(batch, until=lambda batch: batch.status == "in_progress")
    shown = terminal("top")
    seen = json.loads(terminal("top", "--json").stdout)
    listed = terminal("list", "--status", "in_progress")
    stack.client.batches.cancel(batch.id)
    assert shown.returncode == 0, shown.stderr
    assert "in progress" in shown.stdout
    assert batch.id in shown.stdout
    assert seen["queue"]["batches"]["in_progress"] >= 1
    assert batch.id in listed.stdout


def test_top_shows_live_requests_with_what_they_waited(terminal: Any, stack: RunningStack) -> None:
    def shows_what_one_waited() -> bool:
        """Send a request, since what it has waited is shown for a while only, and look."""
        stream = stack.client.chat.completions.create(
            model="other", messages=[{"role": "user", "content": "one two"}], stream=True
        )
        assert len(list(stream)) > 2
        return re.search(r"^ *other +default .*\d+/\d+ ms", terminal("top").stdout, re.MULTILINE) is not None

    until(shows_what_one_waited, 60)
