"""Generation in a batch stops when it has to, and a sample ends where its request says."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest

from batchyard.endpoints.bodies.sampling import SamplingParameters
from batchyard.endpoints.guards import REPETITION
from inference.engines.transformers.decoding import Decoder, GeneratedSample, generator
from tests.support.stacks import ROOT

pytestmark = pytest.mark.long


@pytest.fixture(scope="module")
def parts(tiny: Path) -> tuple[Any, Any]:
    """The tiny model and its tokenizer."""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    return AutoModelForCausalLM.from_pretrained(tiny).eval(), AutoTokenizer.from_pretrained(tiny)


class Generation:
    """One generation of samples for a prompt."""

    def __init__(self, parts: tuple[Any, Any], ends: frozenset[int] = frozenset()) -> None:
        self.model, self.tokenizer = parts
        self.ends = ends
        self.cancelled = threading.Event()
        self.steps = 0

    def run(
        self, *limits: int, seconds: float = 60, prompt_top: int | None = None, **parameters: Any
    ) -> list[GeneratedSample]:
        """Generate a sample for each limit of tokens."""
        prompt = self.tokenizer("what is a cluster?")["input_ids"]
        sampling = SamplingParameters(**{"temperature": 0.0, **parameters})
        samples = [
            GeneratedSample(prompt, sampling, limit, generator(1, index), prompt_top=prompt_top)
            for index, limit in enumerate(limits)
        ]
        decoder = Decoder(self.model, self.tokenizer, self.ends)
        decoder.generate(samples, seconds, self.cancelled, self._count)
        return samples

    def _count(self) -> None:
        self.steps += 1


def test_each_sample_ends_at_its_own_limit(parts: tuple[Any, Any]) -> None:
    generation = Generation(parts)
    samples = generation.run(2, 7, 4)
    assert [(len(sample.tokens), sample.finish_reason) for sample in samples] == [(n, "length") for n in (2, 7, 4)]
    assert samples[1].tokens[:4] == samples[2].tokens, "the others' ends change nothing"
    assert generation.steps == 7


def test_the_end_token_ends_a_sample_but_not_before_its_least_number_of_tokens(parts: tuple[Any, Any]) -> None:
    (free,) = Generation(parts).run(12)
    end = free.tokens[2]
    place = free.tokens.index(end)
    (ended,) = Generation(parts, frozenset({end})).run(12)
    assert (ended.tokens, ended.finish_reason) == (free.tokens[: place + 1], "stop")
    (longer,) = Generation(parts, frozenset({end})).run(12, min_tokens=place + 2)
    assert len(longer.tokens) > place + 1 and end not in longer.tokens[: place + 2]
    (ignoring,) = Generation(parts, frozenset({end})).run(12, ignore_eos=True)
    assert ignoring.tokens == free.tokens


def test_a_generation_that_nobody_wants_any_more_stops_after_the_next_token(parts: tuple[Any, Any]) -> None:
    generation = Generation(parts)
    generation.cancelled.set()
    (sample,) = generation.run(100)
    assert (len(sample.tokens), sample.finish_reason, generation.steps) == (1, None, 1)


def test_a_generation_that_takes_too_long_is_left_unfinished(parts: tuple[Any, Any]) -> None:
    (sample,) = Generation(parts).run(100, seconds=0.0)
    assert (len(sample.tokens), sample.finish_reason) == (1, None)


def test_a_prompt_whose_reading_takes_too_long_is_left_unfinished(
    parts: tuple[Any, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("inference.engines.transformers.decoding.LOGITS", 1)  # a column at a time
    generation = Generation(parts)
    (sample,) = generation.run(5, seconds=0, prompt_top=1)
    assert (generation.steps, sample.tokens, sample.finish_reason) == (1, [], None)


def test_a_token_has_its_logprob_and_the_most_likely_ones(parts: tuple[Any, Any]) -> None:
    (sample,) = Generation(parts).run(3, logprobs=True, top_logprobs=2)
    for token, (own, logprob, rank, top) in zip(sample.tokens, sample.logprobs, strict=True):
        assert own == token and rank == 1
        assert top[0] == (token, pytest.approx(logprob)), "the most likely one is taken at temperature 0"
        assert logprob < 0 and top[0][1] >= top[1][1]


def test_a_sample_that_repeats_itself_is_ended_if_that_is_wanted() -> None:
    from transformers import AutoModelForCausalLM, AutoTokenizer

    nano = ROOT / "examples/models/nano"
    parts = AutoModelForCausalLM.from_pretrained(nano, dtype="float32").eval(), AutoTokenizer.from_pretrained(nano)
    (free,) = Generation(parts).run(200)
    (ended,) = Generation(parts).run(200, **REPETITION)
    assert (ended.finish_reason, ended.stop) == ("repetition", "repetition_detected")
    assert ended.tokens == free.tokens[: len(ended.tokens)] and 128 <= len(ended.tokens) < len(free.tokens) == 200
    assert ended.text.count("FAIL") >= 1
