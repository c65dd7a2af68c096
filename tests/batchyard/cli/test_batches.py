"""Commands on batches: what they print, and what they exit with."""

from __future__ import annotations

import contextlib
import io
import json
import os
import pty
import re
import shlex
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from batchyard.cli import watch
from batchyard.client.api import ApiClient
from tests.batchyard.cli.conftest import address, terminal_of
from tests.support.stacks import ROOT, RunningStack, a_chat


def test_a_file_is_submitted_waited_for_and_its_results_fetched(terminal: Any, questions: Path, tmp_path: Path) -> None:
    submitted = terminal(
        *("submit", questions, "--wait", "--json", "--metadata", "team=red", "--post-process", "score:method=numeric")
    )
    assert submitted.returncode == 0, submitted.stderr
    batch = json.loads(submitted.stdout)
    assert batch["status"] == "completed"
    assert batch["metadata"] == {"team": "red"}
    totals = {"total": 20, "correct": 0, "accuracy": 0.0, "without_expected": 0}
    assert batch["batchyard"]["post_process"] == [
        {"step": "score", "method": "numeric", "status": "completed", "summary": totals}
    ]

    assert terminal("results", batch["id"], "-o", tmp_path / "out.jsonl").returncode == 0
    answered = [json.loads(line)["custom_id"] for line in (tmp_path / "out.jsonl").read_text().splitlines()]
    assert answered == [f"r{number}" for number in range(20)]
    assert terminal("results", batch["id"]).stdout == (tmp_path / "out.jsonl").read_text()

    shown = terminal("status", batch["id"])
    assert shown.returncode == 0
    assert "[########################] 100 %" in shown.stdout
    assert "20/0/20" in shown.stdout
    assert "simulated" in shown.stdout
    assert re.search(r"per request +p50 [\d.]+ ms, p95 [\d.]+ m?s, p99 [\d.]+ m?s", shown.stdout), shown.stdout
    assert batch["id"] in [entry["id"] for entry in json.loads(terminal("list", "--json", "--limit", "100").stdout)]
    assert batch["id"] in terminal("list", "--limit", "100").stdout


def test_a_url_of_a_bucket_is_submitted_as_one_batch_or_as_a_batch_for_each_object(
    terminal: Any, stack: RunningStack
) -> None:
    # A folder, which an operator may allow as well.
    url = stack.environment["BATCHYARD_INPUT_PREFIXES"].split(",")[0] + "submitted/"
    folder = Path(url.removeprefix("file://"))
    folder.mkdir()
    for name in ("one", "two"):
        (folder / f"{name}.jsonl").write_text(json.dumps(a_chat(name, f"of {name}")))

    def ended(submitted: Any) -> list[list[str]]:
        assert submitted.returncode == 0, submitted.stderr
        batches = [stack.wait(stack.client.batches.retrieve(name)) for name in submitted.stdout.split()]
        return [[line["custom_id"] for line in stack.lines(batch.output_file_id)] for batch in batches]

    assert ended(terminal("submit", url)) == [["one", "two"]]
    assert ended(terminal("submit", url, "--each")) == [["one"], ["two"]]
    refused = terminal("submit", "s3://elsewhere/in/")
    assert refused.returncode == 4 and "cannot be read here: allowed are URLs below file://" in refused.stderr
    assert terminal("submit", url, "-m", "echo").returncode == 2
    created = terminal("schedule", "create", "--name", "bucket", "--cron", "0 3 * * *", "--url", url)
    assert created.returncode == 0, created.stderr
    schedule_id = created.stdout.split()[0]
    ran = json.loads(terminal("schedule", "run", schedule_id, "--json").stdout)
    assert stack.wait(stack.client.batches.retrieve(ran["batch_id"])).request_counts.completed == 2
    assert terminal("schedule", "delete", schedule_id).returncode == 0


@pytest.mark.parametrize(
    "command",
    [
        "schedule create --name n --cron '61 * * * *' --file in.jsonl",
        "submit in.jsonl --post-process score:method=none",
        "retry batch_none --fixed in.jsonl",
        "job create rollout in.jsonl --model nobody --reward exact",
        "job create rollout in.jsonl --model echo --reward exact --dry-run",
    ],
)
def test_what_is_refused_or_only_tried_leaves_no_file(mine: RunningStack, tmp_path: Path, command: str) -> None:
    (tmp_path / "in.jsonl").write_text(json.dumps(a_chat("left", "hello")) + "\n")
    ended = terminal_of(mine, tmp_path)(*shlex.split(command))
    assert ended.returncode == (0 if "--dry-run" in command else 4), ended.stderr
    assert mine.client.files.list().data == []


def test_a_batch_with_failed_requests_exits_1_and_says_where_to_look(terminal: Any, tmp_path: Path) -> None:
    file = tmp_path / "in.jsonl"
    file.write_text("".join(json.dumps(a_chat(f"r{n}", f"{n}", model="failing")) + "\n" for n in range(6)))
    result = terminal("submit", file, "--wait", "--json")
    assert result.returncode == 1
    batch_id = json.loads(result.stdout)["id"]
    assert f"requests failed; `batchyard results {batch_id} --errors FILE` tells why" in result.stderr
    assert terminal("results", batch_id, "-o", tmp_path / "o", "--errors", tmp_path / "e").returncode == 1
    lines = [(tmp_path / name).read_text().splitlines() for name in ("o", "e")]
    assert len(lines[0]) + len(lines[1]) == 6
    assert lines[1]
    retried = terminal("retry", batch_id)
    assert retried.returncode == 0, retried.stderr
    again = json.loads(terminal("status", retried.stdout.strip(), "--json").stdout)
    assert again["batchyard"]["retry_of"] == batch_id


def test_answers_are_printed_as_they_come(terminal: Any, stack: RunningStack) -> None:
    batch = stack.submit([a_chat(f"r{number}", "hello", model="slow") for number in range(60)])
    followed = terminal("results", batch.id, "--follow")
    assert followed.returncode == 0, followed.stderr
    printed = [json.loads(line)["custom_id"] for line in followed.stdout.splitlines()]
    assert sorted(printed) == sorted(f"r{number}" for number in range(60))
    assert terminal("results", batch.id, "--follow", "--json").returncode == 2
    nothing = terminal("retry", batch.id)
    assert nothing.returncode == 4
    assert "nothing to retry" in nothing.stderr


def test_results_of_a_batch_that_has_not_ended_say_when_they_come(terminal: Any, stack: RunningStack) -> None:
    batch = stack.submit_endless()
    early = terminal("results", batch.id)
    stack.client.batches.cancel(batch.id)
    assert early.returncode == 2
    assert "its files come at the end; --follow prints answers as they come" in early.stderr


def test_status_without_a_batch_is_a_table_of_the_newest_until_all_of_them_have_ended(
    mine: RunningStack, tmp_path: Path
) -> None:
    terminal = terminal_of(mine, tmp_path)
    batch = mine.submit([a_chat(f"r{number}", "hello", model="slow") for number in range(60)])
    table = terminal("status", "--watch", "--limit", "1")
    assert table.returncode == 0, table.stderr
    assert batch.id in table.stdout
    assert "100 %" in table.stdout
    assert [entry["id"] for entry in json.loads(terminal("status", "--json", "--limit", "1").stdout)] == [batch.id]


def test_a_terminal_sees_progress_drawn_again_and_a_pipe_sees_no_control_characters(
    terminal: Any, stack: RunningStack
) -> None:
    batch = stack.submit([a_chat(f"r{number}", "hello", model="slow") for number in range(60)])
    pipe = terminal("status", batch.id, "--watch")
    drawn = io.StringIO()
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("rich.console.Console", lambda **_: Console(file=drawn, force_terminal=True))
        server = ApiClient(stack.url, stack.key)
        watch.watch(server, server.batch(batch.id))
    assert "\x1b[" in drawn.getvalue()
    assert "60/0/60" in drawn.getvalue()
    assert not re.search(r"[\x00-\x08\x0b-\x1f\x7f]", pipe.stdout + pipe.stderr)


def test_a_misspelt_parameter_is_told_when_a_batch_is_made(terminal: Any, tmp_path: Path) -> None:
    file, line = tmp_path / "in.jsonl", a_chat("a", "hello")
    file.write_text(json.dumps(line | {"body": line["body"] | {"tempreature": 0.5}}))
    warning = "warning: line 1: /v1/chat/completions has no parameter 'tempreature'"
    hint = "engine echo does not support the parameter 'tempreature'; did you mean 'temperature'?"
    for command in (("submit", file), ("submit", file, "--wait"), ("run", "-i", file, "-o", tmp_path / "out.jsonl")):
        result = terminal(*command)
        assert result.stderr.count(warning) == 1, result.stderr
        assert (hint in result.stderr) == (len(command) > 2)


def test_a_refused_file_exits_1_with_the_first_bad_line(terminal: Any, tmp_path: Path) -> None:
    file = tmp_path / "in.jsonl"
    file.write_text(json.dumps(a_chat("a", "hello")) + "\nno json\nno json\n")
    result = terminal("submit", file, "--wait")
    assert result.returncode == 1
    assert "is failed: line 2: " in result.stderr
    assert "there are 2 errors, which `batchyard status batch_" in result.stderr
    skipping = terminal("submit", file, "--wait", "--on-invalid", "skip", "--json")
    assert skipping.returncode == 1
    assert json.loads(skipping.stdout)["request_counts"] == {"total": 3, "completed": 1, "failed": 2}
    run = terminal("run", "-i", file, "-o", tmp_path / "out.jsonl")
    assert (run.returncode, run.stdout) == (1, "")
    assert "is failed: line 2: " in run.stderr


def test_a_batch_is_cancelled(terminal: Any, stack: RunningStack) -> None:
    batch = stack.submit_endless()
    result = terminal("cancel", batch.id, "--json")
    assert result.returncode == 0, result.stderr
    assert json.loads(result.stdout)["status"] in ("cancelling", "cancelled")
    assert terminal("status", batch.id, "--watch").returncode == 1


def test_a_batch_is_deleted_once_it_has_ended(terminal: Any, stack: RunningStack) -> None:
    batch = stack.submit_endless()
    refused = terminal("delete", batch.id)
    assert (refused.returncode, "delete it once it has ended" in refused.stderr) == (4, True)
    terminal("cancel", batch.id)
    stack.wait(batch)
    assert terminal("delete", batch.id).stdout == f"{batch.id} is deleted\n"
    assert "No batch found" in terminal("status", batch.id).stderr


def test_the_models_are_listed(terminal: Any) -> None:
    assert "echo" in [model["id"] for model in json.loads(terminal("models", "--json").stdout)]
    assert "nano" in terminal("models").stdout


def test_prompts_in_a_table_are_submitted_forecast_and_run(stack: RunningStack, terminal: Any, tmp_path: Path) -> None:
    (tmp_path / "in.csv").write_text("text\nsun\nmoon\n")
    prompts = ("-m", "echo", "-t", "Say {text}", "--system", "Be brief.")
    prompts += ("--sampling", '{"max_completion_tokens": 9}')
    submitted = terminal("submit", "in.csv", *prompts, "--window", "2h", "--wait", "--json")
    assert submitted.returncode == 0, submitted.stderr
    batch = json.loads(submitted.stdout)
    assert (batch["request_counts"]["completed"], batch["completion_window"], batch["metadata"]) == (2, "2h", None)
    assert [line["body"]["max_completion_tokens"] for line in stack.lines(batch["input_file_id"])] == [9, 9]

    forecast = terminal("submit", "in.csv", *prompts, "--dry-run")
    assert re.fullmatch(r"2 requests, 0\.0 MB: done in .+ \(.+ to .+\), due in .+: on time\n", forecast.stdout)
    every = terminal("submit", "in.csv", "-m", "echo", "-t", "Say {*}", "--dry-run")
    assert every.stdout.endswith("\ncolumns of {*}: text\n"), every.stderr
    command = ("run", "-i", "in.csv", "-o", "out.jsonl", "--model", "echo", "-t", "Run {text}", "--json")
    first, second = terminal(*command), terminal(*command)
    assert first.returncode == second.returncode == 0, first.stderr
    assert json.loads(first.stdout)["id"] == json.loads(second.stdout)["id"]
    answers = [json.loads(line) for line in (tmp_path / "out.jsonl").read_text().splitlines()]
    texts = [answer["response"]["body"]["choices"][0]["message"]["content"] for answer in answers]
    assert texts == ["Run sun", "Run moon"]


def test_options_of_prompts_go_with_prompts_only(terminal: Any, questions: Path) -> None:
    refused = terminal("submit", questions, "--model", "echo")
    assert refused.returncode == 2
    assert "holds whole requests, which say themselves how they are run" in refused.stderr
    assert terminal("submit", questions, "--dry-run").stdout.startswith("20 requests, 0.0 MB: ")


@pytest.mark.parametrize("command", ["submit in.jsonl --wait", "status BATCH --watch"])
def test_a_command_that_waits_is_interrupted_and_says_how_to_go_on(
    held: RunningStack, tmp_path: Path, command: str
) -> None:
    requests = [a_chat(f"r{number}", f"{number}") for number in range(3)]
    (tmp_path / "in.jsonl").write_text("".join(json.dumps(request) + "\n" for request in requests))
    waiting = held.submit(requests)
    arguments = command.replace("BATCH", waiting.id).split()
    with subprocess.Popen(
        [sys.executable, "-m", "batchyard.cli", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=tmp_path,
        env={**os.environ, **address(held), "PYTHONPATH": str(ROOT)},
    ) as running:
        assert running.stderr is not None
        first = running.stderr.readline()  # it waits: a line of progress is there
        running.send_signal(signal.SIGINT)
        printed, complaint = running.communicate(timeout=60)
    newest = held.client.batches.list(limit=1).data[0]
    for batch_id in {waiting.id, newest.id}:
        held.client.batches.cancel(batch_id)
    assert (running.returncode, printed) == (130, ""), first + complaint
    assert "Traceback" not in complaint
    if arguments[0] == "submit":
        assert newest.id != waiting.id
        assert f"interrupted: the batch goes on; `batchyard status {newest.id} --watch` takes it up" in complaint
    else:
        assert "interrupted: what was watched goes on" in complaint


def test_a_batch_is_paused_changed_and_resumed_and_who_did_it_is_told(terminal: Any, stack: RunningStack) -> None:
    batch = stack.submit_endless()
    paused = terminal("pause", batch.id)
    assert (paused.returncode, f"`batchyard resume {batch.id}` lets it go on" in paused.stdout) == (0, True)
    assert re.search(r"eta +paused by .+ at 20", terminal("status", batch.id).stdout)
    changed = terminal("set", batch.id, "deadline=48h", "priority=high", "name=nightly")
    assert changed.returncode == 0, changed.stderr
    assert re.match(rf"{batch.id} \(nightly\): due in (2 d|1 d 23 h), priority high", changed.stdout)
    resumed = json.loads(terminal("resume", batch.id, "--json").stdout)
    assert resumed["batchyard"]["paused_at"] is None
    wrong = terminal("set", batch.id, "colour=red")
    assert (wrong.returncode, "deadline, priority, name, description" in wrong.stderr) == (2, True)
    told = terminal("audit", "--limit", "3").stdout
    assert "batch.paused" in told and '"priority"' not in told and 'priority "high"' in told
    assert re.search(r"batch\.paused by \S", terminal("logs", batch.id).stdout)
    stack.client.batches.cancel(batch.id)


def test_a_terminal_has_colours_and_the_link_to_the_page(stack: RunningStack, tmp_path: Path) -> None:
    (tmp_path / "in.jsonl").write_text(json.dumps(a_chat("a", "hello")) + "\n")
    key = {"BATCHYARD_URL": stack.url, "BATCHYARD_API_KEY": stack.key, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-m", "batchyard.cli"]

    def on_terminal(*arguments: str, **environment: str) -> str:
        ours, theirs = pty.openpty()
        subprocess.run(
            [*command, *arguments], stdout=theirs, stderr=theirs, cwd=tmp_path, env={**os.environ, **key, **environment}
        )
        os.close(theirs)
        shown = b""
        with os.fdopen(ours, "rb", buffering=0) as read, contextlib.suppress(OSError):
            while piece := read.read(65536):  # as much as the system hands on at a time
                shown += piece
        return shown.decode()

    batch_id = re.search(r"batch_\w+", submitted := on_terminal("submit", "in.jsonl"))
    assert batch_id is not None
    assert f"{stack.url}/batches/{batch_id[0]}" in submitted
    stack.wait(stack.client.batches.retrieve(batch_id[0]))
    assert "\x1b[32mcompleted" in on_terminal("status", batch_id[0])
    assert "\x1b" not in on_terminal("status", batch_id[0], NO_COLOR="1")
