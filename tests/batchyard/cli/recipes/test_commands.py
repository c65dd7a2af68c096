"""What a recipe's commands send, print, write and exit with, against a server that only remembers."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest

from batchyard.cli import background
from batchyard.cli.recipes import commands
from batchyard.client import tables
from tests.batchyard.cli.recipes.conftest import Terminal

COUNTS = {"total": 2, "completed": 2, "failed": 0, "stuck": 0, "expired": 0, "cancelled": 0}
RUN = ("debate", "rows.jsonl", "--model", "m")
CREATE = ("job", "create", *RUN)
URL = "https://hooks.example.com/jobs"


class Server:
    """The API client as these commands use it. A job has ended as soon as it is made."""

    url = "http://test"

    def __init__(self) -> None:
        self.files: list[bytes] = []
        self.made: list[dict[str, Any]] = []
        self.counts = COUNTS
        self.artifacts = ["results.jsonl", "metrics.json"]
        self.warnings: list[str] = []

    def models(self) -> list[dict[str, Any]]:
        return [{"id": "m"}]

    def upload(self, file: Path, purpose: str) -> str:
        assert purpose == "user_data"
        self.files.append(file.read_bytes())
        return f"file-{len(self.files)}"

    def call(self, method: str, path: str) -> None:
        assert method == "DELETE"
        self.files.pop()

    def create_job(self, *, dry_run: bool = False, **body: Any) -> dict[str, Any]:
        if dry_run:
            stages = [{"name": "argue", "endpoint": "/v1/chat/completions", "expected": 6, "least": 6, "most": 6}]
            unknown = ("eta_seconds", "eta_earliest_seconds", "eta_latest_seconds", "cost")
            fields: dict[str, Any] = dict.fromkeys(("same_as", "cells", "errors", *unknown))
            return {"object": "job.dry_run", "items": 2, "stages": stages, "requests": [], "warnings": []} | fields
        job = {
            **{"id": f"job_{len(self.made)}", "object": "job", "status": "completed", "recipe": body["recipe"]},
            **{"metadata": body.get("metadata"), "request_counts": self.counts, "errors": None, "body": body},
            "batchyard": {
                "artifacts": [{"name": name, "file_id": name} for name in self.artifacts],
                "warnings": [{"code": "w", "message": message} for message in self.warnings],
                **{"retry_of": None, "report": None, "metrics": None, "simulated": False, "stages": [], "held": None},
                **{"eta_seconds": None, "paused_at": None, "sla": "on_track", "due_at": 0},
                **{"engine_deaths": 0, "last_engine_death": None, "cost": None, "counters": {}},
            },
        }
        self.made.append(job)
        return job

    def jobs(self, *, recipe: str) -> Iterator[dict[str, Any]]:
        return (job for job in reversed(self.made) if job["recipe"] == recipe)

    def job(self, job_id: str) -> dict[str, Any]:
        return next(job for job in self.made if job["id"] == job_id)

    def download(self, file_id: str, to: Path) -> None:
        to.write_text(json.dumps({"content": file_id}) + "\n")

    def page(self, job_id: str) -> str:
        return ""


@pytest.fixture
def server(terminal: Terminal, monkeypatch: pytest.MonkeyPatch) -> Server:
    """The server of the commands, and a file of rows in the working folder."""
    Path("rows.jsonl").write_text('{"prompt": "a"}\n{"prompt": "b"}\n')
    made = Server()
    monkeypatch.setattr(background, "server", lambda *_: nullcontext(made))
    monkeypatch.setattr(commands, "connect", lambda data: made)
    return made


def test_a_job_is_created_of_the_file_and_all_that_the_command_says(terminal: Terminal, server: Server) -> None:
    flags = (
        "-n",
        "4",
        "--seed",
        "7",
        "--name",
        "first",
        "--window",
        "2h",
        "--metadata",
        "team=a=b",
        "--callback-url",
        URL,
    )
    assert terminal(*CREATE, *flags, "sampling.temperature=0.5") == (0, "job_0\n", "")
    (job,) = server.made
    body = job["body"]
    assert server.files == [Path("rows.jsonl").read_bytes()] and body["input_file_id"] == "file-1"
    assert (body["recipe"], body["seed"], body["name"], body["completion_window"]) == ("debate", 7, "first", "2h")
    assert (body["metadata"], body["callback_url"]) == ({"team": "a=b"}, URL)
    assert (body["options"]["n"], body["options"]["sampling"]["temperature"]) == (4, 0.5)


def test_an_experiment_is_created_of_its_file(terminal: Terminal, server: Server) -> None:
    Path("e.yaml").write_text("recipe: debate\ninput: rows.jsonl\nvariants: {plain: {}}\n")
    code, printed, error = terminal("job", "create", "experiment", "e.yaml")
    assert (code, printed) == (0, "job_0\n"), error
    assert server.made[0]["body"]["options"] == {"recipe": "debate", "variants": {"plain": {}}}


def test_a_dry_run_makes_nothing(terminal: Terminal, server: Server) -> None:
    code, printed, _ = terminal(*CREATE, "--dry-run")
    assert (code, server.made) == (0, []) and "2" in printed
    assert json.loads(terminal(*CREATE, "--dry-run", "--json")[1])["object"] == "job.dry_run"


@pytest.mark.parametrize("pair", ["team", "=a"])
def test_metadata_that_cannot_be_meant_is_refused_before_anything_is_sent(
    pair: str, terminal: Terminal, server: Server
) -> None:
    code, _, complaint = terminal(*CREATE, "--metadata", pair)
    assert (code, server.files) == (2, []) and "write KEY=VALUE" in complaint


def test_warnings_stand_beside_the_result_for_scripts(terminal: Terminal, server: Server) -> None:
    server.warnings = ["its models\nare slow"]
    code, printed, complaint = terminal(*CREATE, "--json")
    assert (code, json.loads(printed)["id"]) == (0, "job_0")
    assert complaint == "batchyard: warning: its models are slow\n"


@pytest.mark.parametrize("command", [RUN, (*CREATE, "--wait")])
@pytest.mark.parametrize(("state", "words"), [("failed", "failed"), ("stuck", "are stuck")])
def test_items_that_failed_or_are_stuck_are_an_exit_code(
    command: tuple[str, ...], state: str, words: str, terminal: Terminal, server: Server
) -> None:
    server.counts = COUNTS | {"completed": 1, state: 1}
    code, _, complaint = terminal(*command)
    assert code == 1 and f"1 of 2 items {words}; `batchyard job items job_0 --state {state}` tells why" in complaint


def test_an_output_of_another_kind_is_refused_before_anything_is_sent(terminal: Terminal, server: Server) -> None:
    code, _, complaint = terminal(*RUN, "-o", "out.md")
    assert (code, server.files) == (2, [])
    assert complaint == "batchyard: out.md would hold results.jsonl as it is: name it out.jsonl\n"


@pytest.mark.parametrize("name", ["out.parquet", "out.csv", "out.jsonl.gz", "out.ndjson"])
def test_a_result_is_written_in_the_format_that_the_outputs_name_tells(
    name: str, terminal: Terminal, server: Server
) -> None:
    assert terminal(*RUN, "-o", name)[0] == 0
    rows = tables.read(Path(name))
    assert (rows if isinstance(rows, list) else rows.to_pylist()) == [{"content": "results.jsonl"}]


def test_the_same_command_takes_up_its_job_and_another_one_makes_another(terminal: Terminal, server: Server) -> None:
    first = terminal(*RUN)
    assert first[0] == 0, first
    assert "taking up job job_0 (completed); --again computes all of it anew" in terminal(*RUN)[2]
    terminal(*RUN, "--window", "2h", "--name", "other words for the same work", "--callback-url", URL)
    assert len(server.made) == 1
    changes: tuple[Callable[[], Any], ...] = (
        lambda: terminal(*RUN, "--again"),
        lambda: terminal(*RUN, "-n", "4"),
        lambda: terminal(*RUN, "--seed", "1"),
        lambda: Path("rows.jsonl").write_text('{"prompt": "c"}\n') and terminal(*RUN),
    )
    for number, change in enumerate(changes, 2):
        change()
        assert len(server.made) == number
    Path("rows.txt").write_bytes(Path("rows.jsonl").read_bytes())
    terminal("debate", "rows.txt", "--model", "m")
    assert len(server.made) == len(changes) + 2, "the same bytes as another format are other rows"


def test_the_main_artifact_goes_to_the_output_and_all_into_the_folder(terminal: Terminal, server: Server) -> None:
    code, printed, complaint = terminal(*RUN, "-o", "out.jsonl", "--artifacts", "all/of/it")
    assert code == 0 and "batchyard:" not in complaint
    assert printed.splitlines()[-2:] == ["Written: out.jsonl", "Written: all/of/it"]
    assert Path("out.jsonl").read_text() == '{"content": "results.jsonl"}\n'
    assert {path.name for path in Path("all/of/it").iterdir()} == set(server.artifacts)


def test_an_output_that_is_not_written_is_said(terminal: Terminal, server: Server) -> None:
    server.artifacts = []
    _, printed, complaint = terminal(*RUN, "-o", "out.jsonl")
    assert "out.jsonl is not written: the job has no results.jsonl" in complaint and "Written" not in printed
    assert not Path("out.jsonl").exists()


def test_an_artifact_with_a_path_for_a_name_stays_in_the_folder(terminal: Terminal, server: Server) -> None:
    server.artifacts = ["../../results.jsonl"]
    assert terminal(*RUN, "--artifacts", "all")[0] == 0
    assert [str(path) for path in Path().rglob("results.jsonl")] == ["all/results.jsonl"]


def test_the_table_of_options_shows_what_has_to_be_set_yet(terminal: Terminal) -> None:
    _, printed, _ = terminal("config", "debate", "-n", "6")
    rows = {line.split()[0]: line.split()[1:] for line in printed.splitlines()}
    assert rows["n"] == ["6", "--n"]
    assert rows["model"] == ["-", "has", "to", "be", "set"]
