"""Measures of right and wrong samples of one prompt: pass@k, pass^k, majority@N, no_answer."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from math import comb


def sizes(samples: int) -> list[int]:
    """Return k = 1, 2, 4, … below `samples`, and `samples`."""
    return [*(2**power for power in range((samples - 1).bit_length())), samples]


def pass_at(samples: int, correct: int, size: int) -> float:
    """Return the probability that of `size` samples at least one is correct, `correct` of `samples` being so.

    The unbiased estimator of arXiv 2107.03374 (HumanEval). Exact, as both binomials are.
    """
    return 1 - comb(samples - correct, size) / comb(samples, size)


def pass_all(samples: int, correct: int, size: int) -> float:
    """Return the probability that of `size` samples all are correct: pass^k of arXiv 2406.12045 (tau-bench)."""
    return comb(correct, size) / comb(samples, size)


def majority(preds: Sequence[str | None], scores: Sequence[float]) -> float:
    """Return the mean score of the most frequent pair of prediction and score; 0 without one.

    Samples without a prediction have no vote. As NeMo-Skills counts majority@k.
    """
    counts = Counter((pred, score) for pred, score in zip(preds, scores, strict=True) if pred is not None)
    if not counts:
        return 0.0
    most = max(counts.values())
    winners = [score for (_, score), count in counts.items() if count == most]
    return sum(winners) / len(winners)


def no_answer(preds: Sequence[str | None]) -> bool:
    """Return True if no sample has a prediction: NeMo-Skills's no_answer."""
    return all(pred is None for pred in preds)
