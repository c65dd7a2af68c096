"""Each endpoint's answer has the shape that its clients read, and follows from the request alone."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from anthropic.types import Message
from openai.types import CreateEmbeddingResponse
from openai.types.audio import Transcription
from openai.types.responses import Response

from batchyard.endpoints import catalog
from batchyard.endpoints.base import Endpoint
from batchyard.models import ModelSpec
from inference.engines import echo_bodies
from inference.engines.echo import Echo

SPEC = ModelSpec(name="m", engine="echo", endpoints=tuple(catalog.ENDPOINTS))


def answer(entry: Endpoint, **body: Any) -> dict[str, Any]:
    request = {"model": "m", **(body or entry.example)}
    assert Echo.unsupported(SPEC, entry.path, request) is None
    reply = asyncio.run(Echo(SPEC, 60.0).answer(entry.path, request))
    assert (reply.status_code, reply.error) == (200, None)
    assert reply.body is not None
    return reply.body


@pytest.mark.parametrize("entry", [pytest.param(entry, id=path) for path, entry in catalog.ENDPOINTS.items()])
def test_the_example_of_every_endpoint_has_an_answer(entry: Endpoint) -> None:
    assert answer(entry)


def test_a_response_and_a_message_are_those_of_the_official_clients() -> None:
    response = Response.model_validate(answer(catalog.RESPONSES, input="to the yard"), strict=False)
    assert (response.output_text, response.status, response.usage and response.usage.input_tokens) == (
        "to the yard",
        "completed",
        3,
    )
    said = answer(catalog.MESSAGES, messages=[{"role": "user", "content": "to the yard"}], max_tokens=8)
    message = Message.model_validate(said)
    assert [block.text for block in message.content if block.type == "text"] == ["to the yard"]
    assert (message.stop_reason, message.usage.output_tokens) == ("end_turn", 3)


def test_each_input_has_a_vector_and_equal_inputs_equal_ones() -> None:
    vectors = CreateEmbeddingResponse.model_validate(answer(catalog.EMBEDDINGS, input=["a", "b", "a"])).data
    assert [vector.index for vector in vectors] == [0, 1, 2]
    assert vectors[0].embedding == vectors[2].embedding != vectors[1].embedding
    (long,) = answer(catalog.EMBEDDINGS, input="a", dimensions=1024)["data"]
    assert len(long["embedding"]) == 1024
    labels = [entry["label"] for entry in answer(catalog.CLASSIFY, input=["a", "a"])["data"]]
    assert len(labels) == 2 and len(set(labels)) == 1


def test_one_query_is_scored_with_all_documents_and_several_with_one_each() -> None:
    documents = ["the train is late", "it rains"]
    scores = answer(catalog.SCORE, queries="the train", documents=documents)["data"]
    assert [entry["score"] for entry in scores] == [0.5, 0.0]
    scores = answer(catalog.SCORE, text_1=["it rains", "it rains"], text_2=documents)["data"]
    assert [entry["score"] for entry in scores] == [0.0, 1.0]


def test_a_ranking_begins_with_the_best_and_has_top_n() -> None:
    documents = ["it rains", "the train is late", "the train"]
    results = answer(catalog.RERANK, query="the train", documents=documents, top_n=2)["results"]
    assert [(entry["index"], entry["document"]["text"]) for entry in results] == [(2, "the train"), (1, documents[1])]


def test_each_question_has_an_answer_of_its_type() -> None:
    questions = {
        "late": {"type": "noul", "instructions": "Late?"},
        "line": {"type": "choice", "criteria": {"red": None, "blue": "by the sea"}},
        "how": {"type": "score", "criteria": ["calm", "rough"]},
    }
    answers = answer(catalog.SYSTEMONE, state="The train was late.", questions=questions)["answers"]
    assert (answers["late"]["noul"], answers["line"]["choice"], answers["how"]["score"]) == (1.0, "red", 0.0)


def test_a_transcription_says_what_it_was_given_and_is_that_of_the_official_client() -> None:
    body = answer(catalog.TRANSCRIPTIONS)
    assert Transcription.model_validate(body).text == "audio/wav 3244"
    assert (
        answer(catalog.TRANSCRIPTIONS, **catalog.TRANSCRIPTIONS.example, prompt="to the yard")["text"] == "to the yard"
    )
    verbose = answer(catalog.TRANSCRIPTIONS, **catalog.TRANSCRIPTIONS.example, response_format="verbose_json")
    assert verbose["language"] == "en"


def test_a_text_may_plant_a_models_answer_and_its_probability() -> None:
    text = "Review <small 0.8>very good</small> <large 1>bad</large> <small x>no</small>"
    small, large = echo_bodies.planted(text, "small"), echo_bodies.planted(text, "large")
    assert small == ("very good", 2, "stop", 0.8) and large == ("bad", 1, "stop", 1.0)
    assert echo_bodies.planted(text, "other") is None
    assert small is not None
    request = {"model": "small", "messages": [{"role": "user", "content": text}], "logprobs": True}
    (choice,) = echo_bodies.response(catalog.CHAT.path, request, 1, small)["choices"]
    tokens = choice["logprobs"]["content"]
    assert [token["token"] for token in tokens] == ["very", "good"]
    assert sum(token["logprob"] for token in tokens) == pytest.approx(-0.2231, abs=1e-4)
