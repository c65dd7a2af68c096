"""Merging keeps every line, once, in input order, whatever order the answers came in."""

from __future__ import annotations

import io
import json
import os
import random
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from batchyard.errors import BatchyardError
from store.artifacts import Artifacts
from store.formats import rows as rows_file
from store.formats.plan import PlanWriter, SegmentSize, requests
from tasks.finishing import result_files, spool
from tests.support.rows_of_files import of_files


@pytest.fixture(autouse=True)
def small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    """A small batch is written in many pieces here."""
    monkeypatch.setattr(spool, "READ_BYTES", 200)


Plans = list[tuple[str, int]]


def a_plan(artifacts: Artifacts, lines: list[int], segment_requests: int = 3) -> Plans:
    """A plan of these lines, as its row groups."""
    with artifacts.create() as file:
        plan = PlanWriter(file, {"echo": SegmentSize(segment_requests)})
        for line in lines:
            plan.add("echo", line, f"id-{line}", json.dumps({"line": line}).encode())
        plan.close()
    return [(file.sha256, row_group) for row_group in range(len(plan.segments))]


def a_part(artifacts: Artifacts, answers: list[tuple[int, bool]]) -> str:
    table = pa.table(
        {
            "line": pa.array([line for line, _ in answers], pa.int64()),
            "ok": [ok for _, ok in answers],
            "answer": [json.dumps({"custom_id": f"id-{line}", "line": line}) for line, _ in answers],
            "seconds": pa.nulls(len(answers), pa.float64()),
        }
    )
    with artifacts.create() as file:
        pq.write_table(table, file)
    return file.sha256


def merged(
    artifacts: Artifacts, plans: Plans, chunks: list[str], never_run: tuple[str, str] | None = None
) -> tuple[result_files.Merged, list[dict[str, object]], list[dict[str, object]]]:
    planned = {line for table in requests(artifacts, plans, ["line"]) for line in table["line"].to_pylist()}
    numbers = range(1, max(planned, default=0) + 1)
    source = b"".join(b'{"custom_id": "id-%d"}\n' % line if line in planned else b"\n" for line in numbers)
    create = artifacts.create
    with create() as output, create() as errors, create() as seconds, create() as rows:
        input_sha256 = artifacts.put(source)
        summary = result_files.merge(artifacts, plans, chunks, never_run, input_sha256, output, errors, seconds, rows)
    files = [io.BytesIO(artifacts.read(file.sha256)) for file in (output, errors)]
    assert rows_file.read(artifacts, rows.sha256) == of_files(io.BytesIO(source), *files)
    read = [[json.loads(line) for line in artifacts.read(file.sha256).splitlines()] for file in (output, errors)]
    return summary, read[0], read[1]


@given(
    lines=st.lists(st.integers(1, 5000), unique=True, min_size=1, max_size=80),
    seed=st.integers(0, 2**32),
    answered=st.floats(0, 1),
)
def test_every_line_is_in_one_file_once_in_input_order(
    tmp_path_factory: pytest.TempPathFactory, lines: list[int], seed: int, answered: float
) -> None:
    artifacts = Artifacts(f"file://{tmp_path_factory.mktemp('artifacts')}")
    chance = random.Random(seed)
    planned = chance.sample(lines, len(lines))
    plan = a_plan(artifacts, planned)
    answers = [(line, chance.random() < 0.7) for line in planned if chance.random() < answered]
    chance.shuffle(answers)
    cuts = sorted(chance.choices(range(len(answers) + 1), k=3))
    chunks = [
        a_part(artifacts, answers[start:end]) for start, end in zip([0, *cuts], [*cuts, len(answers)], strict=True)
    ]
    summary, output, errors = merged(artifacts, plan, chunks, ("batch_expired", "too late"))
    good = sorted(line for line, ok in answers if ok)
    assert [line["custom_id"] for line in output] == [f"id-{line}" for line in good]
    assert [line["custom_id"] for line in errors] == [f"id-{line}" for line in sorted(set(lines) - set(good))]
    assert summary.completed + summary.failed + summary.never_run == len(lines)
    assert summary.never_run == len(lines) - len(answers)
    expired = [line for line in errors if line.get("error")]
    assert all(line["response"] is None and line["error"]["code"] == "batch_expired" for line in expired)  # type: ignore[index]
    assert len(expired) == summary.never_run


def test_merging_twice_gives_the_same_bytes(artifacts: Artifacts) -> None:
    plan = a_plan(artifacts, [1, 2, 3, 4])
    chunks = [a_part(artifacts, [(4, True), (1, False)]), a_part(artifacts, [(2, True)])]
    first = merged(artifacts, plan, chunks, ("batch_cancelled", "stopped"))
    assert merged(artifacts, plan, chunks, ("batch_cancelled", "stopped")) == first


def test_a_missing_answer_is_a_fault_and_never_filled_in(artifacts: Artifacts) -> None:
    plan = a_plan(artifacts, [1, 2])
    with pytest.raises(BatchyardError, match="2 requests have 1 answers; lines without an answer: 2"):
        merged(artifacts, plan, [a_part(artifacts, [(1, True)])])


def test_a_line_answered_twice_is_a_fault(artifacts: Artifacts) -> None:
    plan = a_plan(artifacts, [1, 2])
    with pytest.raises(BatchyardError, match="2 requests have 3 answers; lines with two answers: 1"):
        merged(artifacts, plan, [a_part(artifacts, [(1, True), (2, True)]), a_part(artifacts, [(1, True)])])


def test_a_batch_that_was_never_begun_has_only_error_lines(artifacts: Artifacts) -> None:
    summary, output, errors = merged(artifacts, a_plan(artifacts, [2, 1]), [], ("batch_cancelled", "stopped"))
    assert (summary.never_run, output, [line["custom_id"] for line in errors]) == (2, [], ["id-1", "id-2"])


def test_merging_leaves_no_files_behind(artifacts: Artifacts, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    merged(artifacts, a_plan(artifacts, [1]), [a_part(artifacts, [(1, True)])])
    assert not list(tmp_path.glob("batchyard-merge-*"))


@pytest.mark.long
def test_memory_does_not_grow_with_the_answers() -> None:
    root = Path(__file__).parents[3]
    command = [sys.executable, str(root / "benchmarks/memory.py"), "--merge", "1500", "200000"]
    report = json.loads(subprocess.check_output(command, env={**os.environ, "PYTHONPATH": str(root)}))
    assert report["output_mb"] == 300
    assert report["growth_mib"] < 150
