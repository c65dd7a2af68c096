"""Engine vllm-job: real vLLM through ray.data.llm. Each run starts an engine, so each test of one asks a lot of it."""

from __future__ import annotations

import asyncio
import json
import math
from collections.abc import AsyncIterator, Callable, Generator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pyarrow as pa
import pytest

from batchyard.errors import ConfigurationError, EngineError, EngineStartError
from batchyard.models import ModelSpec, vllm_installed
from inference import catalog, pipeline
from inference.engines.registry import check_arguments, engine_class
from inference.engines.vllm.job import VLLMJob
from tests.support.pipelines import TIMEOUTS
from tests.support.rows import answer_of, chat, table, until
from tests.support.vllm_engines import ARGUMENTS, tagged, tiny_spec

CHAT, COMPLETIONS, EMBEDDINGS = "/v1/chat/completions", "/v1/completions", "/v1/embeddings"
JSON_SCHEMA = {"type": "json_schema", "json_schema": {"name": "yes", "schema": {"type": "boolean"}}}

PARTS = [{"type": "text", "text": "say "}, {"type": "text", "text": "it"}]
ROWS = [
    *chat(*[f"what is {index} and {index}?" for index in range(40)], temperature=0, max_tokens=24),
    *chat("to the end", temperature=0),
    *chat("until a string", temperature=0, max_tokens=60, stop=["e", "a", "o"]),
    *chat("biased", temperature=0, max_tokens=8, logit_bias={"70": 100}),
    *chat("penalised", temperature=0, max_tokens=24, repetition_penalty=1.5, frequency_penalty=1.0, min_tokens=5),
    *chat("yes or no?", temperature=0, max_tokens=20, response_format=JSON_SCHEMA),
    *chat("seeded", temperature=1.0, max_tokens=8, seed=3),
    {"model": "tiny", "messages": [{"role": "user", "content": PARTS}], "temperature": 0, "max_tokens": 8},
    {"model": "tiny", "messages": [{"role": "assistant", "content": "so"}], "temperature": 0, "max_tokens": 8},
]
BAD = [*chat("x" * 900), *chat("y", max_tokens=999), *chat("fine", temperature="hot"), *chat("z", model="other")]


def real(test: Callable[..., None]) -> Callable[..., None]:
    """A test that starts vLLM."""
    test = pytest.mark.skipif(not vllm_installed(), reason="vLLM is not installed")(test)
    return pytest.mark.usefixtures("cluster")(pytest.mark.vllm(test))


def model(tiny: Path, **fields: Any) -> ModelSpec:
    return ModelSpec(**{"name": "tiny", "engine": "vllm-job", "source": str(tiny), "engine_args": ARGUMENTS, **fields})


def run(spec: ModelSpec, endpoint: str, bodies: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The output line of each row, which must be exactly one."""
    lines: dict[int, dict[str, Any]] = {}
    for answers in pipeline.run(spec, endpoint, table(bodies), TIMEOUTS):
        for row in answers.to_pylist():
            assert row["line"] not in lines, "answered twice"
            lines[row["line"]] = {**row, **answer_of(row)}
    assert sorted(lines) == list(range(len(bodies)))
    return [lines[line] for line in sorted(lines)]


def engines() -> list[psutil.Process]:
    """This cluster's replicas of the job and vLLM's processes, but none of the engines that tests share."""
    children = psutil.Process().children(recursive=True)
    found = tagged(children, "job/")
    for process in children:
        with suppress(psutil.NoSuchProcess):
            if "AnswerStage" in process.name() and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
    return found


def stream(spec: ModelSpec, endpoint: str, bodies: list[dict[str, Any]]) -> Generator[pa.Table]:
    return pipeline.run(spec, endpoint, table(bodies), TIMEOUTS)


def choice(line: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = line["response"]["body"]["choices"][0]
    return found


@pytest.fixture(scope="module")
def lines(tiny: Path, cluster: str) -> list[dict[str, Any]]:
    return run(model(tiny, engine_args={**ARGUMENTS, "batch_size": 8}), CHAT, ROWS + BAD)


@real
def test_answers_and_refusals_are_those_of_engine_vllm(lines: list[dict[str, Any]], tiny: Path) -> None:
    theirs = run(tiny_spec(tiny), CHAT, ROWS + BAD)
    for ours, other in zip(lines, theirs, strict=True):
        assert ours["custom_id"] == other["custom_id"] and ours["error"] is other["error"] is None
        body, wanted = (without_chance(line) for line in (ours, other))
        assert body == wanted
        assert ours["response"]["status_code"] == other["response"]["status_code"]
    good = [line for line in lines if line["ok"]]
    assert len(good) == len(ROWS)
    assert {choice(line)["finish_reason"] for line in good} == {"length", "stop"}
    assert len({choice(line)["message"]["content"] for line in good}) > 20


def without_chance(line: dict[str, Any]) -> dict[str, Any]:
    """The body without what is of the time or of the cache."""
    body = {**line["response"]["body"], "id": "", "created": 0}
    if line["ok"]:
        assert body["usage"]["prompt_tokens_details"]["cached_tokens"] >= 0
        assert body["system_fingerprint"].startswith("vllm-")  # and a hash of all settings, some of which are Ray's
        body["usage"], body["system_fingerprint"] = {**body["usage"], "prompt_tokens_details": None}, ""
    return body


@real
def test_token_counts_are_the_engines(lines: list[dict[str, Any]]) -> None:
    for line in lines[: len(ROWS)]:
        usage = line["response"]["body"]["usage"]
        assert line["input_tokens"] == usage["prompt_tokens"] > 0
        assert line["output_tokens"] == usage["completion_tokens"] > 0
        assert line["cached_tokens"] == usage["prompt_tokens_details"]["cached_tokens"]
    for line in lines[:40]:
        assert (line["output_tokens"] == 24) == (choice(line)["finish_reason"] == "length")
    whole = lines[40]
    assert whole["input_tokens"] + whole["output_tokens"] == 256 or choice(whole)["finish_reason"] == "stop"


@real
def test_a_bad_row_is_its_own_error(lines: list[dict[str, Any]]) -> None:
    bad = lines[len(ROWS) :]
    assert [line["response"]["status_code"] for line in bad] == [400, 400, 400, 404]
    codes = [line["response"]["body"]["error"]["code"] for line in bad]
    assert codes[:3] == ["context_length_exceeded", "context_length_exceeded", "invalid_value"]


@pytest.mark.exhaustive
@real
def test_closing_a_run_of_completions_frees_its_engines(tiny: Path) -> None:
    bodies = [{"model": "tiny", "prompt": f"{index}", "temperature": 0, "max_tokens": 5} for index in range(3000)]
    answers = stream(model(tiny), COMPLETIONS, bodies)
    first = json.loads(next(answers)["answer"][0].as_py())["response"]["body"]
    assert first["object"] == "text_completion" and isinstance(first["choices"][0]["text"], str)
    assert first["usage"]["completion_tokens"] <= 5
    assert engines()
    answers.close()
    until(lambda: not engines())


@pytest.mark.exhaustive
@real
def test_an_engine_that_dies_is_started_again_but_not_for_ever(tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from inference.engines.vllm import job_runner

    monkeypatch.setattr(job_runner, "RESTARTS", 1)
    bodies = [{"model": "tiny", "input": "one two three " * 20} for _ in range(3000)]
    lines: list[int] = []
    killed: list[psutil.Process] = []
    with pytest.raises(EngineError, match="engine vllm-job of model tiny died more than 1 times"):
        for answers in stream(model(tiny, endpoints=(EMBEDDINGS,)), EMBEDDINGS, bodies):
            assert all(answers["ok"].to_pylist())
            lines += answers["line"].to_pylist()
            for process in engines():
                if "EngineCore" in process.name() and process not in killed:
                    process.kill()
                    killed.append(process)
    assert len(killed) == 2 and len(lines) == len(set(lines)) > 32
    body = answer_of(answers.slice(0, 1).to_pylist()[0])["response"]["body"]
    vector = body["data"][0]["embedding"]
    assert math.isclose(sum(value * value for value in vector), 1, rel_tol=1e-3) and body["usage"]["prompt_tokens"] > 20
    until(lambda: not engines())


@real
@pytest.mark.exhaustive
def test_an_engine_that_does_not_start_says_why_and_leaves_no_process(tiny: Path) -> None:
    reason = r"model tiny does not start: models\.tiny\.engine_args\.max_modellen.*max_model_len"
    with pytest.raises(EngineStartError, match=reason):
        run(model(tiny, engine_args={"max_modellen": 5}), CHAT, ROWS)
    with pytest.raises(EngineStartError, match="did not start within 1 seconds; the cluster has"):
        list(pipeline.run(model(tiny), CHAT, table(ROWS), replace(TIMEOUTS, start_timeout=1)))
    until(lambda: not engines())


@real
def test_versions_are_told_without_an_engine(tiny: Path) -> None:
    before = set(engines())  # those of the run before may be about to end
    versions = pipeline.start(model(tiny), TIMEOUTS).versions
    assert versions["engine"] == "vllm-job" and len(versions["model_sha256"]) == 64
    assert {"version", "ray", "torch", "transformers", "model"} < versions.keys()
    assert set(engines()) <= before


@pytest.mark.parametrize(
    ("endpoint", "param", "value"),
    [
        *[(CHAT, name, value) for name, value in (("n", 2), ("logprobs", True), ("top_logprobs", 3), ("no_such", 1))],
        (CHAT, "tools", [{"type": "function", "function": {"name": "f"}}]),
        (CHAT, "tool_choice", "required"),
        (CHAT, "messages", [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "a"}}]}]),
        (COMPLETIONS, "prompt", ["one", "two"]),
        (COMPLETIONS, "prompt", [[1], [2]]),
        (COMPLETIONS, "echo", True),
        (COMPLETIONS, "logprobs", 1),
        (EMBEDDINGS, "input", ["one", "two"]),
    ],
)
def test_what_the_job_cannot_honour_is_refused_by_name(endpoint: str, param: str, value: Any, tmp_path: Path) -> None:
    refused = VLLMJob.unsupported(model(tmp_path), endpoint, {"model": "tiny", param: value})
    assert refused is not None and refused[0].startswith(f"body.{param}") and "vllm-job" in refused[1]


@pytest.mark.parametrize("body", [*ROWS, {"prompt": [1, 2]}, {"prompt": ["one"]}, {"n": 1, "tools": [], "user": "me"}])
def test_what_it_can_honour_is_not_refused(body: dict[str, Any], tmp_path: Path) -> None:
    assert VLLMJob.unsupported(model(tmp_path), COMPLETIONS if "prompt" in body else CHAT, body) is None


def test_the_jobs_own_arguments_are_checked_and_vllms_left_to_it(tmp_path: Path) -> None:
    check_arguments(model(tmp_path, engine_args={"batch_size": 8, "max_concurrent_batches": 4, "enforce_eager": True}))
    with pytest.raises(ConfigurationError, match=r"engine_args\.batch_size: must be a whole number, more than 0"):
        check_arguments(model(tmp_path, engine_args={"batch_size": 0}))
    with pytest.raises(ConfigurationError, match="vllm-job cannot be started by itself"):
        engine_class("vllm-job")


def test_only_a_job_has_a_range_of_replicas(tmp_path: Path) -> None:
    file = tmp_path / "models.toml"
    entry = "[models.m]\nsource='a/b'\nengine='{}'\nreplicas={}\nmax_replicas={}"
    file.write_text(entry.format("vllm-job", 2, 4))
    assert catalog.load(file)["m"].max_replicas == 4 and catalog.load(file)["m"].max_segments == 1
    for wrong, message in ((("vllm", 1, 4), "Only engine vllm-job"), (("vllm-job", 4, 2), "at least replicas")):
        file.write_text(entry.format(*wrong))
        with pytest.raises(ConfigurationError, match=rf"models\.m\.max_replicas: .*{message}"):
            catalog.load(file)


@pytest.mark.vllm
def test_a_request_that_runs_too_long_is_its_own_error() -> None:
    stage = pytest.importorskip("inference.engines.vllm.job_stage")

    async def forever() -> AsyncIterator[None]:
        await asyncio.sleep(3600)
        yield

    async def ask() -> None:
        async for _ in stage.AnswerStage._last_output(SimpleNamespace(_request_timeout=0.01), forever)():
            pass

    with pytest.raises(TimeoutError) as raised:
        asyncio.run(ask())
    said = {"__inference_error__": f"{type(raised.value).__name__}: {raised.value}"}
    answer = stage.AnswerStage._answer(SimpleNamespace(_request_timeout=0.01), {}, said)
    assert answer.status_code is None and answer.error["code"] == "request_timeout"
