"""Images, reasoning and audio on real vLLM, from files, tables and folders to all places that show answers."""

from __future__ import annotations

import io
import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pandas as pd
import pyarrow.parquet as pq
import pytest

import batchyard
from batchyard.client.api import ApiClient
from batchyard.endpoints import catalog, responses
from batchyard.endpoints.base import Endpoint
from batchyard.models import vllm_installed
from tests.support import pictures, sounds
from tests.support.stacks import ROOT, RunningStack, a_chat

pytestmark = [pytest.mark.vllm, pytest.mark.skipif(not vllm_installed(), reason="vLLM is not installed")]
AT_ONCE: dict[str, Any] = {"temperature": 0, "max_tokens": 64, "chat_template_kwargs": {"enable_thinking": False}}
RED = "red: much, green: little, blue: little"
SECONDS = 250


@pytest.fixture(scope="module")
def server(vllm_stack: RunningStack) -> ApiClient:
    return ApiClient(vllm_stack.url, vllm_stack.key)


@pytest.fixture(scope="module")
def http(vllm_stack: RunningStack) -> Iterator[httpx.Client]:
    """A browser that has signed in, which also has the key of the API."""
    with httpx.Client(
        base_url=vllm_stack.url, headers={"Authorization": f"Bearer {vllm_stack.key}"}, timeout=60
    ) as client:
        client.post("/sign-in", data={"key": vllm_stack.key})
        yield client


def chat(custom_id: str, *names: str, **body: Any) -> dict[str, Any]:
    return a_chat(custom_id, "", model="eyes", messages=pictures.messages(*names), **body)


def artifact(vllm_stack: RunningStack, job: dict[str, Any], name: str) -> bytes:
    file_id = next(entry["file_id"] for entry in job["batchyard"]["artifacts"] if entry["name"] == name)
    return vllm_stack.client.files.content(file_id).content


def test_images_of_a_file_and_their_reasoning_reach_all_that_shows_answers(
    vllm_stack: RunningStack, http: httpx.Client
) -> None:
    pairs = [(left, right) for left in pictures.NAMES[:4] for right in pictures.NAMES[4:]]
    rows = [
        *(chat(name, name, **AT_ONCE) for name in pictures.NAMES),
        *(chat(f"{left} and {right}", left, right, **AT_ONCE) for left, right in pairs),
        chat("There is no image.", **AT_ONCE),
        chat("thinks", "red", temperature=0, max_tokens=64),
    ]
    batch = vllm_stack.wait(
        vllm_stack.submit(rows, extra_body={"post_process": [{"step": "parquet"}]}), seconds=SECONDS
    )
    assert batch.request_counts.completed == len(rows), (batch, vllm_stack.lines(batch.error_file_id))
    bodies = {line["custom_id"]: line["response"]["body"] for line in vllm_stack.lines(batch.output_file_id)}
    thinking = bodies.pop("thinks")
    texts = {name: responses.output(body).text for name, body in bodies.items()}
    assert texts == {name: name for name in texts}

    output, usage = responses.output(thinking), responses.usage(thinking)
    assert (output.reasoning, output.text) == (RED, "red")
    assert (usage.reasoning_tokens, usage.output_tokens) == (13, 13 + 6), "beside it two marks, three letters, the end"
    assert batch.usage.output_tokens_details.reasoning_tokens == usage.reasoning_tokens

    table = pq.read_table(io.BytesIO(vllm_stack.artifact(batch, "results.parquet"))).to_pylist()
    (row,) = (row for row in table if row["custom_id"] == "thinks")
    assert (row["text"], row["reasoning"], row["reasoning_tokens"]) == ("red", RED, usage.reasoning_tokens)
    assert {row["reasoning"] for row in table} == {RED, None}
    assert RED in http.get(f"/v1/batches/{batch.id}/results").text
    page = http.get(f"/batches/{batch.id}/requests/{len(rows)}")
    assert page.status_code == 200 and RED in page.text, page.text


def test_samples_of_a_rollout_keep_the_reasoning_behind_them(vllm_stack: RunningStack) -> None:
    lines = [{"custom_id": name, "prompt": pictures.QUESTION, "images": [pictures.url(name)], "answer": name}
             for name in pictures.NAMES]  # fmt: skip
    content = "".join(json.dumps(line) + "\n" for line in lines)
    file = vllm_stack.client.files.create(file=("in.jsonl", content.encode()), purpose="batch")
    options = {"model": "eyes", "sampling": {"temperature": 0, "max_tokens": 64}, "reward": "exact"}
    body = {"recipe": "rollout", "input_file_id": file.id, "options": {**options, "ground_truth": "answer"}}
    job = vllm_stack.wait_for_job(vllm_stack.client.post("/jobs", body=body, cast_to=object), seconds=SECONDS)  # type: ignore[arg-type]
    assert job["status"] == "completed" and job["request_counts"]["completed"] == len(lines), job
    samples = [json.loads(line) for line in artifact(vllm_stack, job, "samples.jsonl").splitlines()]
    assert {(sample["custom_id"], sample["score"]) for sample in samples} == {(name, 1.0) for name in pictures.NAMES}
    assert RED in {sample["reasoning"] for sample in samples} and all(sample["reasoning"] for sample in samples)


def test_images_of_a_tables_column_are_asked_about_by_a_template(server: ApiClient) -> None:
    rows = [{"photo": pictures.image(name)} for name in pictures.NAMES]
    options: dict[str, Any] = {"model": "eyes", "progress": False, "server": server, **AT_ONCE}
    answers = batchyard.map([*rows, {"photo": None}], "{photo:image}What is this?", **options)
    assert answers == [*pictures.NAMES, None]


@pytest.mark.exhaustive
def test_vectors_of_images_are_nearest_to_those_of_their_colour(vllm_stack: RunningStack) -> None:
    shades = {name: [(name,), (name, name)] for name in pictures.NAMES}
    rows = [
        {"custom_id": f"{name} {place}", "method": "POST", "url": "/v1/embeddings",
         "body": {"model": "looks", "messages": pictures.messages(*names)}}
        for name, pair in shades.items() for place, names in enumerate(pair)
    ]  # fmt: skip
    batch = vllm_stack.wait(vllm_stack.submit(rows, endpoint="/v1/embeddings"), seconds=SECONDS)
    assert batch.request_counts.completed == len(rows), vllm_stack.lines(batch.error_file_id)
    lines = {line["custom_id"]: line["response"]["body"] for line in vllm_stack.lines(batch.output_file_id)}
    vectors = {name: responses.vectors(body)[0] for name, body in lines.items()}
    for name, vector in vectors.items():
        nearest = min(vectors.keys() - {name}, key=lambda other: math.dist(vector, vectors[other]))
        assert nearest.split()[0] == name.split()[0], (name, nearest)


@pytest.mark.exhaustive
def test_a_model_of_vectors_gives_unit_vectors_and_scores_and_ranks_by_them(vllm_stack: RunningStack) -> None:
    def ask(endpoint: Endpoint, *bodies: dict[str, Any]) -> list[dict[str, Any]]:
        rows = [
            {"custom_id": f"{number}", "method": "POST", "url": endpoint.path, "body": {"model": "looks", **body}}
            for number, body in enumerate(bodies)
        ]
        batch = vllm_stack.wait(vllm_stack.submit(rows, endpoint=endpoint.path), seconds=SECONDS)
        lines = vllm_stack.lines(batch.output_file_id)
        assert len(lines) == len(rows), vllm_stack.lines(batch.error_file_id)
        return [line["response"]["body"] for line in lines]

    query, documents = "red green", ["red green", "blue white black"]
    made = ask(catalog.EMBEDDINGS, *({"input": text} for text in (query, "a", query)))
    vectors = [responses.vectors(body)[0] for body in made]
    assert math.isclose(sum(value * value for value in vectors[0]), 1, rel_tol=1e-3)
    assert vectors[0] == pytest.approx(vectors[2], abs=1e-4) and vectors[0] != pytest.approx(vectors[1], abs=1e-4)
    assert all(body["usage"]["prompt_tokens"] > 0 for body in made)
    (scores,) = ask(catalog.SCORE, {"queries": query, "documents": documents})
    first, second = responses.scores(scores)
    assert first == pytest.approx(1, abs=1e-3) and second < first
    (ranked,) = ask(catalog.RERANK, {"query": query, "documents": documents[::-1]})
    assert [entry["index"] for entry in ranked["results"]] == [1, 0]
    (pooled,) = ask(catalog.POOLING, {"input": query})
    assert pooled["data"]


def test_a_bfloat16_model_answers_prompts_of_any_length_on_a_cpu_with_amx(vllm_stack: RunningStack) -> None:
    """vLLM itself is ended by SIGILL at a prompt of three tokens or fewer."""
    lengths = (1, 2, 3, 7, 100)
    rows = [
        {"custom_id": f"{length}", "method": "POST", "url": catalog.COMPLETIONS.path,
         "body": {"model": "eyes", "prompt": [5] * length, "max_tokens": 4}}
        for length in lengths
    ]  # fmt: skip
    for row in rows:
        batch = vllm_stack.wait(vllm_stack.submit([row], endpoint=catalog.COMPLETIONS.path), seconds=SECONDS)
        (line,) = vllm_stack.lines(batch.output_file_id)
        assert f"{line['response']['body']['usage']['prompt_tokens']}" == row["custom_id"]
    assert batch.batchyard["engine_deaths"] == 0


@pytest.mark.exhaustive
def test_a_folder_of_recordings_becomes_texts_with_an_error_for_each_that_is_none(
    server: ApiClient, tmp_path: Path
) -> None:
    clips = {"a.wav": (1, 0), "b.wav": (0, 0, 1), "c.wav": (1,)}
    for name, high in clips.items():
        (tmp_path / name).write_bytes(sounds.wav(*high))
    (tmp_path / "d.wav").write_bytes(sounds.wav(0, 1, language="de"))
    (tmp_path / "broken.wav").write_bytes(sounds.wav(1)[:40])
    (tmp_path / "notes.txt").write_text("hello")
    rows = {row["file"]: row for row in batchyard.transcribe(tmp_path, model="ears", progress=False, server=server)}
    words = {name: " ".join("high" if one else "low" for one in high) for name, high in clips.items()}
    assert {name: row["text"] for name, row in rows.items() if row["error"] is None} == {**words, "d.wav": "tief hoch"}
    assert "unsupported audio file" in rows["broken.wav"]["error"] and "is no audio" in rows["notes.txt"]["error"]
    options: dict[str, Any] = {"model": "ears", "progress": False, "server": server}
    english = batchyard.transcribe([{"clip": sounds.wav(0, 1, language="de")}], "clip", translate=True, **options)
    assert english == ["low high"]
    (timed,) = batchyard.transcribe([{"clip": sounds.wav(1, 0)}], "clip", times=True, **options)
    assert (timed["text"], timed["language"]) == ("high low", "en") and 0 < timed["duration"] < 5
    assert [piece["text"].strip() for piece in timed["segments"]] == ["high low"]


# test_endpoints.py sends transcriptions through a stack, and the first test here media to real vLLM.
@pytest.mark.exhaustive
def test_audio_of_a_batch_is_checked_before_it_runs_and_its_text_is_where_texts_are(
    vllm_stack: RunningStack, http: httpx.Client
) -> None:
    path = catalog.TRANSCRIPTIONS.path

    def row(custom_id: str, **body: Any) -> dict[str, Any]:
        return {"custom_id": custom_id, "method": "POST", "url": path, "body": {"model": "ears", **body}}

    high = sounds.url(1, 1)
    rows = [
        row("good", file_url=high, language="en", response_format="text"),
        row("elsewhere", file_url="http://169.254.169.254/a.wav"),
        row("no format", file_url=high, response_format="mp3"),
        row("no parameter", file_url=high, top_logprobs=3),
    ]
    batch = vllm_stack.submit(
        rows, endpoint=path, extra_body={"on_invalid": "skip", "post_process": [{"step": "parquet"}]}
    )
    batch = vllm_stack.wait(batch, seconds=SECONDS)
    (line,) = vllm_stack.lines(batch.output_file_id)
    assert responses.output(line["response"]["body"]).text == " high high"
    errors = {line["custom_id"]: line for line in vllm_stack.lines(batch.error_file_id)}
    assert errors["elsewhere"]["response"]["body"]["error"]["param"] == "file_url"
    assert (errors["no format"]["error"]["param"], errors["no format"]["error"]["line"]) == ("body.response_format", 3)
    assert errors["no parameter"]["error"]["param"] == "body.top_logprobs"
    (row_,) = (
        row for row in pq.read_table(io.BytesIO(vllm_stack.artifact(batch, "results.parquet"))).to_pylist()
        if row["custom_id"] == "good"
    )  # fmt: skip
    assert row_["text"] == " high high"
    page, csv = http.get(f"/batches/{batch.id}/requests/1"), http.get(f"/batches/{batch.id}/results.csv")
    assert page.status_code == csv.status_code == 200
    assert "high high" in page.text and "high high" in csv.text and f'src="{high}"' in page.text


def test_a_chat_with_a_model_that_only_hears_is_refused_with_what_it_serves(vllm_stack: RunningStack) -> None:
    batch = vllm_stack.wait(vllm_stack.submit([a_chat("a", "hello", model="ears")]))
    assert batch.status == "failed" and "it serves /v1/audio/transcriptions" in batch.errors.data[0].message


def test_the_calls_of_the_page_on_python_run_as_they_are_written(
    vllm_stack: RunningStack, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("BATCHYARD_URL", vllm_stack.url)
    monkeypatch.setenv("BATCHYARD_API_KEY", vllm_stack.key)
    (tmp_path / "recordings").mkdir()
    (tmp_path / "recordings/a.wav").write_bytes(sounds.wav(1))
    (block,) = (text for text in (ROOT / "docs/python.md").read_text().split("```") if "batchyard.transcribe(" in text)
    recordings = [sounds.wav(1, 0, language="de"), sounds.wav(0, language="de")]
    namespace: dict[str, Any] = {"batchyard": batchyard, "calls": pd.DataFrame({"recording": recordings})}
    exec(block.removeprefix("python"), namespace)
    calls = namespace["calls"]
    assert [row["text"] for row in namespace["rows"]] == ["high"]
    assert (calls["text"].tolist(), calls["english"].tolist()) == (["hoch tief", "tief"], ["high low", "low"])


@pytest.mark.parametrize(
    ("name", "endpoint"),
    [  # the first test here asks about images, too
        pytest.param("images.jsonl", catalog.CHAT.path, marks=pytest.mark.exhaustive),
        ("audio.jsonl", catalog.TRANSCRIPTIONS.path),
    ],
)
def test_the_example_files_are_answered_right(vllm_stack: RunningStack, name: str, endpoint: str) -> None:
    rows = [json.loads(line) for line in (ROOT / "examples" / name).read_text().splitlines()]
    if endpoint == catalog.CHAT.path:
        rows = [{**row, "body": row["body"] | AT_ONCE} for row in rows]
    batch = vllm_stack.wait(vllm_stack.submit(rows, endpoint=endpoint), seconds=SECONDS)
    bodies = {line["custom_id"]: line["response"]["body"] for line in vllm_stack.lines(batch.output_file_id)}
    texts = {custom_id: (responses.output(body).text or "").strip() for custom_id, body in bodies.items()}
    assert len(texts) == 2 and texts == {name: name for name in texts}, vllm_stack.lines(batch.error_file_id)
