"""`batchyard map`: files of rows in, the same rows with answers out; killed and called again."""

from __future__ import annotations

import csv
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from batchyard import map as batchyard_map
from batchyard.client.api import ApiClient
from tests.batchyard.cli.conftest import address, terminal_of
from tests.support.rows import until
from tests.support.stacks import RunningStack
from tests.support.terminal import Result

ROWS = 400
COMMAND = str(Path(sys.executable).parent / "batchyard")


@pytest.fixture
def terminal(stack: RunningStack, tmp_path: Path) -> Any:
    """Runs `batchyard map` against the shared stack, in a folder of the test."""

    def run(*arguments: str, code: int = 0) -> Result:
        ended: Result = terminal_of(stack, tmp_path)("map", *arguments)
        assert ended.returncode == code, ended.stderr
        return ended

    return run


def read_csv(file: Path) -> list[dict[str, str]]:
    with file.open(newline="") as text:
        return list(csv.DictReader(text))


def test_a_map_that_is_killed_and_called_again_has_every_row_in_order_and_computes_nothing_twice(
    stack: RunningStack, held: RunningStack, tmp_path: Path, calls: Path
) -> None:
    empty = set(range(7, ROWS, ROWS // 20))
    with (tmp_path / "in.csv").open("w", newline="") as text:
        writer = csv.writer(text)
        writer.writerow(["id", "text", "note"])
        writer.writerows([f"{n:05}", "NaN" if n in empty else f"word {n}, killed", 'a "note"\n'] for n in range(ROWS))
    arguments = ("in.csv", "-t", "Sentiment of: {text}", "-m", "logged", "-o", "out.csv", "--null-value", "NaN")
    before = {batch.id for batch in held.client.batches.list()}
    with subprocess.Popen([COMMAND, "map", *arguments], cwd=tmp_path, env={**os.environ, **address(held)}) as running:
        until(lambda: {batch.id for batch in held.client.batches.list()} > before)
        running.send_signal(signal.SIGSTOP)
        stack.limit_segments(tmp_path.name, None)
        until(lambda: calls.exists() and len(calls.read_text().splitlines()) > ROWS // 10)
        running.kill()
    assert running.returncode == -signal.SIGKILL, "it was killed in the middle"
    assert not (tmp_path / "out.csv").exists()

    again = terminal_of(held, tmp_path)("map", *arguments)
    assert again.returncode == 0, again.stderr
    assert f"{ROWS - len(empty)} of {ROWS} rows answered (simulated): out.csv" in again.stdout
    assert "taking up batch" in again.stderr
    assert f"{len(empty)} without an answer: column text is empty" in again.stderr
    rows = read_csv(tmp_path / "out.csv")
    assert list(rows[0]) == ["id", "text", "note", "answer", "error", "tokens"]
    assert [row["id"] for row in rows] == [f"{n:05}" for n in range(ROWS)]
    assert {row["note"] for row in rows} == {'a "note"\n'}
    for n, row in enumerate(rows):
        if n in empty:
            assert (row["text"], row["answer"], row["error"]) == ("NaN", "", "column text is empty")
        else:
            assert (row["answer"], row["error"]) == (f"Sentiment of: word {n}, killed", "")
    logged = calls.read_text().splitlines()
    assert len(logged) == len(set(logged)) == ROWS - len(empty)


def test_columns_of_parquet_keep_their_types_and_an_earlier_answer_its_name(terminal: Any, tmp_path: Path) -> None:
    pq.write_table(pa.table({"n": [1, 2, None], "answer": [0.5, None, 2.0]}), tmp_path / "in.parquet")
    refused = terminal("in.parquet", "-t", "{n}", "-m", "echo", "-o", "out.parquet", code=2)
    assert "has a column answer already; --prefix gives the new columns other names" in refused.stderr
    replaced = terminal("in.parquet", "-t", "{n}", "-m", "echo", "-o", "./in.parquet", code=2)
    assert "is the file that the rows come from; name another output" in replaced.stderr
    arguments = ("in.parquet", "-t", "{n}", "-m", "echo", "--prefix", "new_")
    terminal(*arguments, "-o", "out.parquet")
    assert pq.read_table(tmp_path / "out.parquet").to_pydict() == {
        "n": [1, 2, None],
        "answer": [0.5, None, 2.0],
        "new_answer": ["1", "2", None],
        "new_error": [None, None, "column n is empty"],
        "new_tokens": [2, 2, None],
    }
    terminal(*arguments, "-o", "out.jsonl.gz")


def test_a_filtered_frame_in_a_file_gives_the_prompts_of_the_frame_and_keeps_its_index(
    terminal: Any, stack: RunningStack, tmp_path: Path
) -> None:
    frame = pd.DataFrame({"title": ["a", "b", "c"], "text": ["x", "y", "z"]}).iloc[[0, 2, 1]].iloc[:2]
    frame.to_parquet(tmp_path / "in.parquet")
    assert "__index_level_0__" in pq.read_schema(tmp_path / "in.parquet").names
    first = terminal("in.parquet", "-t", "{*}", "-m", "echo", "-o", "out.parquet")
    written = pd.read_parquet(tmp_path / "out.parquet")
    assert [set(answer.splitlines()) for answer in written.answer] == [{"title: a", "text: x"}, {"title: c", "text: z"}]
    assert list(written.index) == [0, 2] and "taking up" not in first.stderr
    again = terminal("in.parquet", "-t", "{*}", "-m", "echo", "-o", "out.parquet")
    assert "(completed); --again computes all of it anew" in again.stderr
    terminal("in.parquet", "-t", "{__index_level_0__}", "-m", "echo", "-o", "named.parquet")
    assert list(pd.read_parquet(tmp_path / "named.parquet").answer) == ["0", "2"]
    server = ApiClient(stack.url, stack.key)
    assert list(batchyard_map(frame, "{*}", model="echo", server=server, progress=False)) == list(written.answer)


def test_ctrl_c_says_what_goes_on_and_how_to_end_it(held: RunningStack, tmp_path: Path) -> None:
    (tmp_path / "in.csv").write_text("text\na\n")
    arguments = ("in.csv", "-t", "{text}", "-m", "echo", "-o", "out.csv", "--again")
    command, environment = [COMMAND, "map", *arguments], {**os.environ, **address(held)}
    with subprocess.Popen(command, cwd=tmp_path, env=environment, stderr=subprocess.PIPE, text=True) as running:
        assert running.stderr is not None
        lines = [running.stderr.readline(), running.stderr.readline()]  # the simulated model, and progress
        running.send_signal(signal.SIGINT)
        complaint = "".join(lines) + running.communicate(timeout=60)[1]
    made, *_ = (batch.id for batch in held.client.batches.list())
    held.client.batches.cancel(made)
    assert running.returncode == 130 and "the same command without --again goes on with what has no answer" in complaint
    assert f"{made} goes on at {held.url}; `batchyard cancel {made}` ends it" in complaint


def test_a_request_that_failed_makes_the_command_exit_1_and_its_row_says_why(terminal: Any, tmp_path: Path) -> None:
    (tmp_path / "in.jsonl").write_text("".join(json.dumps({"n": {"of": n}}) + "\n" for n in range(6)))
    ended = terminal("in.jsonl", "-t", "fail {n}", "-m", "failing", "-o", "out.jsonl", "--json", code=1)
    report = json.loads(ended.stdout)
    assert report["rows"] == 6 and report["answered"] < 6 and report["simulated"] is True
    assert f"{6 - report['answered']} of 6 rows failed; the column error of out.jsonl tells why" in ended.stderr
    rows = [json.loads(line) for line in (tmp_path / "out.jsonl").read_text().splitlines()]
    assert [row["n"] for row in rows] == [{"of": n} for n in range(6)]
    assert sum(row["error"] is None for row in rows) == report["answered"]


def test_a_temperature_that_no_engine_takes_is_refused_before_anything_runs(terminal: Any, tmp_path: Path) -> None:
    (tmp_path / "in.csv").write_text("text\na\n")
    ended = terminal("in.csv", "-t", "{text}", "-m", "echo", "-o", "out.csv", "--temperature", "9", code=4)
    assert "of the rows is refused: line 1: body.temperature: 9.0 is not at most 2." in ended.stderr


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("in.csv", "-t", "{txt}", "-m", "echo", "-o", "out.csv"), "no column 'txt'; did you mean 'text'?"),
        (("empty.csv", "-t", "{text}", "-m", "echo", "-o", "out.csv"), "no column 'text': the table is empty"),
        (("in.csv", "-t", "{text", "-m", "echo", "-o", "out.csv"), "a '{' without '}' at character 1; close it"),
        (
            ("latin.csv", "-t", "{text}", "-m", "echo", "-o", "o.csv"),
            "line 2 is not UTF-8: unexpected end of data; save",
        ),
        (("in.csv", "-t", "{text}", "-m", "echo", "-o", "out.xls"), "out.xls: its name does not tell what it holds"),
        (("in.csv", "-t", "{text}", "-m", "echo", "-o", "no/out.csv"), "no/out.csv cannot be written"),
        (("in.csv", "-t", "{text}", "-m", "echo", "-o", "o.csv", "--schema", "in.csv"), "in.csv is no JSON schema"),
    ],
)
def test_what_cannot_be_mapped_is_one_line_with_the_remedy(
    terminal: Any, tmp_path: Path, arguments: tuple[str, ...], message: str
) -> None:
    (tmp_path / "in.csv").write_text("text\na\n")
    (tmp_path / "empty.csv").touch()
    (tmp_path / "latin.csv").write_bytes("text\ncaf\u00e9".encode("latin-1"))
    ended = terminal(*arguments, code=2)
    assert message in ended.stderr
    assert ended.stderr.count("\n") == 1


def test_a_cascade_writes_who_answered_each_row_and_how_sure_the_smaller_model_was(
    terminal: Any, tmp_path: Path
) -> None:
    rows = [{"n": n, "text": f"{n} <other {0.5 + n / 500}>yes</other> <echo 1>yes</echo>"} for n in range(200)]
    (tmp_path / "in.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    target = ["--agree", "0.8..0.9", "--by", "2100-01-01T00:00", "--confidence", "0.9"]
    options = ["--cascade", "other", *target, "-o", "out.csv"]
    ended = terminal("in.jsonl", "-t", "{text}", "-m", "echo", *options)
    written = read_csv(tmp_path / "out.csv")
    assert list(written[0]) == ["n", "text", "answer", "answered_by", "confidence", "error", "tokens"]
    by = [row["answered_by"] for row in written]
    assert by.count("other") > 100 and {row["answer"] for row in written} == {"yes"}
    assert "cascade: agree=0.9, done in " in ended.stderr
    assert f"cascade: other answered {by.count('other')} of 200 rows (simulated), agree=0.9" in ended.stderr
    assert "200 of 200 rows answered" in ended.stdout
