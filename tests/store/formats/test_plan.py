"""The plan brings together what begins alike, runs what is the same once, and loses nothing."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from batchyard.models import ModelSpec
from batchyard.settings import Settings
from inference.requests import ordering
from store.artifacts import Artifacts
from store.formats import plan
from store.formats.plan import PlanWriter, SegmentSize
from tasks.execution.deduplication import Duplicates
from tasks.intake.validation import ValidationReport, Validator

CHAT = "/v1/chat/completions"
MODELS = {name: ModelSpec(name=name, engine="echo") for name in ("echo", "other")}


def a_line(custom_id: str, text: str, **body: Any) -> dict[str, Any]:
    body = {"model": "echo", "messages": [{"role": "user", "content": text}], **body}
    return {"custom_id": custom_id, "method": "POST", "url": CHAT, "body": body}


def planned(artifacts: Artifacts, lines: list[dict[str, Any]], size: int = 1000) -> list[pa.Table]:
    """The segments of a batch."""
    report = ValidationReport()
    with artifacts.create() as file:
        writer = PlanWriter(file, dict.fromkeys(MODELS, SegmentSize(size)), artifacts)
        source = io.BytesIO(b"\n".join(json.dumps(line).encode() for line in lines))
        Validator(MODELS, CHAT, Settings(max_requests=100_000)).run(source, writer, report)
        writer.close()
    assert not report.errors
    with artifacts.open(file.sha256) as content:
        parquet = pq.ParquetFile(content)
        return [parquet.read_row_group(number) for number in range(parquet.num_row_groups)]


@given(
    requests=st.lists(
        st.tuples(st.sampled_from(sorted(MODELS)), st.sampled_from("abc"), st.sampled_from([0, 1, None])),
        min_size=1,
        max_size=40,
    ),
    size=st.integers(1, 5),
)
def test_what_is_the_same_runs_once_in_a_batch_and_every_line_is_there_once(
    tmp_path_factory: pytest.TempPathFactory, requests: list[tuple[str, str, int | None]], size: int
) -> None:
    artifacts = Artifacts(f"file://{tmp_path_factory.mktemp('artifacts')}")
    lines = [
        a_line(f"id-{number}", text, model=model, temperature=temperature)
        for number, (model, text, temperature) in enumerate(requests)
    ]
    by_line: dict[int, dict[str, Any]] = {}
    runs: list[tuple[str, str, int | None]] = []
    for segment in planned(artifacts, lines, size):
        rows = segment.to_pylist()
        in_segment = {row["line"]: row for row in rows}
        assert sum(row["same_as"] is None for row in rows) <= size
        assert not in_segment.keys() & by_line.keys()
        by_line |= in_segment
        for row in rows:
            leader = in_segment[row["same_as"]] if row["same_as"] else row
            assert leader["same_as"] is None
            assert json.loads(leader["body"]) == lines[row["line"] - 1]["body"]
            assert row["custom_id"] == lines[row["line"] - 1]["custom_id"]
        runs += [requests[row["line"] - 1] for row in rows if row["same_as"] is None]
    assert sorted(by_line) == list(range(1, len(lines) + 1))
    certain = [run for run in runs if run[2] == 0]
    assert len(certain) == len(set(certain)), "the same request ran twice"
    assert len([run for run in runs if run[2] != 0]) == len([run for run in requests if run[2] != 0])


def test_one_answer_is_copied_only_so_often(artifacts: Artifacts, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plan, "MAX_DUPLICATES", 3)
    segments = planned(artifacts, [a_line(f"{n}", "the same", temperature=0) for n in range(9)], size=10)
    assert pa.concat_tables(segments)["same_as"].to_pylist() == [None, 1, 1, 1, None, 5, 5, 5, None]


def test_requests_run_in_the_order_of_their_prefixes_over_the_whole_file(artifacts: Artifacts) -> None:
    documents = ["first " * 50, "other " * 50, "third " * 50]
    lines = [a_line(f"{n}", documents[n % 3] + f"question {n}") for n in range(30)]
    segments = planned(artifacts, lines, size=10)
    keys = [ordering.order_key(CHAT, json.loads(body)) for rows in segments for body in rows["body"].to_pylist()]
    assert keys == sorted(keys)
    assert [len({line % 3 for line in rows["line"].to_pylist()}) for rows in segments] == [1, 1, 1]


def test_only_the_last_segment_begins_with_its_long_requests(artifacts: Artifacts) -> None:
    lines = [a_line(f"{n}", f"{n}", max_tokens=1000 if n % 10 == 0 else 10) for n in range(40)]
    *first, last = [
        [json.loads(body)["max_tokens"] for body in rows["body"].to_pylist()] for rows in planned(artifacts, lines, 20)
    ]
    assert last == sorted(last, reverse=True)
    assert all(limits != sorted(limits, reverse=True) for limits in first)


def test_segments_are_of_one_size(artifacts: Artifacts) -> None:
    lines = [a_line(f"{n}", f"{n}") for n in range(21)]
    assert [rows.num_rows for rows in planned(artifacts, lines, size=10)] == [7, 7, 7]


def test_a_copy_gets_the_answer_under_its_own_name_and_says_whose_it_is(tmp_path: Path) -> None:
    lines = [a_line(name, "a", temperature=0) for name in "abc"] + [a_line("d", "b", temperature=0)]
    (rows,) = planned(Artifacts(f"file://{tmp_path}"), lines)
    ran = [row for row in rows.to_pylist() if row["same_as"] is None]
    output = {
        row["custom_id"]: json.dumps(
            {"custom_id": row["custom_id"], "response": {"status_code": 200, "body": {"x": 1}}, "error": None}
        )
        for row in ran
    }
    answers = pa.table(
        {
            "line": [row["line"] for row in ran],
            "ok": [True] * len(ran),
            "answer": list(output.values()),
            "output_tokens": [5] * len(ran),
        }
    )
    (table,) = Duplicates(rows).join(answers)
    joined = table.to_pylist()
    shared = {json.loads(row["answer"])["custom_id"]: row for row in joined if row["shared"]}
    assert {row["line"] for row in joined} == {1, 2, 3, 4}
    assert set(shared) == {"b", "c"}
    assert all(row["output_tokens"] == 5 for row in shared.values())
    for row in shared.values():
        assert json.loads(row["answer"])["response"]["body"] == {"x": 1, "batchyard": {"same_as": "a"}}
