"""Recipes and jobs from the command line against a running stack: what is printed, written and exited with."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from batchyard.client.api import ApiClient
from batchyard.local import process
from tests.batchyard.cli.conftest import address, terminal_of
from tests.support.recipes import write_recipes
from tests.support.rows import until
from tests.support.stacks import RunningStack
from tests.support.terminal import Result, batchyard, separate_process

Terminal = Callable[..., Result]


@pytest.fixture
def rows(tmp_path: Path) -> Callable[..., Path]:
    """Writes an input file: a row for each ending."""

    def write(*endings: str) -> Path:
        file = tmp_path / "rows.jsonl"
        lines = [{"prompt": f"{tmp_path.name} {number}", "ending": ending} for number, ending in enumerate(endings)]
        file.write_text("".join(json.dumps(line) + "\n" for line in lines))
        return file

    return write


def lines(text: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in text.splitlines()]


def test_a_recipe_of_ones_own_is_run_and_the_same_command_takes_up_its_job(
    terminal: Terminal, rows: Callable[..., Path], tmp_path: Path
) -> None:
    (tmp_path / "base.yaml").write_text("model: echo\nwords: [please]\n")
    command = ("twice", rows(*["completed"] * 5), "-c", "base.yaml", "-o", "out.jsonl", "--artifacts", "all", "--json")
    first, second = terminal(*command), terminal(*command)
    assert (first.returncode, second.returncode) == (0, 0), first.stderr + second.stderr
    job = json.loads(first.stdout)
    assert job["batchyard"]["options"]["words"] == ["please"]
    assert [stage["answered"] for stage in job["batchyard"]["stages"]] == [5, 5]
    assert [line["number"] for line in lines((tmp_path / "out.jsonl").read_text())] == [1, 2, 3, 4, 5]
    artifacts = {path.name for path in (tmp_path / "all").iterdir()}
    assert artifacts == {artifact["name"] for artifact in job["batchyard"]["artifacts"]}
    assert (tmp_path / "all/results.jsonl").read_text() == (tmp_path / "out.jsonl").read_text()

    assert json.loads(second.stdout)["id"] == job["id"]
    assert f"taking up job {job['id']} (completed); --again computes all of it anew" in second.stderr


def test_the_logs_of_a_job_are_those_of_its_batches_too(
    stack: RunningStack, rows: Callable[..., Path], tmp_path: Path
) -> None:
    def here(*arguments: str | Path) -> Result:
        return batchyard(*arguments, "--data", stack.data, folder=tmp_path)

    job = json.loads(here("twice", rows("completed"), "--model", "echo", "-o", "out.jsonl", "--json").stdout)
    until(lambda: "job ended" in here("logs", job["id"]).stdout)  # written after the commit that says so
    shown = here("logs", job["id"])
    assert shown.returncode == 0, shown.stderr
    timeline = shown.stdout.partition("\n\n")[0].splitlines()
    assert [line[:20] for line in timeline] == sorted(line[:20] for line in timeline)
    for text in ("job: created", "job: completed", f"job ended (job_id {job['id']}"):
        assert sum(text in line for line in timeline) == 1, shown.stdout
    for stage in job["batchyard"]["stages"]:
        assert f"segment ended (batch_id {stage['batch_id']}" in shown.stdout


def test_failed_and_stuck_items_exit_1_and_say_where_to_look(terminal: Terminal, rows: Callable[..., Path]) -> None:
    failed = terminal("twice", rows("completed", "failed", "stuck"), "--model", "echo")
    assert failed.returncode == 1
    assert "1 of 3 items completed, 1 failed, 1 stuck (simulated)" in failed.stdout
    assert "1 of 3 items failed; `batchyard job items job_" in failed.stderr
    job_id = failed.stdout.split()[-1]
    shown = json.loads(terminal("job", "items", job_id, "--state", "stuck", "--json").stdout)
    assert [(item["number"], item["reason"]) for item in shown] == [(3, "for_a_person")]
    assert "too_bad" in terminal("job", "items", job_id).stdout


def test_a_job_whose_input_is_refused_writes_nothing_and_says_so(
    terminal: Terminal, rows: Callable[..., Path], tmp_path: Path
) -> None:
    file = rows("completed")
    file.write_text(file.read_text() + "no json\n")
    refused = terminal("twice", file, "--model", "echo", "-o", "out.jsonl", "--artifacts", "all")
    assert refused.returncode == 1
    assert "is failed: line 2: Row 2: " in refused.stderr
    assert refused.stdout.startswith("No items ran: job_") and "Written" not in refused.stdout
    assert not (tmp_path / "out.jsonl").exists()
    shown = terminal("job", "status", refused.stdout.split()[-1]).stdout
    assert "on track" not in shown


def test_failed_items_are_retried_with_another_option_and_no_retry_is_taken_up(
    terminal: Terminal, rows: Callable[..., Path]
) -> None:
    command = ("twice", rows("completed", "failed", "stuck"), "--model", "echo", "words=[please]", "--json")
    job = json.loads(terminal(*command).stdout)
    retry = ("job", "retry", job["id"], "--state", "failed", "-o", "words=[thanks]", "--window", "2h")
    made = json.loads(terminal(*retry, "--wait", "--json").stdout)
    assert (made["request_counts"]["total"], made["request_counts"]["failed"]) == (1, 1)
    assert (made["batchyard"]["retry_of"], made["completion_window"]) == (job["id"], "2h")
    assert made["batchyard"]["options"] == job["batchyard"]["options"] | {"words": ["thanks"]}
    assert json.loads(terminal(*command).stdout)["id"] == job["id"]
    unknown = terminal("job", "retry", job["id"], "-o", "wrods=[a]")
    assert unknown.returncode != 0 and "words" in unknown.stderr


def test_a_job_is_created_watched_listed_and_read(
    terminal: Terminal, rows: Callable[..., Path], tmp_path: Path
) -> None:
    created = terminal(
        *("job", "create", "twice", rows(*["completed"] * 3), "--model", "echo"),
        *("--name", "mine", "--metadata", "team=red", "--seed", "7"),
    )
    assert created.returncode == 0, created.stderr
    job_id = created.stdout.strip()
    watched = terminal("job", "status", job_id, "--watch")
    assert watched.returncode == 0, watched.stderr
    assert "[########################] 100 %" in watched.stdout
    assert "3/0/0/3" in watched.stdout
    job = json.loads(terminal("job", "status", job_id, "--json").stdout)
    assert (job["name"], job["metadata"], job["batchyard"]["seed"]) == ("mine", {"team": "red"}, 7)
    assert job_id in terminal("job", "list", "--recipe", "twice").stdout
    assert job_id not in terminal("job", "list", "--status", "cancelled").stdout
    assert job_id in terminal("job", "status").stdout

    printed = terminal("job", "results", job_id)
    assert sorted(line["number"] for line in lines(printed.stdout)) == [1, 2, 3]
    assert terminal("job", "results", job_id, "-o", "out.jsonl").returncode == 0
    assert [line["number"] for line in lines((tmp_path / "out.jsonl").read_text())] == [1, 2, 3]
    assert "job.completed" in terminal("job", "events", job_id).stdout


def test_what_a_job_would_be_is_said_without_making_it(
    mine: RunningStack, rows: Callable[..., Path], tmp_path: Path
) -> None:
    terminal = terminal_of(mine, tmp_path)
    before = terminal("job", "list", "--json", "--limit", "100").stdout
    result = terminal("job", "create", "twice", rows("completed"), "--model", "echo", "--dry-run")
    assert result.returncode == 0, result.stderr
    assert "requests, draft" in result.stdout
    assert terminal("job", "list", "--json", "--limit", "100").stdout == before


def test_a_job_is_cancelled(terminal: Terminal, rows: Callable[..., Path]) -> None:
    job_id = terminal("job", "create", "twice", rows(*["completed"] * 9), "--model", "endless").stdout.strip()
    early = terminal("job", "results", job_id, "-o", "out.jsonl")
    result = terminal("job", "cancel", job_id, "--json")
    assert result.returncode == 0, result.stderr
    assert early.returncode == 2
    assert "its artifacts come at the end" in early.stderr
    assert terminal("job", "status", job_id, "--watch").returncode == 1


def test_what_the_server_refuses_exits_4_with_the_nearest_name(terminal: Terminal, rows: Callable[..., Path]) -> None:
    result = terminal("twice", rows("completed"), "--model", "ecco")
    assert result.returncode == 4
    assert "echo" in result.stderr
    assert len(result.stderr.splitlines()) == 1
    unknown = terminal("twic", rows("completed"))
    assert unknown.returncode == 2
    assert "Did you mean 'twice'?" in unknown.stderr


def test_a_recipe_is_interrupted_and_the_same_command_goes_on(
    stack: RunningStack, held: RunningStack, rows: Callable[..., Path], tmp_path: Path
) -> None:
    command = ["twice", str(rows(*["completed"] * 60)), "--model", "echo", "-o", "out.jsonl"]
    server = ApiClient(held.url, held.key)
    before = {job["id"] for job in server.jobs()}
    with subprocess.Popen(
        [str(Path(sys.executable).parent / "batchyard"), *command],
        stderr=subprocess.PIPE,
        text=True,
        cwd=tmp_path,
        env={**os.environ, **address(held)},
    ) as running:
        until(lambda: {job["id"] for job in server.jobs()} - before)
        running.send_signal(signal.SIGINT)
        assert running.stderr is not None
        assert "interrupted: the same command again goes on with what has no answer yet" in running.stderr.read()
    assert running.returncode == 130
    (job_id,) = {job["id"] for job in server.jobs()} - before
    stack.limit_segments(tmp_path.name, None)
    again = terminal_of(held, tmp_path)(*command)
    assert again.returncode == 0, again.stderr
    assert f"taking up job {job_id}" in again.stderr
    assert len((tmp_path / "out.jsonl").read_text().splitlines()) == 60


# The stack comes from the same context manager as that of `run`, which tests/batchyard/cli/test_oneshot.py shows.
@pytest.mark.exhaustive
@pytest.mark.stack
def test_a_recipe_starts_a_stack_of_its_own_and_ends_it(rows: Callable[..., Path], tmp_path: Path) -> None:
    (tmp_path / "models.toml").write_text("[models.echo]\nengine = 'echo'\n")
    result = separate_process(
        *("twice", rows("completed", "completed"), "--model", "echo", "-o", "out.jsonl"),
        folder=tmp_path,
        BATCHYARD_ALLOW_SIMULATED="1",
        BATCHYARD_RECIPES=str(write_recipes(tmp_path)),
    )
    assert result.returncode == 0, result.stderr
    assert "2 of 2 items completed (simulated)" in result.stdout
    assert len((tmp_path / "out.jsonl").read_text().splitlines()) == 2
    assert process.tagged(str(tmp_path / "data")) == []
