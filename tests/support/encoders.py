"""The example encoders: entries of them, requests to them, and what their answers show."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from batchyard.endpoints import catalog, responses
from batchyard.models import ModelSpec
from tests.support.stacks import ROOT

Ask = Callable[[str, dict[str, Any]], dict[str, Any]]
"""Sends a body to an endpoint of a model, and returns the response's body."""
TEXTS = [
    "The service was terrible.",
    "The service was anything but good.",
    "The camera was wonderful.",
    "What is 37 + 58?",
    "Add 12 and 30.",
]
QUERY = "When does the train leave the station?"
DOCUMENTS = [
    "The soup was cold.",
    "At noon the train will leave the old station.",
    "A ship at sea.",
    "The train is late.",
]
REVIEWS = {
    "The screen was excellent.": "positive",
    "The software was really annoying.": "negative",
    "The delivery was anything but annoying, and the price was anything but poor.": "positive",
    "The room was never fantastic.": "negative",
    "The food was great but the staff was awful.": "neutral",
    "The design was ordinary.": "neutral",
}
SERVED = {
    "embed": (catalog.EMBEDDINGS.path, catalog.SCORE.path, catalog.RERANK.path),
    "rerank": (catalog.SCORE.path, catalog.RERANK.path),
    "sentiment": (catalog.CLASSIFY.path,),
}


def encoder(name: str, engine: str, **arguments: Any) -> ModelSpec:
    source = str(ROOT / "examples/models" / name)
    arguments = {"dtype": "float32", **arguments}
    return ModelSpec(name=name, engine=engine, source=source, endpoints=SERVED[name], engine_args=arguments)


def entries(prefix: str) -> str:
    """Return entries of models.toml for the encoders on engine transformers, their names prefixed."""
    return "".join(
        f"""
[models.{prefix}{name}]
engine = "transformers"
source = "{ROOT}/examples/models/{name}"
endpoints = {list(endpoints)}
engine_args.dtype = "float32"
"""
        for name, endpoints in SERVED.items()
    )


def cosine(one: list[float], other: list[float]) -> float:
    return sum(left * right for left, right in zip(one, other, strict=True))


def vectors(ask: Ask) -> list[list[float]]:
    """Check that neighbours make sense, and return the vectors of TEXTS."""
    made = responses.vectors(ask(catalog.EMBEDDINGS.path, {"model": "embed", "input": TEXTS}))
    assert all(math.isclose(math.hypot(*vector), 1, rel_tol=1e-3) for vector in made)
    nearest = [
        max((other for other in range(5) if other != one), key=lambda other: cosine(made[one], made[other]))
        for one in range(5)
    ]
    assert nearest == [1, 0, nearest[2], 4, 3], "the terrible services are alike, and so are the sums"
    assert cosine(made[2], made[0]) > cosine(made[2], made[3]), "a review is nearer to a review than a sum"
    return made


def scores(ask: Ask) -> list[float]:
    """Check that the relevant document comes first, and return the scores of DOCUMENTS."""
    body = {"model": "rerank", "queries": QUERY, "documents": DOCUMENTS}
    made = responses.scores(ask(catalog.SCORE.path, body))
    ranked = ask(catalog.RERANK.path, {"model": "rerank", "query": QUERY, "documents": DOCUMENTS, "top_n": 2})
    assert [entry["index"] for entry in ranked["results"]] == [1, 3]
    assert ranked["results"][0]["document"]["text"] == DOCUMENTS[1]
    assert max(made) == made[1] > 0.8 and min(made) < 0.2
    return made


def probabilities(ask: Ask) -> list[list[float]]:
    """Check that reviews have their labels, and return the probabilities of each."""
    body = ask(catalog.CLASSIFY.path, {"model": "sentiment", "input": list(REVIEWS)})
    assert responses.labels(body) == list(REVIEWS.values())
    made: list[list[float]] = [entry["probs"] for entry in body["data"]]
    assert all(len(of_one) == 3 and math.isclose(sum(of_one), 1, rel_tol=1e-3) for of_one in made)
    return made
