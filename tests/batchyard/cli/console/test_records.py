"""Events, segments and pages of a batch, as the terminal lists and opens them."""

from __future__ import annotations

import json
from typing import Any

from tests.support.stacks import RunningStack, a_chat


def test_the_records_of_a_batch_are_told_listed_and_opened(terminal: Any, stack: RunningStack) -> None:
    lines = [a_chat("a", "hello"), a_chat("b", "hello", model="failing"), a_chat("c", "hello", model="failing")]
    batch = stack.wait(stack.submit([*lines, a_chat("d", "x", model="failing")]))
    assert batch.request_counts.failed
    told = terminal("logs", batch.id)
    assert told.returncode == 0, told.stderr
    for word in ("created", "in_progress", "completed", "batch.completed", "failing", "done"):
        assert word in told.stdout
    document = json.loads(terminal("logs", batch.id, "--json").stdout)
    assert sum(segment["answered"] for segment in document["segments"]) == 4
    assert sum(error["count"] for error in document["errors"]) == batch.request_counts.failed
    files = [file["id"] for file in json.loads(terminal("files", batch.id, "--json").stdout)]
    assert {batch.input_file_id, batch.output_file_id, batch.error_file_id} <= set(files)
    assert batch.output_file_id in terminal("files", "--purpose", "batch_output", "--limit", "100").stdout
    opened = terminal("open", batch.id, "--json")
    assert json.loads(opened.stdout) == {"url": f"{stack.url}/batches/{batch.id}"}
    assert terminal("open", "batch_none").returncode == 4
