"""A batch on a running stack leaves more than OpenAI's files: marks, manifest, steps and progress.

The wire contract is tested in tests/contract.
"""

from __future__ import annotations

import hashlib
import json
import sys

import psutil
import pytest
import redis

from tests.support.rows import until
from tests.support.stacks import RunningStack, a_chat


def test_simulated_answers_say_so_everywhere(stack: RunningStack) -> None:
    batch = stack.wait(stack.submit([a_chat("a", "hello")]))
    assert batch.batchyard["simulated"] is True
    assert stack.lines(batch.output_file_id)[0]["response"]["body"]["simulated"] is True
    assert json.loads(stack.artifact(batch, "manifest.json"))["simulated"] is True


def test_the_manifest_names_input_models_outputs_and_totals(stack: RunningStack) -> None:
    content = json.dumps(a_chat("a", "What is 2 + 3?", model="nano", max_tokens=8, temperature=0)).encode()
    batch = stack.wait(stack.submit(content, extra_body={"post_process": [{"step": "parquet"}]}))
    assert batch.status == "completed", batch.to_json()
    manifest = json.loads(stack.artifact(batch, "manifest.json"))
    assert manifest["input"]["sha256"] == hashlib.sha256(content).hexdigest() == batch.batchyard["input_sha256"]
    outputs = {output["name"]: output for output in manifest["outputs"]}
    assert set(outputs) == {"output.jsonl", "results.parquet"}
    for name, output in outputs.items():
        stored = stack.artifact(batch, name)
        assert (hashlib.sha256(stored).hexdigest(), len(stored)) == (output["sha256"], output["bytes"])
    (engine,) = manifest["models"]["nano"]["engines"]
    assert engine["engine"] == "transformers"
    assert {"version", "torch", "model_sha256"} <= set(engine)
    assert manifest["usage"]["input_tokens"] == batch.usage.input_tokens > 0
    assert manifest["simulated"] is False
    assert manifest["status"] == "completed"


def test_score_and_parquet_run_and_a_step_is_one_artifact_or_more(stack: RunningStack) -> None:
    requests = [
        a_chat("a", "95", metadata={"task": "sum", "expected": "95"}),
        a_chat("b", "5", metadata={"task": "sum", "expected": "6"}),
    ]
    steps = [{"step": "score", "method": "numeric"}, {"step": "parquet"}]
    batch = stack.wait(stack.submit(requests, extra_body={"post_process": steps}))
    assert [(step["step"], step["status"]) for step in batch.batchyard["post_process"]] == [
        ("score", "completed"),
        ("parquet", "completed"),
    ]
    summary = json.loads(stack.artifact(batch, "score-summary.json"))
    assert summary["tasks"] == {"sum": {"total": 2, "correct": 1, "accuracy": 0.5}}
    assert stack.artifact(batch, "results.parquet").startswith(b"PAR1")


def test_our_own_model_answers_for_real(stack: RunningStack) -> None:
    batch = stack.wait(stack.submit([a_chat("a", "What is 2 + 3?", model="nano", max_tokens=8, temperature=0)]))
    (line,) = stack.lines(batch.output_file_id)
    body = line["response"]["body"]
    assert "simulated" not in body
    assert body["usage"]["completion_tokens"] > 0
    assert batch.batchyard["simulated"] is False


@pytest.mark.skipif(sys.platform != "linux", reason="other systems do not show what a process has mapped")
def test_torch_is_loaded_by_engines_alone(stack: RunningStack) -> None:
    def loads_torch(process: psutil.Process) -> bool:
        try:
            return any("libtorch" in mapped.path for mapped in process.memory_maps())
        except psutil.NoSuchProcess:  # Ray ends workers that it needs no more
            return False

    requests = [a_chat(f"{number}", f"What is 2 + {number}?", model="nano", max_tokens=1) for number in range(200)]
    assert stack.wait(stack.submit(requests)).status == "completed"
    worker = stack.processes("worker")[0]
    assert not loads_torch(worker), "that takes 1.4 s of the first batch, and 200 MiB"
    loading = [process.cmdline()[0] for process in stack.processes("ray") if loads_torch(process)]
    assert loading and all("EngineActor" in title for title in loading), loading


def test_progress_is_published_under_the_names_people_look_for(stack: RunningStack, redis_url: str) -> None:
    batch = stack.wait(stack.submit([a_chat("a", "hello")]))
    with redis.Redis.from_url(redis_url, decode_responses=True) as published:
        key = f"batch_job_status:{batch.id}"
        until(lambda: json.loads(published.get(key) or '{"status": null}')["status"] == "completed")
        until(lambda: published.hget("batchyard:concurrency", "echo") is not None)


@pytest.mark.exhaustive
def test_requests_that_take_too_long_are_error_lines(stack: RunningStack) -> None:
    batch = stack.wait(stack.submit([a_chat(f"{number}", "hello", model="late") for number in range(5)]))
    assert batch.status == "completed" and batch.output_file_id is None
    errors = [(line["custom_id"], line["error"]["code"]) for line in stack.lines(batch.error_file_id)]
    assert sorted(errors) == [(f"{number}", "request_timeout") for number in range(5)]
