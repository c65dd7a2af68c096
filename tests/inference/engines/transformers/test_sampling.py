"""The next token of a sample: penalties, then temperature, then what min_p, top_k and top_p leave."""

from __future__ import annotations

from collections import Counter
from importlib.util import find_spec
from typing import Any

import pytest

from batchyard.endpoints.bodies.sampling import SamplingParameters
from inference.engines.transformers.decoding import choose, generator, penalise

pytestmark = pytest.mark.skipif(find_spec("torch") is None, reason="needs torch")
LOGITS = [2.0, 1.0, 0.0, -1.0]


def drawn(times: int = 400, **parameters: Any) -> Counter[int]:
    """How often each token was drawn."""
    import torch  # takes a second: not in every test process

    sampling, source = SamplingParameters(**parameters), generator(7, 0)
    return Counter(choose(torch.tensor(LOGITS), sampling, source) for _ in range(times))


def penalised(prompt: list[int], output: list[int], **parameters: Any) -> list[float]:
    import torch

    return list(penalise(torch.tensor(LOGITS), SamplingParameters(**parameters), prompt, output).tolist())


def test_at_temperature_0_the_most_likely_token_is_taken() -> None:
    assert drawn(temperature=0.0).keys() == {0}


def test_without_limits_tokens_come_as_often_as_their_probability() -> None:
    import torch

    numbers, probabilities = drawn(4000), torch.tensor(LOGITS).softmax(-1)
    for token, probability in enumerate(probabilities.tolist()):
        assert numbers[token] / 4000 == pytest.approx(probability, abs=0.03)


@pytest.mark.parametrize(
    ("parameters", "tokens"),
    [
        ({"top_k": 2}, {0, 1}),
        ({"top_k": 0}, {0, 1, 2, 3}),
        ({"top_k": 99}, {0, 1, 2, 3}),
        ({"top_p": 0.7}, {0, 1}),  # 0.64 and 0.24: the second crosses the limit, and counts
        ({"top_p": 0.6}, {0}),
        ({"min_p": 0.2}, {0, 1}),  # 0.64, 0.24, 0.09, 0.03
        ({"min_p": 1.0}, {0}),
        ({"top_k": 3, "min_p": 0.1, "top_p": 0.95}, {0, 1, 2}),
    ],
)
def test_a_limit_leaves_the_likely_tokens(parameters: dict[str, Any], tokens: set[int]) -> None:
    assert drawn(**parameters).keys() == tokens


def test_a_high_temperature_evens_the_tokens_out() -> None:
    assert drawn(temperature=2.0)[3] > 40 > 20 > drawn(temperature=1.0)[3]


def test_a_seed_gives_the_same_tokens_and_the_next_sample_others() -> None:
    import torch

    def tokens(seed: int, sample: int) -> list[int]:
        source = generator(seed, sample)
        return [choose(torch.zeros(50), SamplingParameters(), source) for _ in range(10)]

    assert tokens(3, 0) == tokens(3, 0) != tokens(3, 1)
    assert tokens(3, 1) == tokens(4, 0)
    assert tokens(-1, 0) == tokens(2**64 - 1, 0), "a negative seed is a seed"


def test_what_was_said_is_penalised_and_frequency_counts_how_often() -> None:
    assert penalised([0], [1, 1], presence_penalty=0.5) == [2.0, 0.5, 0.0, -1.0]
    assert penalised([0], [1, 1, 3], frequency_penalty=0.5) == [2.0, 0.0, 0.0, -1.5]


def test_repetition_makes_tokens_of_the_prompt_less_likely_whatever_their_sign() -> None:
    assert penalised([0], [3], repetition_penalty=2.0) == [1.0, 1.0, 0.0, -2.0]


def test_without_penalties_nothing_changes() -> None:
    assert penalised([0], [1]) == LOGITS
