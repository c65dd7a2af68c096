"""What goes wrong has one line and an exit status of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from batchyard.cli import main
from tests.support.stacks import RunningStack, a_chat
from tests.support.terminal import batchyard


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


def test_a_refusal_for_want_of_a_model_names_the_flag(terminal: Any, tmp_path: Path) -> None:
    (tmp_path / "in.txt").write_text("What is 2 + 3?\n")
    result = terminal("submit", "in.txt")
    assert result.returncode == 4
    assert result.stderr.startswith("batchyard: Missing required parameter: 'model'; served here: ")
    assert result.stderr.endswith("; name one with --model\n")


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


def test_a_reader_that_has_enough_ends_a_command_without_a_word(stack: RunningStack) -> None:
    batch = stack.wait(stack.submit([a_chat(f"r{number}", "hello " * 1000) for number in range(200)]))
    command = f"batchyard results {batch.id} | head -c 1"
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    key = {"BATCHYARD_URL": stack.url, "BATCHYARD_API_KEY": stack.key, "PATH": path}
    result = subprocess.run(["bash", "-c", command], capture_output=True, text=True, env={**os.environ, **key})
    assert (result.stdout, result.stderr) == ("{", "")
