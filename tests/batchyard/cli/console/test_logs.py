"""The logs of a batch are in order of time, and are read where the stack runs."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from tests.support.rows import until
from tests.support.stacks import RunningStack, a_chat
from tests.support.terminal import Result, batchyard


@pytest.fixture
def here(stack: RunningStack, tmp_path: Path) -> Any:
    """Runs a command on the machine of the shared stack, which it finds by its data folder."""

    def run(*arguments: str | Path) -> Result:
        return batchyard(*arguments, "--data", stack.data, folder=tmp_path)

    return run


def test_logs_are_in_order_of_time_and_have_no_line_per_poll(here: Any, stack: RunningStack) -> None:
    batch = stack.wait(stack.submit([a_chat("a", "a secret prompt", model="echo")]))
    until(lambda: "segment ended" in here("logs", batch.id).stdout)  # written after the commit of its answers
    shown = here("logs", batch.id)
    assert (shown.returncode, shown.stderr) == (0, "")
    timeline = shown.stdout.partition("\n\n")[0].splitlines()
    assert [line[:20] for line in timeline] == sorted(line[:20] for line in timeline)
    assert re.search(r"worker: segment started \(.*segment_id \d+.*\)", shown.stdout)
    assert f"POST /v1/batches/{batch.id}" not in shown.stdout and f"GET /v1/batches/{batch.id}" not in shown.stdout
    assert stack.key not in shown.stdout and "secret" not in shown.stdout
    document = json.loads(here("logs", batch.id, "--json").stdout)
    assert {"segment started", "segment ended", "finishing"} <= {line["message"] for line in document["log"]}
    recent = json.loads(here("logs", batch.id, "--json", "--since", "1h").stdout)
    assert recent["log"][: len(document["log"])] == document["log"]

    def is_old() -> bool:
        recent = json.loads(here("logs", batch.id, "--json", "--since", "1s").stdout)
        return not recent["events"] and not recent["log"]

    until(is_old)
    assert here("logs", batch.id, "--since", "soon").returncode == 2


def test_logs_follow_a_batch_to_its_end(here: Any, stack: RunningStack) -> None:
    batch = stack.submit([a_chat(f"id-{number}", "hello", model="slow") for number in range(20)])
    followed = here("logs", batch.id, "--follow")
    assert followed.returncode == 0, followed.stderr
    lines = followed.stdout.splitlines()
    for text in ("batch: created", "segment started", "segment ended", "batch: completed"):
        assert sum(text in line for line in lines) == 1, text
    assert here("logs", batch.id, "--follow", "--json").returncode == 2


def test_logs_of_a_stack_elsewhere_say_where_to_read_them(terminal: Any, stack: RunningStack) -> None:
    batch = stack.wait(stack.submit([a_chat("a", "hello")]))
    shown = terminal("logs", batch.id)
    assert shown.stderr == f"Lines of logs are read where {stack.url} runs: `batchyard logs {batch.id}` there.\n"
    assert "batch: completed" in shown.stdout and "segment started" not in shown.stdout
