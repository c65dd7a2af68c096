"""Characters that `str.splitlines` takes for the end of a line are text like any other, wherever text goes."""

from __future__ import annotations

import csv
import io
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import httpx
import pyarrow.parquet as pq
import pytest

from tests.support.stacks import ROOT, RunningStack, a_chat

sys.path.append(str(ROOT / "benchmarks"))
import contenders

TEXT = "one\u2028two\u2029three\x85four\x1cfive\x1dsix\x0bseven\x0ceight"


def answers(lines: list[dict[str, Any]]) -> list[str]:
    return [line["response"]["body"]["choices"][0]["message"]["content"] for line in lines]


def ended(stack: RunningStack, started: httpx.Response) -> Any:
    assert started.status_code == 202, started.text
    return stack.wait(stack.client.batches.retrieve(started.json()["batch_id"]))


@pytest.fixture(scope="module")
def batch(stack: RunningStack) -> Any:
    """A batch of one request with a line separator of each kind, raw in the file as orjson writes it, and its steps."""
    request = json.dumps(a_chat(TEXT, TEXT, metadata={"expected": TEXT, "task": TEXT}), ensure_ascii=False)
    steps = [{"step": "score"}, {"step": "parquet"}]
    batch = stack.wait(stack.submit(f"{request}\n", extra_body={"post_process": steps}))
    assert batch.status == "completed", batch.to_json()
    return batch


def test_the_output_file_and_the_answers_so_far_have_one_line(
    stack: RunningStack, http: httpx.Client, batch: Any, tmp_path: Path
) -> None:
    assert answers(stack.lines(batch.output_file_id)) == [TEXT]
    results = http.get(f"/v1/batches/{batch.id}/results").content
    assert answers([json.loads(line) for line in results.split(b"\n") if line]) == [TEXT]
    file = tmp_path / "answers.jsonl"
    file.write_bytes(results)
    assert answers(contenders.read(file)) == [TEXT]


def test_steps_score_and_store_the_whole_text(stack: RunningStack, batch: Any) -> None:
    summary = json.loads(stack.artifact(batch, "score-summary.json"))
    assert summary["tasks"][TEXT] == {"total": 1, "correct": 1, "accuracy": 1.0}
    (row,) = pq.read_table(io.BytesIO(stack.artifact(batch, "results.parquet"))).to_pylist()
    assert (row["custom_id"], row["text"]) == (TEXT, TEXT)


def test_the_command_line_writes_the_whole_text(stack: RunningStack, batch: Any, tmp_path: Path) -> None:
    command = [str(Path(sys.executable).parent / "batchyard"), "results", batch.id]
    environment = {**os.environ, "BATCHYARD_URL": stack.url, "BATCHYARD_API_KEY": stack.key}
    printed = subprocess.run(command, env=environment, cwd=tmp_path, capture_output=True, check=True).stdout
    subprocess.run([*command, "-o", "out.jsonl"], env=environment, cwd=tmp_path, capture_output=True, check=True)
    for content in (printed, (tmp_path / "out.jsonl").read_bytes()):
        assert answers([json.loads(line) for line in content.split(b"\n") if line]) == [TEXT]


def test_a_failed_request_with_them_is_sent_again_whole(stack: RunningStack, http: httpx.Client) -> None:
    requests = [a_chat(f"{TEXT}{number}", TEXT, model="failing") for number in range(3)]
    first = stack.wait(stack.submit("".join(json.dumps(one, ensure_ascii=False) + "\n" for one in requests)))
    assert first.request_counts.failed == 1
    again = http.post(f"/v1/batches/{first.id}/retry").json()
    lines = stack.lines(again["input_file_id"])
    assert [line["body"]["messages"][0]["content"] for line in lines] == [TEXT]


@pytest.mark.parametrize("name", ["a.txt", "a.csv", "a.jsonl"])
def test_a_file_of_prompts_has_one_prompt_a_line(stack: RunningStack, http: httpx.Client, name: str) -> None:
    table = io.StringIO()
    csv.writer(table).writerows([["prompt"], [TEXT], ["end"]])
    lines = "".join(json.dumps(text, ensure_ascii=False) + "\n" for text in (TEXT, "end"))
    content = {"a.txt": f"{TEXT}\nend\n", "a.csv": table.getvalue(), "a.jsonl": lines}[name]
    batch = ended(stack, http.post("/start", data={"model": "echo"}, files={"file": (name, content.encode())}))
    assert sorted(answers(stack.lines(batch.output_file_id))) == sorted([TEXT, "end"])


def test_typed_prompts_end_with_the_line_only(stack: RunningStack, http: httpx.Client) -> None:
    batch = ended(stack, http.post("/start", data={"model": "echo", "prompts": f"{TEXT}\r\n\nend\rlast"}))
    assert sorted(answers(stack.lines(batch.output_file_id))) == sorted([TEXT, "end", "last"])
    requests = stack.lines(batch.input_file_id)
    assert [line["custom_id"] for line in requests] == ["prompt-1", "prompt-3", "prompt-4"]


def test_the_pages_show_the_whole_text(stack: RunningStack, batch: Any) -> None:
    with httpx.Client(base_url=stack.url, follow_redirects=True, timeout=60) as browser:
        browser.post("/sign-in", data={"key": stack.key})
        page = browser.get(f"/batches/{batch.id}")
        assert page.status_code == 200 and "".join(TEXT.split()) in "".join(page.text.split())
