"""What a client relies on, through the unmodified `openai` package and plain HTTP, against a running stack."""

from __future__ import annotations

import hashlib
import json
import urllib.error
import urllib.request
from typing import Any

import openai
import pytest
from stacks import RunningStack, a_chat


def refused(call: Any, status: int) -> dict[str, Any]:
    """The error object that a call is answered with."""
    with pytest.raises(openai.APIStatusError) as caught:
        call()
    assert caught.value.status_code == status, caught.value
    error = caught.value.response.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    return dict(error)


def raw(
    stack: RunningStack, method: str, path: str, body: bytes | None = None, key: str | None = ""
) -> tuple[int, Any]:
    headers = {"Content-Type": "application/json"}
    if key is not None:
        headers["Authorization"] = f"Bearer {key or stack.key}"
    request = urllib.request.Request(stack.url + path, data=body, method=method, headers=headers)
    try:
        with urllib.request.urlopen(request) as answer:
            return answer.status, (answer.headers, answer.read())
    except urllib.error.HTTPError as error:
        return error.code, (error.headers, error.read())


def test_a_batch_is_uploaded_made_polled_and_downloaded(stack: RunningStack) -> None:
    batch = stack.submit([a_chat(f"id-{number}", f"hello {number}") for number in range(300)], metadata={"team": "a"})
    assert (batch.status, batch.object, batch.metadata) == ("validating", "batch", {"team": "a"})
    assert batch.expires_at == batch.created_at + 24 * 3600
    batch = stack.wait(batch)
    assert batch.status == "completed"
    assert batch.request_counts.to_dict() == {"total": 300, "completed": 300, "failed": 0}
    assert batch.error_file_id is None
    lines = stack.lines(batch.output_file_id)
    assert [line["custom_id"] for line in lines] == [f"id-{number}" for number in range(300)]
    for number, line in enumerate(lines):
        assert set(line) == {"id", "custom_id", "response", "error"}
        assert (line["error"], line["response"]["status_code"]) == (None, 200)
        assert line["response"]["body"]["choices"][0]["message"]["content"] == f"hello {number}"
    assert len({line["id"] for line in lines}) == 300
    for name, ours in (("prompt_tokens", "input_tokens"), ("completion_tokens", "output_tokens")):
        total = sum(line["response"]["body"]["usage"][name] for line in lines)
        assert getattr(batch.usage, ours) == total > 0
    order = [batch.created_at, batch.in_progress_at, batch.finalizing_at, batch.completed_at]
    assert order == sorted(order)


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


def test_completions_and_embeddings_are_answered(stack: RunningStack) -> None:
    def line(url: str, **body: Any) -> dict[str, Any]:
        return {"custom_id": "a", "method": "POST", "url": url, "body": body}

    completion = line("/v1/completions", model="echo", prompt="once upon")
    embedding = line("/v1/embeddings", model="vectors", input="a text")
    batches = [
        stack.submit([completion], endpoint="/v1/completions"),
        stack.submit([embedding], endpoint="/v1/embeddings"),
    ]
    bodies = [stack.lines(stack.wait(batch).output_file_id)[0]["response"]["body"] for batch in batches]
    assert "once upon" in bodies[0]["choices"][0]["text"]
    assert len(bodies[1]["data"][0]["embedding"]) > 0


def test_several_models_in_one_file_come_back_in_input_order(stack: RunningStack) -> None:
    requests = [a_chat(f"id-{number}", "x", model=("echo", "other")[number % 2]) for number in range(40)]
    batch = stack.wait(stack.submit(requests))
    lines = stack.lines(batch.output_file_id)
    assert [line["custom_id"] for line in lines] == [request["custom_id"] for request in requests]
    assert [line["response"]["body"]["model"] for line in lines] == [request["body"]["model"] for request in requests]
    assert batch.model is None


def test_what_an_engine_refuses_is_in_the_error_file_with_its_status(stack: RunningStack) -> None:
    batch = stack.wait(stack.submit([a_chat(f"id-{number}", "x", model="failing") for number in range(9)]))
    assert batch.status == "completed"
    assert batch.request_counts.to_dict() == {"total": 9, "completed": 6, "failed": 3}
    failed = stack.lines(batch.error_file_id)
    assert {line["response"]["status_code"] for line in failed} == {400}
    assert all(line["error"] is None and line["response"]["body"]["error"]["message"] for line in failed)
    answered = stack.lines(batch.output_file_id)
    assert sorted(line["custom_id"] for line in failed + answered) == [f"id-{number}" for number in range(9)]


def test_a_batch_whose_lines_all_fail_is_completed_without_an_output_file(stack: RunningStack) -> None:
    long = a_chat("a", "word " * 2000, model="nano", max_tokens=4)
    batch = stack.wait(stack.submit([long]))
    assert (batch.status, batch.output_file_id) == ("completed", None)
    (line,) = stack.lines(batch.error_file_id)
    assert line["response"]["status_code"] == 400
    assert line["response"]["body"]["error"]["code"] == "context_length_exceeded"


def test_a_file_with_bad_lines_fails_and_names_each(stack: RunningStack) -> None:
    good = json.dumps(a_chat("a", "hello"))
    batch = stack.wait(stack.submit("\n".join([good, "{nope}", "", good, json.dumps(a_chat("b", "x", model="gpt-9"))])))
    assert batch.status == "failed"
    assert (batch.output_file_id, batch.error_file_id, batch.in_progress_at) == (None, None, None)
    assert batch.failed_at is not None
    found = [(error.line, error.code, error.param) for error in batch.errors.data]
    assert found == [
        (2, "invalid_json_line", None),
        (4, "duplicate_custom_id", "custom_id"),
        (5, "model_not_found", "body.model"),
    ]


def test_what_an_engine_cannot_honour_is_refused_before_it_runs(stack: RunningStack) -> None:
    tool = {"type": "function", "function": {"name": "f"}}
    batch = stack.wait(stack.submit([a_chat("a", "hello", model="nano", tools=[tool])]))
    assert [(error.code, error.param) for error in batch.errors.data] == [("unsupported_parameter", "body.tools")]


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


def test_cancelling_keeps_what_was_answered_and_loses_no_line(stack: RunningStack) -> None:
    batch = stack.submit([a_chat(f"id-{number}", "x", model="slow") for number in range(3000)])
    stack.wait(batch, until=lambda batch: batch.request_counts.completed > 0)
    assert stack.client.batches.cancel(batch.id).status == "cancelling"
    batch = stack.wait(batch)
    assert batch.status == "cancelled"
    output, errors = stack.lines(batch.output_file_id), stack.lines(batch.error_file_id)
    assert len(output) == batch.request_counts.completed > 0
    assert {line["error"]["code"] for line in errors} == {"batch_cancelled"}
    assert len(errors) == batch.batchyard["cancelled"] > 0
    assert batch.request_counts.failed == 0
    assert {line["custom_id"] for line in output + errors} == {f"id-{number}" for number in range(3000)}
    assert len(output) + len(errors) == 3000
    assert stack.client.batches.cancel(batch.id).status == "cancelled"


def test_a_batch_that_misses_its_window_expires_with_what_it_has(stack: RunningStack) -> None:
    requests = [a_chat(f"id-{number}", "x", model="slow") for number in range(3000)]
    batch = stack.wait(stack.submit(requests, completion_window="8s"))
    assert batch.status == "expired"
    output, errors = stack.lines(batch.output_file_id), stack.lines(batch.error_file_id)
    assert {line["error"]["code"] for line in errors} == {"batch_expired"}
    assert len(output) + len(errors) == 3000
    assert len(errors) == batch.batchyard["expired"] > 0


def test_cancelling_what_has_ended_or_is_not_there_is_refused(stack: RunningStack) -> None:
    batch = stack.wait(stack.submit([a_chat("a", "hello")]))
    error = refused(lambda: stack.client.batches.cancel(batch.id), 409)
    assert error["message"] == "Cannot cancel a batch with status 'completed'."
    error = refused(lambda: stack.client.batches.cancel("batch_nope"), 404)
    assert error["message"] == "No batch found with id 'batch_nope'."
    status, (headers, _) = raw(stack, "POST", f"/v1/batches/{batch.id}/cancel", b"")
    assert (status, headers["x-should-retry"]) == (409, "false")


def test_deleting_the_input_changes_nothing_for_its_batch(stack: RunningStack) -> None:
    batch = stack.submit([a_chat("a", "hello")])
    assert stack.client.files.delete(batch.input_file_id).deleted
    refused(lambda: stack.client.files.retrieve(batch.input_file_id), 404)
    assert stack.wait(batch).status == "completed"


def test_a_file_comes_back_byte_for_byte(stack: RunningStack) -> None:
    content = bytes(range(256)) * 1000
    file = stack.client.files.create(file=("../../etc/x.bin", content), purpose="user_data")
    assert (file.bytes, file.filename, file.status, file.object) == (len(content), "x.bin", "processed", "file")
    assert stack.client.files.content(file.id).content == content
    assert stack.client.files.wait_for_processing(file.id).id == file.id
    batch_file = stack.client.files.create(file=("in.jsonl", b"{}"), purpose="batch")
    assert batch_file.expires_at == batch_file.created_at + 30 * 86400


CREATE = {"input_file_id": "file-x", "endpoint": "/v1/chat/completions", "completion_window": "24h"}


@pytest.mark.parametrize(
    ("body", "code", "param"),
    [
        (
            {key: value for key, value in CREATE.items() if key != "input_file_id"},
            "missing_required_parameter",
            "input_file_id",
        ),
        (CREATE | {"endpoint": "/v1/nope"}, "invalid_value", "endpoint"),
        (CREATE | {"completion_window": "5 parsecs"}, "invalid_value", "completion_window"),
        (CREATE | {"completion_window": "400d"}, "invalid_value", "completion_window"),
        (CREATE | {"completion_window": 24}, "invalid_type", "completion_window"),
        (CREATE | {"metadata": {"tags": ["a"]}}, "invalid_type", "metadata.tags"),
        (CREATE | {"metadata": {str(n): "x" for n in range(17)}}, "invalid_value", "metadata"),
        (CREATE | {"metadata": {"a": "x" * 513}}, "invalid_value", "metadata.a"),
        (CREATE | {"post_process": [{"step": "nope"}]}, "invalid_value", "post_process"),
        (CREATE | {"post_process": [{"step": "score", "method": "vibes"}]}, "invalid_value", "post_process.method"),
        (
            CREATE | {"output_expires_after": {"anchor": "created_at", "seconds": 5}},
            "invalid_value",
            "output_expires_after.seconds",
        ),
        (CREATE, "invalid_value", "input_file_id"),
        ([], "invalid_json", None),
        ("nonsense", "invalid_json", None),
    ],
)
def test_a_body_that_cannot_be_a_batch_is_refused_with_its_place(
    stack: RunningStack, body: Any, code: str, param: str | None
) -> None:
    status, (headers, answer) = raw(stack, "POST", "/v1/batches", json.dumps(body).encode())
    error = json.loads(answer)["error"]
    assert (status, error["code"], error["param"]) == (400, code, param)
    assert error["type"] == "invalid_request_error"
    assert headers["x-request-id"].startswith("req_")


def test_a_body_that_is_no_json_is_refused(stack: RunningStack) -> None:
    assert raw(stack, "POST", "/v1/batches", b"{nope")[0] == 400
    assert raw(stack, "POST", "/v1/batches", b"\xff\xfe")[0] == 400
    assert raw(stack, "POST", "/v1/batches", b"")[0] == 400


def test_an_upload_without_file_or_with_a_wrong_purpose_is_refused(stack: RunningStack) -> None:
    error = refused(lambda: stack.client.files.create(file=b"x", purpose="nonsense"), 400)  # type: ignore[arg-type]
    assert (error["code"], error["param"]) == ("invalid_value", "purpose")
    status, (_, answer) = raw(stack, "POST", "/v1/files", b"{}")
    assert (status, json.loads(answer)["error"]["param"]) == (400, "file")
    stored = stack.client.files.create(file=("a.txt", b"text"), purpose="user_data")
    body = json.dumps(CREATE | {"input_file_id": stored.id}).encode()
    status, (_, answer) = raw(stack, "POST", "/v1/batches", body)
    assert status == 400
    assert "purpose" in json.loads(answer)["error"]["message"]


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [("GET", "/nope", 404), ("GET", "/v1/nope", 404), ("PUT", "/v1/files", 405), ("DELETE", "/v1/batches", 405)],
)
def test_unknown_routes_answer_json_too(stack: RunningStack, method: str, path: str, status: int) -> None:
    found, (_, answer) = raw(stack, method, path)
    assert found == status
    assert set(json.loads(answer)["error"]) == {"message", "type", "param", "code"}


@pytest.mark.parametrize("key", [None, "wrong", "by-0123456789abcdef-" + "0" * 64])
@pytest.mark.parametrize("path", ["/v1/files", "/v1/batches", "/v1/models", "/v1/batches/batch_x"])
def test_without_a_valid_key_nothing_is_answered(stack: RunningStack, key: str | None, path: str) -> None:
    status, (_, answer) = raw(stack, "GET", path, key=key)
    assert (status, json.loads(answer)["error"]["code"]) == (401, "invalid_api_key")


def test_another_projects_things_are_not_there(stack: RunningStack, other_project: openai.OpenAI) -> None:
    batch = stack.submit([a_chat("a", "hello")])
    file_id = batch.input_file_id
    for call in (
        lambda: other_project.batches.retrieve(batch.id),
        lambda: other_project.batches.cancel(batch.id),
        lambda: other_project.files.retrieve(file_id),
        lambda: other_project.files.content(file_id),
        lambda: other_project.files.delete(file_id),
    ):
        refused(call, 404)
    error = refused(lambda: other_project.batches.create(**{**CREATE, "input_file_id": file_id}), 400)  # type: ignore[arg-type]
    assert error["message"] == f"No file found with id '{file_id}'."
    assert batch.id not in [found.id for found in other_project.batches.list()]
    assert file_id not in [found.id for found in other_project.files.list()]
    assert stack.wait(batch).status == "completed"


def test_lists_are_walked_by_cursor(stack: RunningStack) -> None:
    made = [stack.client.files.create(file=("a.txt", b"x"), purpose="evals").id for _ in range(5)]
    listed = [file.id for file in stack.client.files.list(purpose="evals", limit=2)]
    assert listed[:5] == made[::-1]
    listed = [file.id for file in stack.client.files.list(purpose="evals", limit=2, order="asc")]
    assert listed[-5:] == made
    refused(lambda: stack.client.files.list(after="file-nope"), 400)
    refused(lambda: stack.client.batches.list(limit=0), 400)


def test_the_models_say_what_runs_them(stack: RunningStack) -> None:
    models = {model.id: model.to_dict() for model in stack.client.models.list()}
    assert models["nano"]["batchyard"]["engine"] == "transformers"  # type: ignore[index]
    assert models["echo"]["batchyard"]["simulated"] is True  # type: ignore[index]
    assert stack.client.models.retrieve("nano").id == "nano"
    assert refused(lambda: stack.client.models.retrieve("nope"), 404)["code"] == "model_not_found"


def test_our_own_model_answers_for_real(stack: RunningStack) -> None:
    batch = stack.wait(stack.submit([a_chat("a", "What is 2 + 3?", model="nano", max_tokens=8, temperature=0)]))
    (line,) = stack.lines(batch.output_file_id)
    body = line["response"]["body"]
    assert "simulated" not in body
    assert body["usage"]["completion_tokens"] > 0
    assert batch.batchyard["simulated"] is False


def test_progress_is_published_under_the_name_people_look_for(stack: RunningStack, redis_url: str) -> None:
    import redis

    batch = stack.wait(stack.submit([a_chat("a", "hello")]))
    published = redis.Redis.from_url(redis_url).get(f"batch_job_status:{batch.id}")
    assert json.loads(published)["status"] == "completed"


def test_health_and_readiness_need_no_key(stack: RunningStack) -> None:
    assert raw(stack, "GET", "/healthz", key=None)[0] == 200
    status, (_, answer) = raw(stack, "GET", "/readyz", key=None)
    parts = json.loads(answer)["parts"]
    assert (status, set(parts.values())) == (200, {"ok"})
    assert {"database", "artifacts", "broker", "worker", "ray"} <= set(parts)
