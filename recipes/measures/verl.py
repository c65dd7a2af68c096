"""verl's metrics of one prompt's samples: mean@N, std@N, best@k, worst@k, maj@k.

They are those of `process_validation_metrics`, `bootstrap_metric` and `calc_maj_val` in verl 0.9.1
(`verl/trainer/ppo/metric_utils.py`), with the same numbers. verl draws anew for each prompt from a generator that it
seeds each time; here one table of draws serves all prompts with as many samples.
"""

import functools
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

DRAWS = 1000
SEED = 42


def sizes(samples: int) -> list[int]:
    """Return verl's k for so many samples: the powers of 2 from 2 on, below `samples`, and `samples`."""
    if samples <= 1:
        return []
    return [*(2**power for power in range(1, (samples - 1).bit_length())), samples]


@functools.lru_cache(maxsize=32)
def draws(samples: int, size: int) -> NDArray[np.int64]:
    """Return DRAWS rows of `size` indices below `samples`, drawn with replacement. Not to be written to."""
    return np.random.RandomState(SEED).choice(samples, size=(DRAWS, size), replace=True)


def metrics(values: Sequence[float], preds: Sequence[str | None] | None = None) -> dict[str, float]:
    """Return the metrics of one prompt's samples by name; maj@k only if each has a prediction."""
    votes = None
    if preds is not None and all(pred is not None for pred in preds):
        numbers: dict[str | None, int] = {}
        votes = tuple(numbers.setdefault(pred, len(numbers)) for pred in preds)
    return dict(_metrics(tuple(values), votes))


@functools.lru_cache(maxsize=1024)
def _metrics(values: tuple[float, ...], predicted: tuple[int, ...] | None) -> dict[str, float]:
    """Return the metrics of samples that predict these numbers. Many prompts have the same: all right, one way."""
    scores = np.asarray(values, dtype=np.float64)
    samples = len(scores)
    named = {f"mean@{samples}": float(np.mean(scores))}
    if samples == 1:
        return named
    named[f"std@{samples}"] = float(np.std(scores))
    votes = None if predicted is None else np.array(predicted)
    for size in sizes(samples):
        indices = draws(samples, size)
        drawn = scores[indices]
        outcomes = {"best": drawn.max(axis=1), "worst": drawn.min(axis=1)}
        if votes is not None:  # in each row the first vote for the winner; ties go to the earliest
            choices = int(votes.max()) + 1
            cells = votes[indices] + choices * np.arange(DRAWS)[:, None]
            counts = np.bincount(cells.ravel(), minlength=choices * DRAWS)
            outcomes["maj"] = drawn[np.arange(DRAWS), counts[cells].argmax(axis=1)]
        for name, outcome in outcomes.items():
            named[f"{name}@{size}/mean"] = float(np.mean(outcome))
            named[f"{name}@{size}/std"] = float(np.std(outcome))
    return named
