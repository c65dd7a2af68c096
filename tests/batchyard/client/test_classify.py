"""Labels from classifications and from chats, and what is no label."""

from __future__ import annotations

import math
from typing import Any

import pytest

import batchyard
from batchyard.client.classify import Labels, _form
from batchyard.endpoints.base import AnswerForm
from batchyard.endpoints.catalog import CHAT, EMBEDDINGS, SYSTEMONE
from batchyard.errors import ConfigurationError
from batchyard.models import ModelSpec
from inference.engines.echo import Echo
from tasks.execution import engine_status
from tests.support.engine_server import EngineServer


@pytest.fixture
def server() -> Any:
    specs = (("vectors", EMBEDDINGS), ("echo", CHAT), ("decides", SYSTEMONE))
    return EngineServer(
        *(Echo(ModelSpec(name=name, engine="echo", endpoints=(entry.path,)), 60) for name, entry in specs)
    )


def answer_forms(engine: str) -> list[AnswerForm]:
    """What the server says of a chat model of this engine."""
    return engine_status.answer_forms(ModelSpec(name="m", engine=engine, endpoints=(CHAT.path,)))


def chat(text: str) -> dict[str, Any]:
    return {"choices": [{"message": {"content": text}, "finish_reason": "stop"}]}


def labelled(label: str) -> dict[str, Any]:
    return {"data": [{"index": 0, "label": label, "probs": [0.2, 0.7, 0.1], "num_classes": 3}]}


@pytest.mark.parametrize(
    ("body", "label", "probability"),
    [
        (chat("positive"), "positive", None),
        (chat(' "Positive".\n'), "positive", None),
        (chat('{"sentiment": "NEGATIVE"}'), "negative", None),
        (labelled("negative"), "negative", 0.7),
    ],
)
def test_an_answer_has_a_label_and_a_classifiers_a_probability(
    body: dict[str, Any], label: str, probability: float | None
) -> None:
    results = Labels(["positive", "negative"])
    assert results.keep(results.add(), body) is None
    assert results.column("label").values == [label]
    assert results.column("probability").values == [probability]


@pytest.mark.parametrize("body", [chat("I think it is positive"), chat("neutral"), labelled("neutral")])
def test_another_answer_is_no_label(body: dict[str, Any]) -> None:
    results = Labels(["positive", "negative"])
    assert "is none of the labels" in str(results.keep(results.add(), body))
    assert results.column("label").values == [None]


def test_a_decision_and_a_chat_with_logprobs_have_the_probabilities_of_all_labels() -> None:
    decided = {"answers": {"label": {"type": "choice", "probabilities": {"positive": 0.2, "negative": 0.8}}}}
    token = {
        "token": "positive",
        "logprob": math.log(0.6),
        "top_logprobs": [{"token": "neg", "logprob": math.log(0.2)}],
    }
    spoken = chat("positive")
    spoken["choices"][0]["logprobs"] = {"content": [token]}
    results = Labels(["positive", "negative"])
    for body in (decided, spoken):
        assert results.keep(results.add(), body) is None
    assert results.column("label").values == ["negative", "positive"]
    assert results.column("probability").values == [0.8, pytest.approx(0.75)]
    assert results.column("probabilities").values[1] == {
        "positive": pytest.approx(0.75),
        "negative": pytest.approx(0.25),
    }


def test_a_classifier_without_labels_keeps_its_own() -> None:
    results = Labels(None)
    assert results.keep(results.add(), labelled("spam")) is None
    assert results.column("label").values == ["spam"]


@pytest.mark.parametrize(
    ("engine", "form"),
    [
        ("vllm", {"structured_outputs": {"choice": ["a", "b"]}}),
        ("transformers", {}),
    ],
)
def test_an_engine_is_held_to_the_labels_as_it_can(engine: str, form: dict[str, Any]) -> None:
    assert _form(answer_forms(engine), ["a", "b"]) == form


def test_a_server_of_someone_else_gets_a_schema_of_openai() -> None:
    schema = _form(answer_forms("openai"), ["a", "b"])["response_format"]["json_schema"]["schema"]
    assert schema["properties"] == {"label": {"type": "string", "enum": ["a", "b"]}}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "is no classifier, so it has no labels of its own; pass labels"),
        ({"labels": "ab"}, "labels: pass two or more different ones"),
        ({"labels": ["a", "A"]}, "labels: pass two or more different ones"),
        ({"labels": ["a", " b"]}, "labels: each should be a text, without spaces around it"),
        ({"labels": ["a", "b"], "model": "vectors"}, "model vectors does not answer on /classify or /v1/chat"),
    ],
)
def test_what_cannot_be_classified_is_refused(server: Any, options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigurationError) as refusal:
        batchyard.classify([{"text": "a"}], "{text}", **{"model": "echo", "server": server, **options})
    assert message in str(refusal.value)
    assert server.made == []


def test_a_decision_is_asked_for_the_same_labels(server: Any) -> None:
    made = batchyard.classify(
        [{"text": "a"}], "{text}", model="decides", labels=["a", "b"], by="decision", details=True, server=server
    )
    assert sum(made[0]["probabilities"].values()) == pytest.approx(1)
    assert made[0]["probability"] == max(made[0]["probabilities"].values())
    with pytest.raises(ConfigurationError, match="does not answer on /classify or /v1/systemone"):
        batchyard.classify([{"text": "a"}], "{text}", model="echo", labels=["a", "b"], by="decision", server=server)


def test_a_chat_is_held_to_its_labels(server: Any) -> None:
    rows = [{"text": "a"}, {"text": None}]
    labels = ["first", "second"]
    made = batchyard.classify(rows, "{text}", model="echo", labels=labels, details=True, server=server)
    assert [row["label"] for row in made] == ["first", None], "engine echo takes the first choice"
    assert made[1]["error"] == "column text is empty"
