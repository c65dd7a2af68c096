"""Rounds of `cascade` played without a stack, as its composite would run them."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from batchyard.recipes import Answer, Item, Report
from batchyard.recipes.program import Request
from recipes.cascade.flow import answered
from recipes.cascade.options import Cascade, Round
from recipes.cascade.recipe import cascade
from recipes.cascade.rounds import NEXT
from tests.support.played import PlayedResults, PlayedRounds, finished, played

Models = Callable[[Item, Request], Answer | str]


def run(
    folder: Path, models: Models, rows: Sequence[Mapping[str, Any]], seed: int = 0, **options: Any
) -> tuple[Report, PlayedRounds]:
    """Run all rounds. Return the report, and the results with their artifacts."""
    wanted = Cascade.model_validate({"model": "large", "proxy": "small"} | options)
    made: list[tuple[Report, PlayedResults]] = []
    for child in cascade.children(wanted):
        values = Round.model_validate(child.options)
        results = played(answered, rows, values, models, job_seed=seed)
        made.append((finished(answered, results, values), results))
        if NEXT not in results.artifacts:
            break
        rows = results.lines(NEXT)
    results = PlayedRounds(made, folder)
    assert cascade.finish is not None
    return cascade.finish(results, wanted), results


def sure(text: str, probability: float) -> Answer:
    """Return an answer with a probability."""
    logprobs = {"content": [{"token": text, "logprob": math.log(probability)}]}
    return Answer(ok=True, text=text, input_tokens=10, output_tokens=2, extra={"logprobs": logprobs})


def planted(item: Item, request: Request) -> Answer:
    """Answer what the row plants: columns `small` and `large`, and the small model's probability `p`."""
    if request.stage == "proxy":
        return sure(item.columns["small"], item.columns["p"])
    return sure(item.columns["large"], 1.0)


def embedded(item: Item, request: Request) -> Answer:
    """Answer as `planted` does; embed a row as its column `vector`."""
    if request.stage != "embed":
        return planted(item, request)
    return Answer(ok=True, text="", input_tokens=3, extra={"data": [{"index": 0, "embedding": item.columns["vector"]}]})
