"""Engine transformers with encoders: vectors, scores, rankings and labels, each input as if it were alone."""

from __future__ import annotations

import asyncio
import json
import math
import shutil
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from batchyard.endpoints import catalog, responses
from batchyard.endpoints.base import Endpoint
from inference.engine import EngineAnswer
from inference.engines.transformers.engine import Transformers
from inference.engines.transformers.pooling import _pooled, activation, pooling_of
from tests.support import encoders
from tests.support.rows import all_answers

Start = Callable[[str], Transformers]


@pytest.fixture(scope="module")
def start() -> Start:
    """Starts an example encoder once."""
    engines: dict[str, Transformers] = {}

    def started(name: str) -> Transformers:
        if name not in engines:
            engines[name] = Transformers(encoders.encoder(name, "transformers", batch_size=4), 60)
            asyncio.run(engines[name].start())
        return engines[name]

    return started


def answers(engine: Transformers, endpoint: str, *bodies: dict[str, Any]) -> list[EngineAnswer]:
    for body in bodies:
        assert engine.unsupported(engine.spec, endpoint, body) is None
    return asyncio.run(all_answers(engine, endpoint, list(bodies)))


def asking(engine: Transformers) -> encoders.Ask:
    def ask(endpoint: str, body: dict[str, Any]) -> dict[str, Any]:
        (answer,) = answers(engine, endpoint, body)
        assert answer.status_code == 200 and answer.body is not None, answer
        assert responses.fault(answer.body) is None and responses.usage(answer.body).input_tokens
        return answer.body

    return ask


def test_texts_that_mean_the_same_are_neighbours(start: Start) -> None:
    encoders.vectors(asking(start("embed")))


def test_a_model_of_vectors_scores_and_ranks_by_their_cosines(start: Start) -> None:
    ask = asking(start("embed"))
    one, same, other, *_ = encoders.vectors(ask)
    texts = encoders.TEXTS
    body = ask(catalog.SCORE.path, {"model": "embed", "text_1": texts[0], "text_2": [texts[2], texts[1]]})
    wanted = [encoders.cosine(one, other), encoders.cosine(one, same)]
    assert responses.scores(body) == pytest.approx(wanted, abs=1e-5)
    pairs = ask(catalog.SCORE.path, {"model": "embed", "queries": texts[:2], "documents": texts[:2]})
    assert responses.scores(pairs) == pytest.approx([1, 1], abs=1e-5)
    ranked = ask(catalog.RERANK.path, {"model": "embed", "query": texts[0], "documents": [texts[3], texts[1]]})
    assert [entry["index"] for entry in ranked["results"]] == [1, 0]


def test_the_relevant_document_ranks_first_whatever_runs_beside_it(start: Start) -> None:
    ask = asking(start("rerank"))
    scores = encoders.scores(ask)
    alone = [
        responses.scores(ask(catalog.SCORE.path, {"model": "rerank", "queries": encoders.QUERY, "documents": document}))
        for document in encoders.DOCUMENTS
    ]
    assert [score for (score,) in alone] == pytest.approx(scores, abs=1e-4)
    raw = {"model": "rerank", "queries": encoders.QUERY, "documents": encoders.DOCUMENTS, "use_activation": False}
    logits = responses.scores(ask(catalog.SCORE.path, raw))
    assert [1 / (1 + math.exp(-logit)) for logit in logits] == pytest.approx(scores, abs=1e-4)


def test_reviews_have_their_labels_with_probabilities(start: Start) -> None:
    encoders.probabilities(asking(start("sentiment")))


def test_an_input_longer_than_the_context_is_that_rows_400(start: Start) -> None:
    long = "word " * 200
    for name, endpoint, body in (
        ("sentiment", catalog.CLASSIFY.path, {"input": long}),
        ("rerank", catalog.RERANK.path, {"query": "word", "documents": ["short", long]}),
        ("embed", catalog.SCORE.path, {"queries": long, "documents": "short"}),
    ):
        (answer,) = answers(start(name), endpoint, {"model": name, **body})
        assert answer.status_code == 400 and answer.body is not None
        assert answer.body["error"]["code"] == "context_length_exceeded"
        assert "are to be generated" not in answer.body["error"]["message"]


def test_an_encoder_takes_no_more_tokens_than_its_tokenizer_says(tmp_path: Path) -> None:
    spec = encoders.encoder("embed", "transformers")
    folder = shutil.copytree(spec.source, tmp_path / "short")
    config = json.loads((folder / "tokenizer_config.json").read_text())
    (folder / "tokenizer_config.json").write_text(json.dumps({**config, "model_max_length": 6}))
    engine = Transformers(spec.model_copy(update={"source": str(folder)}), 60)
    asyncio.run(engine.start())
    bodies = [{"model": "embed", "input": text} for text in ("the food was bad", "the food was bad again")]
    assert [answer.status_code for answer in answers(engine, catalog.EMBEDDINGS.path, *bodies)] == [200, 400]


@pytest.mark.parametrize(
    ("name", "endpoint"), [("embed", catalog.CLASSIFY), ("rerank", catalog.EMBEDDINGS), ("sentiment", catalog.CHAT)]
)
def test_an_endpoint_without_a_head_is_refused_with_what_the_model_can_do(
    start: Start, name: str, endpoint: Endpoint
) -> None:
    (answer,) = answers(start(name), endpoint.path, {"model": name, **endpoint.example, "max_tokens": None})
    assert answer.status_code == 400 and answer.body is not None
    assert answer.body["error"]["code"] == "unsupported_endpoint"
    assert f"cannot do {endpoint.path}; it can do /" in answer.body["error"]["message"]


@pytest.mark.parametrize(
    ("endpoint", "body", "param"),
    [
        (catalog.RERANK, {"query": "a", "documents": [{"content": [{"type": "text"}]}]}, "body.documents"),
        (catalog.SCORE, {"text_1": "a", "text_2": "b", "instruction": "c"}, "body.instruction"),
        (catalog.CLASSIFY, {"messages": [{"role": "user", "content": "a"}]}, "body.messages"),
    ],
)
def test_what_it_cannot_read_is_refused_in_validation(endpoint: Endpoint, body: dict[str, Any], param: str) -> None:
    unsupported = Transformers.unsupported(encoders.encoder("rerank", "transformers"), endpoint.path, body)
    assert unsupported is not None and unsupported[0] == param


@pytest.mark.parametrize(
    ("config", "pooling"),
    [
        ({"pooling_mode_cls_token": True, "pooling_mode_mean_tokens": False}, "cls"),
        ({"pooling_mode_cls_token": False, "pooling_mode_lasttoken": True}, "lasttoken"),
        ({"pooling_mode": "mean"}, "mean"),
        (None, "mean"),
    ],
)
def test_the_model_says_which_tokens_make_its_vector(
    tmp_path: Path, config: dict[str, Any] | None, pooling: str
) -> None:
    if config is not None:
        (tmp_path / "1_Pooling").mkdir()
        (tmp_path / "1_Pooling/config.json").write_text(json.dumps(config))
    (tmp_path / "config.json").write_text("{}")
    assert pooling_of(str(tmp_path), None) == pooling


def test_a_model_with_another_vector_does_not_start(tmp_path: Path) -> None:
    (tmp_path / "1_Pooling").mkdir()
    (tmp_path / "1_Pooling/config.json").write_text('{"pooling_mode_max_tokens": true}')
    with pytest.raises(ValueError, match=r"1_Pooling/config\.json names none of mean, cls, lasttoken"):
        pooling_of(str(tmp_path), None)


def test_padding_changes_no_vector_of_the_first_or_the_last_token() -> None:
    import torch

    states = torch.arange(12.0).reshape(2, 3, 2)
    mask = torch.tensor([[1, 1, 1], [1, 1, 0]])
    assert _pooled(states, mask, "cls").tolist() == [[0, 1], [6, 7]]
    assert _pooled(states, mask, "lasttoken").tolist() == [[4, 5], [8, 9]]
    assert _pooled(states, mask, "mean").tolist() == [[2, 3], [7, 8]]


@pytest.mark.parametrize(
    ("config", "outputs"),
    [
        ({"num_labels": 1}, [0.5]),
        ({"num_labels": 2}, [0.5, 0.5]),
        ({"num_labels": 2, "problem_type": "multi_label_classification"}, [0.5, 0.5]),
        ({"num_labels": 1, "problem_type": "regression"}, [0.0]),
        ({"num_labels": 1, "sentence_transformers": {"activation_fn": "torch.nn.modules.linear.Identity"}}, [0.0]),
        ({"num_labels": 1, "sbert_ce_default_activation_function": "torch.nn.modules.activation.Sigmoid"}, [0.5]),
    ],
)
def test_scores_are_made_of_logits_as_the_model_says(config: dict[str, Any], outputs: list[float]) -> None:
    assert activation(SimpleNamespace(**config))([0.0] * config["num_labels"]) == outputs


def test_a_model_that_names_a_function_of_its_author_does_not_start() -> None:
    config = SimpleNamespace(num_labels=1, sentence_transformers={"activation_fn": "os.system"})
    with pytest.raises(ValueError, match=r"names the activation os\.system"):
        activation(config)
