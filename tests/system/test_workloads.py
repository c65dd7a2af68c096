"""The benchmarks' requests have the shape that their docstrings say."""

from __future__ import annotations

import itertools
import random
import statistics
import sys

import pytest

from tests.support.stacks import ROOT

sys.path.append(str(ROOT / "benchmarks"))
import decoding
import harness
import public

SHARED = {
    public.synthetic_sessions: (0.6, 0.75),
    public.few_shot_evaluation: (0.7, 0.95),
    public.table_labels: (0.8, 0.95),
    public.conversations: (0.3, 0.4),
    public.samples: (0.0, 0.1),
    public.single_turn_chat: (0.0, 0.1),
    public.code_completion: (0.0, 0.1),
}
"""The least and the most part of the prompts' characters that another prompt begins with."""


def texts(bodies: list[harness.Body]) -> list[str]:
    return ["".join(message["role"] + message["content"] for message in body["messages"]) for body in bodies]


def alike(left: str, right: str) -> int:
    """The characters with which both begin."""
    return next((at for at, pair in enumerate(zip(left, right, strict=False)) if pair[0] != pair[1]), len(left))


@pytest.mark.parametrize("requests", SHARED, ids=lambda requests: requests.__name__)
def test_prompts_share_what_they_are_said_to(requests: public.Requests) -> None:
    prompts = sorted(texts(requests()))
    shared = sum(alike(*pair) for pair in itertools.pairwise(prompts)) / sum(map(len, prompts))
    least, most = SHARED[requests]
    assert least <= shared <= most
    assert prompts == sorted(texts(requests())), "the same in every run"
    assert len(set(prompts)) == len(prompts), "none is answered with another's answer"


def test_lengths_have_the_mean_and_the_spread_that_are_asked_for() -> None:
    chance = random.Random(1)
    lengths = [public.lognormal(chance, 100, 0.8, 10_000) for _ in range(20_000)]
    mean = statistics.fmean(lengths)
    assert mean == pytest.approx(100, rel=0.03) and statistics.pstdev(lengths) / mean == pytest.approx(0.8, rel=0.06)
    tail = [body["max_tokens"] for body in public.tail(6000, 1.5)]
    assert max(tail) == 400 and statistics.fmean(tail) == pytest.approx(45, rel=0.06)


def test_the_shortest_time_of_a_tail_depends_on_its_order() -> None:
    assert decoding.listed([1, 1, 1, 3], 2) == 4 and decoding.listed([3, 1, 1, 1], 2) == 3
    assert decoding.bound([3, 1, 1, 1], 2) == 3 and decoding.bound([1, 1, 1], 2) == 1.5
