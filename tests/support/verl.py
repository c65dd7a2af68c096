"""A transcription of verl's metrics of the samples of one prompt (0.9.1)."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from typing import Any

import numpy as np
from hypothesis import strategies as st

SCORES = st.sampled_from([0.0, 1.0]) | st.floats(-2, 2, allow_subnormal=False)
PREDS = st.sampled_from(["1", "2", "3", "a", "a\0", ""])


def bootstrap_metric(data: list[Any], size: int, reduce: list[Callable[[Any], float]]) -> list[tuple[float, float]]:
    """A transcription of verl's `bootstrap_metric` (verl/trainer/ppo/metric_utils.py, 0.9.1)."""
    state = np.random.get_state()
    np.random.seed(42)
    table = np.array(data, dtype=object)
    indices = np.random.choice(len(table), size=(1000, size), replace=True)
    np.random.set_state(state)
    outcomes = [[function(table[row]) for row in indices] for function in reduce]
    return [(float(np.mean(outcome)), float(np.std(outcome))) for outcome in outcomes]


def majority_value(data: list[dict[str, Any]]) -> float:
    """A transcription of verl's `calc_maj_val`."""
    values = defaultdict(list)
    for entry in data:
        values[entry["pred"]].append(entry["val"])
    counts = {pred: len(entries) for pred, entries in values.items()}
    return float(values[max(counts, key=lambda pred: counts[pred])][0])


def verls(values: list[float], preds: list[str | None]) -> dict[str, float]:
    """A transcription of what verl's `process_validation_metrics` does with the samples of one prompt."""
    number = len(values)
    metrics = {f"mean@{number}": float(np.mean(values))}
    if number > 1:
        metrics[f"std@{number}"] = float(np.std(values))
        sizes, size = [], 2
        while size < number:
            sizes.append(size)
            size *= 2
        for size in [*sizes, number]:
            best, worst = bootstrap_metric(values, size, [np.max, np.min])
            metrics |= {f"best@{size}/mean": best[0], f"best@{size}/std": best[1]}
            metrics |= {f"worst@{size}/mean": worst[0], f"worst@{size}/std": worst[1]}
            if all(pred is not None for pred in preds):
                votes = [{"val": value, "pred": pred} for value, pred in zip(values, preds, strict=True)]
                [(mean, deviation)] = bootstrap_metric(votes, size, [majority_value])
                metrics |= {f"maj@{size}/mean": mean, f"maj@{size}/std": deviation}
    return metrics
