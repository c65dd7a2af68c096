"""Engine vllm with the example encoders: what they do, and the same numbers as engine transformers."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from batchyard.models import ModelSpec, vllm_installed
from inference.engines.transformers.engine import Transformers
from tests.support import encoders, pipelines, vllm_engines
from tests.support.rows import all_answers

pytestmark = [
    pytest.mark.vllm,
    pytest.mark.skipif(not vllm_installed(), reason="vLLM is not installed"),
    pytest.mark.usefixtures("cluster"),
]


@pytest.mark.parametrize(
    ("name", "check"),
    [
        # Other tests ask real vLLM for vectors, scores and ranks, so `make test` starts the one that gives labels.
        pytest.param("embed", encoders.vectors, marks=pytest.mark.exhaustive),
        pytest.param("rerank", encoders.scores, marks=pytest.mark.exhaustive),
        ("sentiment", encoders.probabilities),
    ],
)
def test_an_encoder_does_what_its_card_says_with_the_numbers_of_engine_transformers(
    name: str, check: Callable[[encoders.Ask], list[Any]]
) -> None:
    spec = vllm_engines.encoder_spec(name)
    made = check(through_pipeline(spec))
    (refused,) = pipelines.responses(spec, "/v1/completions", [{"model": name, "prompt": "Once"}])
    assert refused["body"]["error"]["code"] == "unsupported_endpoint"
    assert flat(made) == pytest.approx(flat(check(alone(encoders.encoder(name, "transformers")))), abs=2e-3)


def flat(values: list[Any]) -> list[float]:
    return [number for value in values for number in (value if isinstance(value, list) else [value])]


def through_pipeline(spec: ModelSpec) -> encoders.Ask:
    def ask(endpoint: str, body: dict[str, Any]) -> dict[str, Any]:
        (response,) = pipelines.responses(spec, endpoint, [body])
        assert response["status_code"] == 200, response
        made: dict[str, Any] = response["body"]
        return made

    return ask


def alone(spec: ModelSpec) -> encoders.Ask:
    engine = Transformers(spec, 60)
    asyncio.run(engine.start())

    def ask(endpoint: str, body: dict[str, Any]) -> dict[str, Any]:
        (answer,) = asyncio.run(all_answers(engine, endpoint, [body]))
        assert answer.body is not None
        return answer.body

    return ask
