"""A server that misbehaves, behind engine openai: what becomes of each request, in files, jobs and map."""

from __future__ import annotations

import io
import json
import time
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

import batchyard
from tests.support import terminal
from tests.support.misbehaving import MODEL, QUOTA, MisbehavingServer
from tests.support.stacks import RunningStack, a_chat


@pytest.fixture(autouse=True)
def environment(faulty: RunningStack, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BATCHYARD_URL", faulty.url)
    monkeypatch.setenv("BATCHYARD_API_KEY", faulty.key)


def requests(*texts: str, **body: Any) -> list[dict[str, Any]]:
    return [a_chat(text, text, model="fake", **body) for text in texts]


def test_what_is_no_answer_is_an_error_line_and_harms_no_other(faulty: RunningStack) -> None:
    texts = ["EMPTY please", "NULL please", "BROKEN please", "THINK about it", *map(str, range(9))]
    batch = faulty.wait(faulty.submit(requests(*texts), extra_body={"post_process": [{"step": "parquet"}]}))
    errors = {line["custom_id"]: line for line in faulty.lines(batch.error_file_id)}
    assert sorted(errors) == ["BROKEN please", "EMPTY please", "NULL please"]
    assert errors["BROKEN please"]["response"]["body"]["error"]["message"] == "Upstream error"
    assert "choices is an empty list" in errors["EMPTY please"]["error"]["message"]
    answers = {line["custom_id"]: line["response"]["body"] for line in faulty.lines(batch.output_file_id)}
    assert len(answers) == 10 and {body["model"] for body in answers.values()} == {"fake"}
    assert {body["batchyard"]["served_model"] for body in answers.values()} == {MODEL}
    assert answers["THINK about it"]["choices"][0]["message"]["reasoning_content"] == "let me see, first I"
    assert batch.usage.output_tokens_details.reasoning_tokens == 600
    manifest = json.loads(faulty.artifact(batch, "manifest.json"))
    assert [engine["served_model"] for engine in manifest["models"]["fake"]["engines"]] == [MODEL]
    table = pq.read_table(io.BytesIO(faulty.artifact(batch, "results.parquet"))).to_pylist()
    assert {row["custom_id"]: row["error_code"] for row in table if row["text"] is None} == {
        "BROKEN please": "invalid_request_error",
        "EMPTY please": "invalid_response",
        "NULL please": "invalid_response",
        "THINK about it": "reasoning_only",
    }


def test_a_rollout_says_why_samples_have_no_text(faulty: RunningStack) -> None:
    items = [{"prompt": text, "answer": "0"} for text in ("THINK about 0", "NULL please", "0", "THINK about 1")]
    job: Any = faulty.client.post(
        "/jobs",
        cast_to=object,
        body={
            "recipe": "rollout",
            "options": {"model": "fake", "n": 1, "reward": "exact", "ground_truth": "answer"},
            "input": {"items": items},
        },
    )
    job = faulty.wait_for_job(job)
    assert job["status"] == "completed" and job["batchyard"]["metrics"]["unanswered"] == 3
    (file_id,) = (one["file_id"] for one in job["batchyard"]["artifacts"] if one["name"] == "samples.jsonl")
    lines = faulty.lines(file_id)
    assert [(line["output"], (line["error"] or {}).get("code")) for line in lines] == [
        (None, "reasoning_only"),
        (None, "invalid_response"),
        ("0", None),
        (None, "reasoning_only"),
    ]
    assert [line["reasoning"] for line in lines] == ["let me see, first I", None, None, "let me see, first I"]


def test_map_asks_again_what_failed_for_a_passing_reason_and_only_that(
    faulty: RunningStack, misbehaving: MisbehavingServer
) -> None:
    rows = [{"text": f"{word} row {number}"} for word in ("FLAKY", "steady") for number in range(3)]
    first = batchyard.map(rows, "{text}", model="fake", progress=False)
    assert first == [None] * 3 + [row["text"] for row in rows[3:]]
    assert batchyard.map(rows, "{text}", model="fake", progress=False) == [row["text"] for row in rows]
    assert batchyard.map(rows, "{text}", model="fake", progress=False) == [row["text"] for row in rows]
    assert [misbehaving.attempts[row["text"]] for row in rows] == [6, 6, 6, 1, 1, 1]


@pytest.mark.exhaustive
def test_a_rollout_started_again_asks_only_for_what_failed_for_a_passing_reason(
    faulty: RunningStack, misbehaving: MisbehavingServer, tmp_path: Path
) -> None:
    texts = ["FLAKY prompt 0", "FLAKY prompt 1", "steady prompt", "BROKEN prompt"]
    file, output = tmp_path / "in.jsonl", tmp_path / "out.parquet"
    file.write_text("".join(json.dumps({"prompt": text, "answer": text}) + "\n" for text in texts))
    environment = {"BATCHYARD_URL": faulty.url, "BATCHYARD_API_KEY": faulty.key}

    def rollout() -> tuple[str, list[list[str]]]:
        options = ("model=fake", "n=1", "retries=0", "reward=exact", "ground_truth=answer")
        result = terminal.batchyard("rollout", file, *options, "-o", output, folder=tmp_path, **environment)
        return result.stderr, [row["responses"] for row in pq.read_table(output).to_pylist()]

    _, first = rollout()
    assert first == [[], [], ["steady prompt"], []]
    stderr, second = rollout()
    assert "lacks 3 answers: a new job takes what it has and tries the rest again; --again" in stderr
    assert second == [*([text] for text in texts[:3]), []]
    stderr, third = rollout()
    assert "taking up job job_" in stderr and third == second, "what is refused would be refused again"
    assert [misbehaving.attempts[text] for text in texts] == [6, 6, 1, 2]


@pytest.mark.exhaustive
def test_run_again_asks_only_for_what_failed_for_a_passing_reason_and_writes_all_in_input_order(
    faulty: RunningStack, misbehaving: MisbehavingServer, tmp_path: Path
) -> None:
    texts = ["steady run 0", "FLAKY run 0", "BROKEN run", "FLAKY run 1", "steady run 1"]
    file, output, errors = (tmp_path / name for name in ("in.jsonl", "out.jsonl", "errors.jsonl"))
    file.write_text("".join(json.dumps(line) + "\n" for line in requests(*texts)))

    def run() -> tuple[Any, list[list[str]]]:
        result = terminal.batchyard(
            *("run", "-i", file, "-o", output, "--errors", errors),
            folder=tmp_path,
            BATCHYARD_URL=faulty.url,
            BATCHYARD_API_KEY=faulty.key,
        )
        lines = [path.read_text().splitlines() for path in (output, errors)]
        return result, [[json.loads(line)["custom_id"] for line in written] for written in lines]

    first, written = run()
    assert (first.returncode, written) == (1, [[texts[0], texts[4]], texts[1:4]]), first.stderr
    second, written = run()
    assert (second.returncode, written) == (1, [[*texts[:2], *texts[3:]], [texts[2]]]), second.stderr
    assert "lacks 3 answers" in second.stderr and "asks again for what may be answered now" in second.stderr
    assert "4 of 5 requests answered" in second.stdout and "1 of 5 requests failed" in second.stderr
    third, rewritten = run()
    assert "taking up batch batch_" in third.stderr and rewritten == written
    assert [misbehaving.attempts[text] for text in texts] == [1, 6, 1, 6, 1], "what is refused would be refused again"
    faulty.client.files.delete(faulty.client.batches.list(limit=1).data[0].output_file_id or "")
    fourth, rewritten = run()
    assert "all of it is computed anew" in fourth.stderr and rewritten == written


def test_a_used_up_quota_holds_the_batch_with_the_servers_words_until_there_is_more(
    faulty: RunningStack, misbehaving: MisbehavingServer
) -> None:
    batch = faulty.submit(requests(*(f"QUOTA number {number}" for number in range(4))))
    held = faulty.wait(batch, until=lambda batch: batch.batchyard["held"] is not None, seconds=60)
    assert QUOTA in held.batchyard["held"]["reason"]
    assert held.request_counts.failed == 0
    misbehaving.has_quota = True
    began = time.monotonic()
    batch = faulty.wait(batch, seconds=120)
    assert (batch.request_counts.completed, batch.request_counts.failed) == (4, 0), time.monotonic() - began
