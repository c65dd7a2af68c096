"""`run` starts a stack or uses one, goes on where it was, and says why it cannot."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import openai
import pytest

from batchyard.local import process
from tests.batchyard.cli.conftest import address, terminal_of
from tests.support.rows import until
from tests.support.stacks import RunningStack, a_chat
from tests.support.terminal import batchyard, separate_process


def test_the_same_run_again_takes_up_its_batch(terminal: Any, questions: Path, tmp_path: Path) -> None:
    command = ("run", "-i", questions, "-o", tmp_path / "out.jsonl", "--model", "other", "--json")
    first, second, third = terminal(*command), terminal(*command), terminal(*command, "--again")
    assert [result.returncode for result in (first, second, third)] == [0, 0, 0], first.stderr
    ids = [json.loads(result.stdout)["id"] for result in (first, second, third)]
    assert ids[0] == ids[1] != ids[2]
    assert f"taking up batch {ids[0]}" in second.stderr
    assert json.loads(first.stdout)["model"] == "other"
    assert len((tmp_path / "out.jsonl").read_text().splitlines()) == 20


def newest(stack: RunningStack) -> str:
    """Return the id of the newest batch. Earlier ones may end meanwhile."""
    found = stack.client.batches.list(limit=1).data
    return found[0].id if found else ""


def test_run_is_interrupted_says_how_it_goes_on_and_does_go_on(
    stack: RunningStack, held: RunningStack, tmp_path: Path
) -> None:
    (tmp_path / "in.jsonl").write_text(
        "".join(json.dumps(a_chat(f"r{number}", f"{number}")) + "\n" for number in range(80))
    )
    command = ("run", "--input-file", tmp_path / "in.jsonl", "--output-file", tmp_path / "out.jsonl")
    before = newest(held)
    with subprocess.Popen(
        [str(Path(sys.executable).parent / "batchyard"), *map(str, command)],
        stderr=subprocess.PIPE,
        text=True,
        cwd=tmp_path,
        env={**os.environ, **address(held)},
    ) as running:
        until(lambda: newest(held) != before)
        running.send_signal(signal.SIGINT)
        assert running.stderr is not None
        assert "interrupted: the same command again goes on with what has no answer yet" in running.stderr.read()
    assert running.returncode == 130
    assert not (tmp_path / "out.jsonl").exists()
    batch_id = newest(held)
    stack.limit_segments(tmp_path.name, None)
    again = terminal_of(held, tmp_path)(*command)
    assert again.returncode == 0, again.stderr
    assert f"taking up batch {batch_id}" in again.stderr
    assert len((tmp_path / "out.jsonl").read_text().splitlines()) == 80


def test_run_keeps_what_a_cancelled_batch_has_answered_and_asks_for_the_rest(
    mine: RunningStack, tmp_path: Path
) -> None:
    command = ("run", "-i", tmp_path / "in.jsonl", "-o", tmp_path / "out.jsonl", "--json")
    for attempt in range(3):  # a batch that has ended before some of its answers were seen is no use
        lines = [a_chat(f"r{number}", f"kept {attempt} {number}", model="slow") for number in range(300)]
        (tmp_path / "in.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
        before = newest(mine)
        with ThreadPoolExecutor(1) as pool:
            running = pool.submit(separate_process, *command, folder=tmp_path, **address(mine))
            until(lambda: newest(mine) != before)  # noqa: B023
            batch = mine.client.batches.retrieve(newest(mine))
            batch = mine.wait(batch, until=lambda one: one.request_counts.completed)
            with suppress(openai.ConflictError):  # it has ended
                mine.client.batches.cancel(batch.id)
            code = running.result().returncode
        kept = mine.client.batches.retrieve(batch.id).request_counts
        if kept is not None and kept.completed < 300:
            break
    assert code == 1
    assert kept is not None and 0 < kept.completed < 300
    again = terminal_of(mine, tmp_path)(*command)
    assert again.returncode == 0, again.stderr
    report = json.loads(again.stdout)
    assert report["run"] == {
        "batches": [batch.id, report["id"]],
        "request_counts": {
            **dict.fromkeys(("failed", "cut_off", "empty", "invalid", "looped"), 0),
            "total": 300,
            "completed": 300,
        },
    }
    assert report["request_counts"]["total"] == 300 - kept.completed
    written = [json.loads(line)["custom_id"] for line in (tmp_path / "out.jsonl").read_text().splitlines()]
    assert written == [line["custom_id"] for line in lines]


@pytest.mark.stack
def test_run_starts_a_stack_of_its_own_and_ends_it(questions: Path, tmp_path: Path) -> None:
    (tmp_path / "models.toml").write_text("[models.echo]\nengine = 'echo'\n")
    arguments = ("run", "-i", questions, "-o", tmp_path / "out.jsonl", "--errors", tmp_path / "errors.jsonl")
    result = separate_process(*arguments, folder=tmp_path, BATCHYARD_ALLOW_SIMULATED="1")
    assert result.returncode == 0, result.stderr
    assert "20 of 20 requests answered" in result.stdout
    assert len((tmp_path / "out.jsonl").read_text().splitlines()) == 20
    assert (tmp_path / "errors.jsonl").read_text() == ""
    assert process.tagged(str(tmp_path / "data")) == []
    assert list((tmp_path / "data/run").glob("*.pid")) == [], "it was sent SIGTERM, and ended by itself"


@pytest.mark.stack
def test_a_stack_that_cannot_start_says_why_through_run(questions: Path, tmp_path: Path) -> None:
    (tmp_path / "models.toml").write_text("[models.echo]\nengin = 'echo'\n")
    result = batchyard("run", "-i", questions, "-o", tmp_path / "out.jsonl", folder=tmp_path)
    assert result.returncode == 2
    assert result.stderr.splitlines() == [
        "batchyard: models.toml: models.echo.engin: unknown key; did you mean engine?"
    ]
