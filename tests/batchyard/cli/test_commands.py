"""The command line against a running stack: what it prints, what it exits with."""

from __future__ import annotations

import contextlib
import io
import json
import os
import pty
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, cast

import click
import pytest
from rich.console import Console

from batchyard.cli import engine_flags, main, output, requests, watch
from batchyard.client.api import ApiClient
from batchyard.errors import ConfigurationError
from batchyard.local import process
from batchyard.statuses import ENDPOINTS
from inference import catalog
from store import keys
from store.database import Database
from tests.support.rows import until
from tests.support.stacks import ROOT, RunningStack, a_chat
from tests.support.terminal import Result, batchyard, separate_process


@pytest.fixture
def terminal(stack: RunningStack, tmp_path: Path) -> Any:
    """Runs a command against the shared stack."""

    def run(*arguments: str | Path) -> Result:
        return batchyard(*arguments, folder=tmp_path, BATCHYARD_URL=stack.url, BATCHYARD_API_KEY=stack.key)

    return run


@pytest.fixture
def questions(tmp_path: Path) -> Path:
    file = tmp_path / "questions.jsonl"
    lines = [
        a_chat(f"r{number}", f"question {number}", metadata={"task": "sum", "expected": "no"}) for number in range(20)
    ]
    file.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return file


def test_migrate_makes_an_admin_key_where_none_is_in_use(tmp_path: Path, database_url: str) -> None:
    def migrate() -> str:
        return batchyard("migrate", "--admin-key", folder=tmp_path, DATABASE_URL=database_url).stdout

    file = tmp_path / "data" / "admin.key"
    file.parent.mkdir()
    file.write_text("of another database")
    assert str(file) in migrate()
    assert file.stat().st_mode & 0o777 == 0o600
    database = Database(database_url)
    with database.read() as session:
        admin = keys.authenticate(session, file.read_text())
        assert admin is not None and admin.admin
        assert keys.named(session, admin.project_id, {admin.key_id}) == {admin.key_id: "admin.key"}
    file.unlink()
    assert migrate() == ""
    assert not file.exists()
    with database.write() as session:
        keys.revoke(session, admin.key_id)
    database.close()
    assert str(file) in migrate()


def test_a_file_is_submitted_waited_for_and_its_results_fetched(terminal: Any, questions: Path, tmp_path: Path) -> None:
    submitted = terminal(
        *("submit", questions, "--wait", "--json", "--metadata", "team=red", "--post-process", "score:method=numeric")
    )
    assert submitted.returncode == 0, submitted.stderr
    batch = json.loads(submitted.stdout)
    assert batch["status"] == "completed"
    assert batch["metadata"] == {"team": "red"}
    assert batch["batchyard"]["post_process"] == [{"step": "score", "method": "numeric", "status": "completed"}]

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
    terminal: Any, stack: RunningStack
) -> None:
    batch = stack.submit([a_chat(f"r{number}", "hello", model="slow") for number in range(60)])
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
        watch.watch(ApiClient(stack.url, stack.key), batch.id)
    assert "\x1b[" in drawn.getvalue()
    assert "60/0/60" in drawn.getvalue()
    assert not re.search(r"[\x00-\x08\x0b-\x1f\x7f]", pipe.stdout + pipe.stderr)


def test_what_others_wrote_cannot_command_the_terminal() -> None:
    assert output.lines_of(["name"], [["\x1b[31mred\x9b\u202e"]]) == "name\n\ufffd[31mred\ufffd\ufffd"


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


def test_the_models_are_listed(terminal: Any) -> None:
    assert "echo" in [model["id"] for model in json.loads(terminal("models", "--json").stdout)]
    assert "nano" in terminal("models").stdout


def test_the_same_run_again_takes_up_its_batch(terminal: Any, questions: Path, tmp_path: Path) -> None:
    command = ("run", "-i", questions, "-o", tmp_path / "out.jsonl", "--model", "other", "--json")
    first, second, third = terminal(*command), terminal(*command), terminal(*command, "--again")
    assert [result.returncode for result in (first, second, third)] == [0, 0, 0], first.stderr
    ids = [json.loads(result.stdout)["id"] for result in (first, second, third)]
    assert ids[0] == ids[1] != ids[2]
    assert f"taking up batch {ids[0]}" in second.stderr
    assert json.loads(first.stdout)["model"] == "other"
    assert len((tmp_path / "out.jsonl").read_text().splitlines()) == 20


def test_prompts_in_a_table_are_submitted_forecast_and_run(terminal: Any, tmp_path: Path) -> None:
    (tmp_path / "in.csv").write_text("text\nsun\nmoon\n")
    prompts = ("-m", "echo", "-t", "Say {text}", "--system", "Be brief.", "--max-tokens", "9")
    submitted = terminal("submit", "in.csv", *prompts, "--window", "2h", "--wait", "--json")
    assert submitted.returncode == 0, submitted.stderr
    batch = json.loads(submitted.stdout)
    assert (batch["request_counts"]["completed"], batch["completion_window"], batch["metadata"]) == (2, "2h", None)

    forecast = terminal("submit", "in.csv", *prompts, "--dry-run")
    assert re.fullmatch(r"2 requests, 0\.0 MB: done in .+ \(.+ to .+\), due in .+: on time\n", forecast.stdout)
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


def test_run_is_interrupted_says_how_it_goes_on_and_does_go_on(
    stack: RunningStack, terminal: Any, tmp_path: Path
) -> None:
    (tmp_path / "in.jsonl").write_text(
        "".join(json.dumps(a_chat(f"r{number}", f"{number}", model="slow")) + "\n" for number in range(200))
    )
    command = ("run", "--input-file", tmp_path / "in.jsonl", "--output-file", tmp_path / "out.jsonl")
    key = {"BATCHYARD_URL": stack.url, "BATCHYARD_API_KEY": stack.key}
    before = stack.client.batches.list(limit=1).data
    with subprocess.Popen(
        [str(Path(sys.executable).parent / "batchyard"), *map(str, command)],
        stderr=subprocess.PIPE,
        text=True,
        cwd=tmp_path,
        env={**os.environ, **key},
    ) as running:
        until(lambda: stack.client.batches.list(limit=1).data != before)
        running.send_signal(signal.SIGINT)
        assert running.stderr is not None
        assert "interrupted: the same command again goes on with what has no answer yet" in running.stderr.read()
    assert running.returncode == 130
    assert not (tmp_path / "out.jsonl").exists()
    batch = stack.client.batches.list(limit=1).data[0]
    again = terminal(*command)
    assert again.returncode == 0, again.stderr
    assert f"taking up batch {batch.id}" in again.stderr
    assert len((tmp_path / "out.jsonl").read_text().splitlines()) == 200


@pytest.mark.parametrize("command", ["submit in.jsonl --wait", "status BATCH --watch"])
def test_a_command_that_waits_is_interrupted_and_says_how_to_go_on(
    stack: RunningStack, tmp_path: Path, command: str
) -> None:
    requests = [a_chat(f"r{number}", f"{number}", model="endless") for number in range(3)]
    (tmp_path / "in.jsonl").write_text("".join(json.dumps(request) + "\n" for request in requests))
    waiting = stack.submit(requests)
    before = stack.client.batches.list(limit=1).data[0]
    arguments = command.replace("BATCH", waiting.id).split()
    key = {"BATCHYARD_URL": stack.url, "BATCHYARD_API_KEY": stack.key}
    with subprocess.Popen(
        [sys.executable, "-m", "batchyard.cli", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=tmp_path,
        env={**os.environ, **key, "PYTHONPATH": str(ROOT)},
    ) as running:
        assert running.stderr is not None
        first = running.stderr.readline()  # it waits: a line of progress is there
        running.send_signal(signal.SIGINT)
        printed, complaint = running.communicate(timeout=20)
    newest = stack.client.batches.list(limit=1).data[0]
    for batch_id in {waiting.id, newest.id}:
        stack.client.batches.cancel(batch_id)
    assert (running.returncode, printed) == (130, ""), first + complaint
    assert "Traceback" not in complaint
    if arguments[0] == "submit":
        assert newest.id != before.id
        assert f"interrupted: the batch goes on; `batchyard status {newest.id} --watch` takes it up" in complaint
    else:
        assert "interrupted: what was watched goes on" in complaint


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


@pytest.fixture
def here(stack: RunningStack, tmp_path: Path) -> Any:
    """Runs a command on the machine of the shared stack, which it finds by its data folder."""

    def run(*arguments: str | Path) -> Result:
        return batchyard(*arguments, "--data", stack.data, folder=tmp_path)

    return run


def test_logs_are_in_order_of_time_and_have_no_line_per_poll(here: Any, stack: RunningStack) -> None:
    batch = stack.wait(stack.submit([a_chat("a", "a secret prompt", model="echo")]))
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
    deadline = time.monotonic() + 30
    while recent["events"] or recent["log"]:
        assert time.monotonic() < deadline
        recent = json.loads(here("logs", batch.id, "--json", "--since", "1s").stdout)
    assert here("logs", batch.id, "--since", "soon").returncode == 2


def test_logs_follow_a_batch_to_its_end(here: Any, stack: RunningStack) -> None:
    batch = stack.submit([a_chat(f"id-{number}", "hello", model="slow") for number in range(60)])
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
        with os.fdopen(ours, "rb") as read, contextlib.suppress(OSError):
            return read.read1(65536).decode()
        return ""

    batch_id = re.search(r"batch_\w+", submitted := on_terminal("submit", "in.jsonl"))
    assert batch_id is not None
    assert f"{stack.url}/batches/{batch_id[0]}" in submitted
    stack.wait(stack.client.batches.retrieve(batch_id[0]))
    assert "\x1b[32mcompleted" in on_terminal("status", batch_id[0])
    assert "\x1b" not in on_terminal("status", batch_id[0], NO_COLOR="1")


def test_a_folder_or_a_hub_id_with_engine_flags_becomes_a_models_file(tmp_path: Path) -> None:
    folder = ROOT / "examples/models/nano"
    arguments = {"max_model_len": 256, "dtype": "float32", "trust_remote_code": True}
    spec = catalog.load(engine_flags.models_file(tmp_path, str(folder), arguments))[str(folder)]
    assert spec.source == str(folder)
    assert spec.engine_args == arguments
    assert list(catalog.load(engine_flags.models_file(tmp_path, "org/name", {}))) == ["org/name"]
    with pytest.raises(ConfigurationError, match="neither a model of the models file, nor a folder, nor a hub id"):
        engine_flags.models_file(tmp_path, "nowhere", {})


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


@pytest.mark.stack
def test_a_stack_that_cannot_start_says_why_through_run(questions: Path, tmp_path: Path) -> None:
    (tmp_path / "models.toml").write_text("[models.echo]\nengin = 'echo'\n")
    result = separate_process("run", "-i", questions, "-o", tmp_path / "out.jsonl", folder=tmp_path)
    assert result.returncode == 2
    assert result.stderr.splitlines() == [
        "batchyard: models.toml: models.echo.engin: unknown key; did you mean engine?"
    ]


def test_a_server_that_is_away_exits_3_and_names_the_remedy(tmp_path: Path) -> None:
    away = {"BATCHYARD_URL": "http://127.0.0.1:9", "BATCHYARD_API_KEY": "by-0-0"}
    result = batchyard("list", folder=tmp_path, **away)
    assert result.returncode == 3
    assert result.stderr == (
        "batchyard: no server answers at http://127.0.0.1:9: start one with `batchyard up`, or set BATCHYARD_URL\n"
    )


def test_a_wrong_key_or_an_unknown_batch_exits_4(stack: RunningStack, tmp_path: Path, terminal: Any) -> None:
    result = batchyard("list", folder=tmp_path, BATCHYARD_URL=stack.url, BATCHYARD_API_KEY="by-0-0")
    assert result.returncode == 4
    assert "set BATCHYARD_API_KEY" in result.stderr
    result = terminal("status", "batch_none")
    assert result.returncode == 4
    assert "batch_none" in result.stderr
    assert len(result.stderr.splitlines()) == 1


def test_usage_and_configuration_exit_2(tmp_path: Path) -> None:
    assert batchyard("submit", "nowhere.jsonl", folder=tmp_path).returncode == 2
    assert batchyard("nonsense", folder=tmp_path).returncode == 2
    result = batchyard("list", folder=tmp_path)
    assert result.returncode == 2
    assert "no API key for http://127.0.0.1:8000: set BATCHYARD_API_KEY" in result.stderr
    result = batchyard("list", folder=tmp_path, BATCHYARD_DTAA="x")
    assert (result.returncode, result.stderr) == (
        2,
        "batchyard: unknown setting BATCHYARD_DTAA: did you mean BATCHYARD_DATA?\n",
    )


@pytest.mark.parametrize(
    ("arguments", "remedy"),
    [
        ("submit nowhere.jsonl", "File 'nowhere.jsonl' does not exist"),
        ("submit in.jsonl --window 1y", "write a whole number and s, m, h or d, such as '24h'"),
        ("submit in.jsonl --metadata x", "write KEY=VALUE"),
        ("submit in.jsonl --endpoint /v1/chat", "is not one of '/v1/chat/completions'"),
        ("lst", "Did you mean one of: 'list'"),
        ("cancel", "Missing argument 'BATCH'"),
        ("list --limit 0", "not in the range"),
        ("run -i in.jsonl -o nowhere/out.jsonl", "name a file in a folder that exists"),
        ("run -i http://host/in.jsonl -o out.jsonl", "name a local file"),
        ("run -i in.jsonl -o out.jsonl --enable-metrics", "a server has its metrics at /metrics always; leave it out"),
        ("run -i in.jsonl -o out.jsonl --port 9000", "leave it out"),
        ("run -i in.jsonl -o out.jsonl --model gone", "nor a folder, nor a hub id"),
        ("run -i in.jsonl -o out.jsonl --max-num-seqs 4", "go with a --model of your own"),
        ("up --port 99999", "not in the range"),
    ],
)
def test_what_is_written_wrongly_is_said_on_one_line_with_what_would_be_right(
    arguments: str, remedy: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "in.jsonl").write_text(json.dumps(a_chat("a", "hello")) + "\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("BATCHYARD_URL", raising=False)
    monkeypatch.setattr(sys, "argv", ["batchyard", *arguments.split()])
    with pytest.raises(SystemExit) as ended:
        main.main()
    assert ended.value.code == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.startswith("batchyard: ")
    assert printed.err.count("\n") == 1
    assert remedy in printed.err


def test_tab_completes_commands_batches_and_models(stack: RunningStack) -> None:
    batch = stack.submit([a_chat("a", "hello")])
    script = """
    eval "$(_BATCHYARD_COMPLETE=bash_source batchyard)"
    compopt() { :; }  # only bash itself may call the real one
    offer() {
        COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); COMPREPLY=()
        _batchyard_completion batchyard; echo "${COMPREPLY[@]}"
    }
    offer batchyard sta
    offer batchyard status batch_
    offer batchyard run --model nan
    BATCHYARD_URL=http://127.0.0.1:9 offer batchyard status batch_
    """
    environment = {"BATCHYARD_URL": stack.url, "BATCHYARD_API_KEY": stack.key}
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    result = subprocess.run(
        ["bash", "-c", script], capture_output=True, text=True, env={**os.environ, **environment, "PATH": path}
    )
    commands, batches, names, away = result.stdout.split("\n")[:4]
    assert (commands, names, away) == ("status", "nano", ""), result.stderr
    assert batch.id in batches.split()
    assert result.stderr == ""


def test_a_reader_that_has_enough_ends_a_command_without_a_word(stack: RunningStack) -> None:
    batch = stack.wait(stack.submit([a_chat(f"r{number}", "hello " * 1000) for number in range(200)]))
    command = f"batchyard results {batch.id} | head -c 1"
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    key = {"BATCHYARD_URL": stack.url, "BATCHYARD_API_KEY": stack.key, "PATH": path}
    result = subprocess.run(["bash", "-c", command], capture_output=True, text=True, env={**os.environ, **key})
    assert (result.stdout, result.stderr) == ("{", "")


def test_the_local_stack_and_its_key_are_found_through_its_data_folder(stack: RunningStack, tmp_path: Path) -> None:
    result = batchyard("models", "--json", "--data", stack.data, folder=tmp_path)
    assert result.returncode == 0, result.stderr


def test_the_admin_key_is_never_sent_to_another_machine(stack: RunningStack, tmp_path: Path) -> None:
    result = batchyard("list", "--data", stack.data, folder=tmp_path, BATCHYARD_URL="http://192.0.2.1:8000")
    assert result.returncode == 2
    assert "no API key for http://192.0.2.1:8000" in result.stderr


def test_a_new_key_works_and_sees_its_own_project_only(stack: RunningStack, tmp_path: Path) -> None:
    created = batchyard("key", "create", "--project", "cli", "--data", stack.data, folder=tmp_path)
    assert created.returncode == 0, created.stderr
    key = created.stdout.strip()
    result = batchyard("list", "--json", folder=tmp_path, BATCHYARD_URL=stack.url, BATCHYARD_API_KEY=key)
    assert json.loads(result.stdout) == []


def test_keys_are_listed_without_their_secrets_and_revoked_by_id(stack: RunningStack, tmp_path: Path) -> None:
    def key(*arguments: str) -> Result:
        return batchyard("key", *arguments, "--data", stack.data, folder=tmp_path)

    new_key = json.loads(key("create", "--project", "revoked", "--json").stdout)
    assert new_key["key"].startswith(f"by-{new_key['id']}-")
    listed = key("list", "--project", "revoked")
    assert new_key["id"] in listed.stdout
    assert new_key["key"].rpartition("-")[2] not in listed.stdout
    revoked = key("revoke", new_key["id"])
    assert revoked.stdout == f"key {new_key['id']} of project revoked is revoked\n"
    recorded = cast(Any, stack.client.get("/audit", cast_to=object))["data"]
    did = [(event["type"], event["by"]["key_id"]) for event in recorded if event["data"]["id"] == new_key["id"]]
    assert did == [("key.revoked", "terminal"), ("key.created", "terminal")]
    again = json.loads(key("revoke", new_key["id"], "--json").stdout)
    assert again in json.loads(key("list", "--json").stdout)
    refused = batchyard("list", folder=tmp_path, BATCHYARD_URL=stack.url, BATCHYARD_API_KEY=new_key["key"])
    assert refused.returncode == 4
    assert "No API key found with id 'nope'" in key("revoke", "nope").stderr
    assert "a name has 1 to 128 characters" in key("create", "--project", "").stderr


def test_a_projects_result_cache_is_turned_on_and_off(tmp_path: Path) -> None:
    def project(*arguments: str) -> Result:
        return batchyard("project", *arguments, "--data", tmp_path, folder=tmp_path)

    batchyard("key", "create", "--project", "search", "--data", tmp_path, folder=tmp_path)
    result = project("set", "search", "--cache-bytes", "1000000")
    assert result.stdout == "search: tier none, max segments no limit, cache of 1000000 bytes\n"
    assert "1000000" in project("list").stdout
    assert json.loads(project("set", "search", "--no-cache", "--json").stdout)["cache_bytes"] is None


def test_the_model_of_every_request_is_replaced_and_other_lines_stay(tmp_path: Path) -> None:
    source, target = tmp_path / "in", tmp_path / "out"
    lines = [json.dumps(a_chat("a", "hello ü")), "", "no json", '{"body": 3}', json.dumps({"body": {}})]
    source.write_text("\n".join(lines) + "\n")
    requests.with_model(source, "mini", target)
    copied = target.read_text().splitlines()
    assert json.loads(copied[0]) == {**json.loads(lines[0]), "body": {**json.loads(lines[0])["body"], "model": "mini"}}
    assert copied[1:4] == lines[1:4]
    assert json.loads(copied[4]) == {"body": {"model": "mini"}}


@pytest.mark.parametrize(
    ("first", "endpoint"),
    [
        ('\n{"url": "/v1/embeddings"}', "/v1/embeddings"),
        ("no json", ENDPOINTS[0]),
        ("", ENDPOINTS[0]),
        ("[]", ENDPOINTS[0]),
    ],
)
def test_the_endpoint_is_that_of_the_first_line(tmp_path: Path, first: str, endpoint: str) -> None:
    (tmp_path / "in").write_text(first)
    assert requests.endpoint_of(tmp_path / "in") == endpoint


def test_steps_are_written_with_their_options() -> None:
    assert requests.steps(["parquet", "score:method=numeric"]) == [
        {"step": "parquet"},
        {"step": "score", "method": "numeric"},
    ]
    with pytest.raises(click.UsageError, match="KEY=VALUE"):
        requests.steps(["score:numeric"])
