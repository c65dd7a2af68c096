"""One table of requests has equal answers of `vllm serve`, of `vllm run-batch` where it can, and of our engine.

`make test` compares batches of `mini` with `vllm serve`. The other cells show the same for each kind of model, and that
`vllm run-batch`, which calls the same handlers as `vllm serve`, answers as that does.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import groupby
from pathlib import Path
from typing import Any, NamedTuple

import httpx
import pytest

from batchyard.endpoints import catalog, responses
from batchyard.endpoints.base import Endpoint
from batchyard.endpoints.bodies import audio
from batchyard.models import ModelSpec, vllm_installed
from inference.residents import directory
from tests.support import encoders, pictures, pipelines, sounds, vllm_commands, vllm_engines
from tests.support.stacks import RunningStack

pytestmark = [
    pytest.mark.vllm,
    pytest.mark.skipif(not vllm_installed(), reason="vLLM is not installed"),
]
TOLERANCE = 1e-3
"""How far vectors, scores and probabilities may be apart: requests meet in other steps, so sums have another order."""
AUDIO = (catalog.TRANSCRIPTIONS, catalog.TRANSLATIONS)
IN_RUN_BATCH = (catalog.CHAT, catalog.EMBEDDINGS, catalog.SCORE, catalog.RERANK, *AUDIO)
QUESTION = "What is 37 + 58?"
PICTURED = {
    "role": "user",
    "content": [
        {"type": "input_text", "text": pictures.QUESTION},
        {"type": "input_image", "image_url": pictures.url("green"), "detail": "auto"},
    ],
}
USER = [{"role": "user", "content": QUESTION}]
GREEDY = {"temperature": 0, "max_tokens": 24}
THINKING = {"temperature": 0, "max_tokens": 64, "chat_template_kwargs": {"enable_thinking": True}}


class Case(NamedTuple):
    """A request: its endpoint, and its body but for the model."""

    endpoint: Endpoint
    body: dict[str, Any]


CASES = {
    "mini": [
        *(
            Case(catalog.CHAT, {"messages": [{"role": "user", "content": f"What is {index} + {index}?"}], **GREEDY})
            for index in range(10, 30)
        ),
        Case(catalog.CHAT, {"messages": USER, **GREEDY, "logprobs": True, "top_logprobs": 2}),
        Case(catalog.CHAT, {"messages": USER, "temperature": 1.5, "max_tokens": 12, "seed": 7, "n": 3}),
        Case(catalog.CHAT, {"messages": USER, **GREEDY, "structured_outputs": {"choice": ["one", "two"]}}),
        Case(catalog.COMPLETIONS, {"prompt": [QUESTION, "Sort these"], **GREEDY}),
        Case(catalog.COMPLETIONS, {"prompt": QUESTION, "max_tokens": 4, "echo": True, "temperature": 0}),
        Case(catalog.RESPONSES, {"input": QUESTION, "max_output_tokens": 24, "temperature": 0}),
        Case(catalog.RESPONSES, {"input": USER, "instructions": "Add.", "max_output_tokens": 2, "temperature": 0}),
        Case(catalog.MESSAGES, {"messages": USER, "system": "Add.", **GREEDY}),
        Case(catalog.MESSAGES, {"messages": USER, "max_tokens": 2, "temperature": 0}),
        Case(catalog.GENERATIVE_SCORING, {"query": QUESTION, "items": [" 9", " 5"], "label_token_ids": [20, 21]}),
        Case(catalog.GENERATE, {"token_ids": [9, 8, 7], "sampling_params": GREEDY, "output_mode": "text"}),
        Case(catalog.TOKENIZE, {"prompt": QUESTION}),
        Case(catalog.TOKENIZE, {"messages": USER, "add_generation_prompt": True}),
        Case(catalog.DETOKENIZE, {"tokens": [9, 8, 7]}),
    ],
    "embed": [
        Case(catalog.EMBEDDINGS, {"input": encoders.TEXTS}),
        Case(catalog.EMBEDDINGS, {"input": [3, 4, 5], "encoding_format": "base64"}),
        Case(catalog.SCORE, {"queries": encoders.QUERY, "documents": encoders.DOCUMENTS}),
        Case(catalog.RERANK, {"query": encoders.QUERY, "documents": encoders.DOCUMENTS, "top_n": 2}),
        Case(catalog.POOLING, {"input": encoders.TEXTS[:2]}),
    ],
    "sentiment": [Case(catalog.CLASSIFY, {"input": list(encoders.REVIEWS)})],
    "colours": [
        *(Case(catalog.CHAT, {"messages": pictures.messages(name), **GREEDY}) for name in pictures.NAMES),
        Case(catalog.CHAT, {"messages": pictures.messages("blue", "red"), **THINKING}),
        Case(catalog.CHAT, {"messages": pictures.messages(), **GREEDY}),
        Case(catalog.RESPONSES, {"input": [PICTURED], "max_output_tokens": 24, "temperature": 0}),
    ],
    "tones": [
        Case(catalog.TRANSCRIPTIONS, {"file_url": sounds.url(0, 1, 1), "language": "en"}),
        Case(catalog.TRANSCRIPTIONS, {"file_url": sounds.url(1, 0, language="de")}),
        Case(catalog.TRANSCRIPTIONS, {"file_url": sounds.url(0, 1), "prompt": "LOW HIGH", "response_format": "text"}),
        Case(catalog.TRANSLATIONS, {"file_url": sounds.url(1, 0, language="de"), "language": "de"}),
    ],
}
LENGTHS = {"colours": 256, "tones": 96}
"""Contexts; of others 128."""
ARGUMENTS: dict[str, dict[str, Any]] = {"colours": {"reasoning_parser": "deepseek_v3"}}
FLAGS: dict[str, dict[str, Any]] = {"tones": {}, **ARGUMENTS}
"""Flags of vLLM's commands beside those; others pool."""


class Content(NamedTuple):
    """What a response holds, whatever its endpoint."""

    texts: list[tuple[str | None, str | None, str | None]]
    labels: list[str]
    tokens: list[int]
    usage: tuple[int | None, int | None]
    numbers: list[float]


def content(response: dict[str, Any], body: dict[str, Any]) -> Content:
    usage = responses.usage(response)
    vectors = responses.vectors(response, body)
    probabilities = [probability for entry in response.get("data", ()) for probability in entry.get("probs", ())]
    return Content(
        [(output.text, output.reasoning, output.finish_reason) for output in responses.outputs(response)],
        responses.labels(response),
        responses.tokens(response),
        (usage.input_tokens, usage.output_tokens),
        [*(number for vector in vectors for number in vector), *responses.scores(response), *probabilities],
    )


def of(name: str) -> list[Case]:
    return [Case(endpoint, {"model": name, **body}) for endpoint, body in CASES[name]]


def ours(name: str) -> list[dict[str, Any]]:
    """Return the responses to the requests of a model in their order, from our engine."""
    endpoints = tuple({endpoint.path for endpoint, _ in CASES[name]})
    arguments = {"dtype": "float32", "max_model_len": LENGTHS.get(name, 128), "kv_cache_memory_bytes": 64 * 2**20}
    arguments |= ARGUMENTS.get(name, {})
    source = str(encoders.ROOT / "examples/models" / name)
    spec = ModelSpec(name=name, engine="vllm", source=source, endpoints=endpoints, engine_args=arguments)
    try:
        answers = [
            response
            for endpoint, cases in groupby(of(name), key=lambda case: case.endpoint)
            for response in pipelines.responses(spec, endpoint.path, [case.body for case in cases])
        ]
    finally:
        directory.stop_all(name)
    assert [answer["status_code"] for answer in answers] == [200] * len(answers), answers
    return [answer["body"] for answer in answers]


def in_batches(stack: RunningStack) -> list[dict[str, Any]]:
    """Return the responses to the requests of `mini` in their order, of a batch for each endpoint."""
    batches = []
    for endpoint, cases in groupby(of("mini"), key=lambda case: case.endpoint):
        lines = [
            {"custom_id": f"{number}", "method": "POST", "url": endpoint.path, "body": case.body}
            for number, case in enumerate(cases)
        ]
        batches.append(stack.submit(lines, endpoint=endpoint.path))
    ended = [stack.wait(batch, seconds=200) for batch in batches]
    answers = [line["response"] for batch in ended for line in stack.lines(batch.output_file_id)]
    assert [answer["status_code"] for answer in answers] == [200] * len(CASES["mini"]), answers
    return [answer["body"] for answer in answers]


def flags(name: str) -> list[str]:
    if name == "mini":
        return vllm_engines.mini_flags()
    more = {"max-model-len": LENGTHS.get(name, 128), **FLAGS.get(name, {"runner": "pooling"})}
    return vllm_commands.flags(encoders.ROOT / "examples/models" / name, name, **more)


def posted(server: httpx.Client, case: Case) -> httpx.Response:
    """Send a request to `vllm serve`, which takes audio as a file of a form."""
    if case.endpoint not in AUDIO:
        return server.post(case.endpoint.path, json=case.body)
    fields = {name: value for name, value in case.body.items() if name != "file_url"}
    media_type, content = audio.decoded(case.body["file_url"])
    return server.post(case.endpoint.path, data=fields, files={"file": ("audio.wav", content, media_type)})


def theirs(name: str, server: httpx.Client) -> list[dict[str, Any]]:
    """Return the responses of `vllm serve`."""
    with ThreadPoolExecutor(16) as threads:
        answers = threads.map(lambda case: posted(server, case), of(name))
        return [answer.raise_for_status().json() for answer in answers]


def of_batch(name: str, folder: Path) -> list[dict[str, Any] | None]:
    """Return the responses of `vllm run-batch`; None to a request that it does not take."""
    cases = [case if case.endpoint in IN_RUN_BATCH else None for case in of(name)]
    lines = [
        json.dumps({"custom_id": str(index), "method": "POST", "url": case.endpoint.path, "body": case.body})
        for index, case in enumerate(cases)
        if case is not None
    ]
    output = vllm_commands.run_batch(folder, "\n".join(lines), *flags(name)) if lines else []
    bodies = {line["custom_id"]: line["response"]["body"] for line in output}
    return [None if case is None else bodies[str(index)] for index, case in enumerate(cases)]


def check(name: str, ours: list[dict[str, Any]], others: Sequence[dict[str, Any] | None]) -> None:
    """Check that two ways give the same answers. None is the answer of a way that does not take the request."""
    for (endpoint, body), mine, other in zip(of(name), ours, others, strict=True):
        content_of_mine = content(mine, body)
        assert any(content_of_mine[:3]) or content_of_mine.numbers, (endpoint.path, mine)
        if other is None:
            continue
        expected = content(other, body)
        assert content_of_mine[:4] == expected[:4], (endpoint.path, body)
        assert content_of_mine.numbers == pytest.approx(expected.numbers, abs=TOLERANCE), (endpoint.path, body)
        assert all(map(math.isfinite, expected.numbers))


@pytest.mark.exhaustive
def test_batches_have_the_answers_of_vllm_serve(vllm_stack: RunningStack, vllm_serve: httpx.Client) -> None:
    check("mini", in_batches(vllm_stack), theirs("mini", vllm_serve))


@pytest.mark.exhaustive
def test_batches_have_the_answers_of_vllm_run_batch(vllm_stack: RunningStack, tmp_path: Path) -> None:
    check("mini", in_batches(vllm_stack), of_batch("mini", tmp_path))


@pytest.mark.exhaustive
@pytest.mark.usefixtures("cluster")
@pytest.mark.parametrize("name", [name for name in CASES if name != "mini"])
def test_all_three_ways_give_the_same_answers(name: str, tmp_path: Path) -> None:
    mine = ours(name)
    with vllm_commands.serving(tmp_path / "serve.log", *flags(name)) as server:
        check(name, mine, theirs(name, server))
    check(name, mine, of_batch(name, tmp_path))
