"""Samples of batches: which lines, and how often the ranges that follow from them hold."""

from __future__ import annotations

import io
from collections.abc import Callable

import numpy as np
import pytest

from tasks.intake.sampling import SampledAnswer, lines, summary_of

ROWS = 100
SEEDS = 60
LENGTHS: dict[str, Callable[[np.random.Generator, np.ndarray], np.ndarray]] = {
    "all equal": lambda chance, prompts: np.full(len(prompts), 200.0),
    "normal": lambda chance, prompts: np.clip(chance.normal(300, 60, len(prompts)), 1, None),
    "long tail": lambda chance, prompts: np.exp(chance.normal(5, 0.7, len(prompts))),
    "two kinds": lambda chance, prompts: np.where(chance.random(len(prompts)) < 0.2, 1500.0, 100.0),
    "as long as the prompt": lambda chance, prompts: 0.8 * prompts + np.abs(chance.normal(0, 30, len(prompts))),
    "drifting along the file": lambda chance, prompts: np.linspace(50, 500, len(prompts)),
}


def file_of(lengths: np.ndarray) -> io.BytesIO:
    return io.BytesIO(b"".join(b"x" * int(length) + b"\n" for length in lengths))


def test_a_sample_has_one_line_of_each_stratum_and_is_the_same_again() -> None:
    file = file_of(np.arange(1, 1001))
    sample = lines(file, 10, 10_000, "seed")
    assert sorted((number - 1) // 100 for number in sample) == list(range(10))
    file.seek(0)
    assert lines(file, 10, 10_000, "seed") == sample
    file.seek(0)
    assert lines(file, 10, 10_000, "another") != sample


def test_a_file_without_more_lines_than_the_sample_has_none() -> None:
    assert lines(file_of(np.ones(10)), 10, 10_000, "seed") == frozenset()


@pytest.mark.parametrize("kind", LENGTHS)
def test_the_ranges_hold_in_nine_of_ten_files(kind: str) -> None:
    tokens = shares = 0
    for seed in range(SEEDS):
        chance = np.random.default_rng(seed)
        count = int(chance.choice([1000, 3000]))
        prompts = np.exp(chance.normal(5, 0.8, count)).astype(int) + 10
        outputs = LENGTHS[kind](chance, prompts).astype(int)
        failed = chance.random(count) < 0.07
        sample = [
            SampledAnswer(
                str(line), None, "no" if failed[line - 1] else None, False, False, int(prompts[line - 1]), 0, 0.0
            )._replace(output_tokens=int(outputs[line - 1]))
            for line in lines(file_of(prompts), ROWS, 10_000_000, f"{kind} {seed}")
        ]
        said = summary_of(sorted(sample, key=lambda one: (one.input_tokens, one.custom_id)), count)
        tokens += said["tokens"]["output_tokens"]["low"] <= outputs.sum() <= said["tokens"]["output_tokens"]["high"]
        shares += said["shares"]["failed"]["low"] <= failed.mean() <= said["shares"]["failed"]["high"]
    assert tokens >= 0.83 * SEEDS and shares >= 0.88 * SEEDS, (tokens, shares)
