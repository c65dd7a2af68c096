"""An expectation is held, not held, or not decidable, as the interval of the difference says."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from recipes.experiment import verdicts
from recipes.experiment.expressions import parse
from recipes.experiment.variants import Variant
from recipes.measures import paired
from tests.recipes.experiment.made import measured, scored

ONES, HALVES, ZEROS = [1.0] * 20, [0.0, 1.0] * 10, [0.0] * 20


def variants(folder: Path, **scores: Sequence[float]) -> dict[str, Variant]:
    children = {name: scored(folder, name, values) for name, values in scores.items()}
    return {name: Variant(name, [child], [measured(child)]) for name, child in children.items()}


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("big.score > 0.5", "held"),
        ("big.score < 0.5", "not held"),
        ("big.score > small.score", "held"),
        ("small.score >= big.score", "not held"),
        ("half.score > 0.5", "not decidable at n = 20"),
        ("big.score >= big.score", "held"),
        ("big.score > big.score", "not decidable at n = 20"),
        ("big.scor > 0.5", "not decidable: no metric 'scor' of 'big'; did you mean 'score'?"),
    ],
)
def test_a_verdict_follows_from_the_interval(tmp_path: Path, text: str, words: str) -> None:
    by_name = variants(tmp_path, big=ONES, small=ZEROS, half=HALVES)
    (expression,) = parse(text, list(by_name))
    verdict = verdicts.judge(expression, by_name)
    assert verdict["words"] == words


@pytest.mark.parametrize(
    ("interval", "p", "side"),
    [
        (None, None, 0),
        ((0.1, 0.2), None, 1),
        ((-0.2, -0.1), 0.01, -1),
        ((-0.1, 0.1), 0.01, 0),
        ((0.0, 0.1), None, 0),
        ((0.1, 0.2), 0.05, 0),  # the p of a difference counts, too
    ],
)
def test_a_difference_has_a_side_if_interval_and_p_agree(
    interval: tuple[float, float] | None, p: float | None, side: int
) -> None:
    assert paired.side(interval, p) == side
