"""Rollouts of scripted answers."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from batchyard.recipes import Answer, Item, Recipe, Report
from batchyard.recipes.program import Request
from recipes import registry
from recipes.rollout.options import Rollout
from tests.support.played import PlayedResults, finished, played

ROLLOUT: Recipe[Any] = registry.load(None).recipe("rollout")
QUESTION = [{"content": "6 * 7?", "role": "user"}]
GSM8K = {
    "data_source": "openai/gsm8k",
    "prompt": QUESTION,
    "ability": "math",
    "reward_model": {"ground_truth": "42", "style": "rule"},
    "extra_info": {"index": 3, "split": "train"},
}
LOST = Answer(ok=False, error={"code": "engine_died", "message": "It ended."}, status_code=500)


def options(**values: Any) -> Rollout:
    chosen = Rollout(**{"model": "mini", "n": 4} | values)
    assert ROLLOUT.check is not None
    ROLLOUT.check(chosen)
    return chosen


def scripted(*texts: str | Answer) -> Any:
    """Answers with these texts by the number of the request, again and again."""
    asked: dict[int, int] = {}

    def answer(item: Item, request: Request) -> Answer | str:
        number = asked[item.number] = asked.get(item.number, -1) + 1
        return texts[number % len(texts)]

    return answer


def run(rows: Sequence[Mapping[str, Any]], answer: Any, **values: Any) -> tuple[PlayedResults, Report]:
    results = played(ROLLOUT, rows, options(**values), answer)
    return results, finished(ROLLOUT, results, options(**values))


def table_of(results: PlayedResults) -> pa.Table:
    return pq.read_table(io.BytesIO(results.artifacts["rollouts.parquet"]))
