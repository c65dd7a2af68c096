"""Samples of batches: which lines, and how often the ranges that follow from them hold."""

from __future__ import annotations

import io
import math
from collections import Counter
from collections.abc import Callable
from fractions import Fraction

import numpy as np
import pytest
from sqlalchemy import update

from batchyard.models import ModelSpec, Tariff
from batchyard.tariffs import TotalCost
from store.records import Batch
from store.speeds import Throughput
from tasks.context import AppContext
from tasks.intake.sampling import SampledAnswer, cost_of, lines, report, seconds_of, summary_of
from tasks.scheduling.costs import DRIFT
from tests.support.planned import answers, finish_segment, plan_batch, reload

ROWS = 100
Lengths = Callable[[np.random.Generator, np.ndarray], np.ndarray]
LENGTHS: dict[str, Lengths] = {
    "all equal": lambda chance, prompts: np.full(len(prompts), 200.0),
    "normal": lambda chance, prompts: np.clip(chance.normal(300, 60, len(prompts)), 1, None),
    "long tail": lambda chance, prompts: np.exp(chance.normal(5, 1, len(prompts))),
    "two kinds": lambda chance, prompts: np.where(chance.random(len(prompts)) < 0.2, 1500.0, 100.0),
    "few very long": lambda chance, prompts: np.where(chance.random(len(prompts)) < 0.03, 4096.0, 100.0),
    "cut off": lambda chance, prompts: np.minimum(np.exp(chance.normal(5, 1.2, len(prompts))), 512),
    "as long as the prompt": lambda chance, prompts: 0.8 * prompts + np.abs(chance.normal(0, 30, len(prompts))),
    "drifting along the file": lambda chance, prompts: (
        np.linspace(50, 500, len(prompts)) * np.exp(chance.normal(0, 0.3, len(prompts)))
    ),
}
LENGTHS["mixed"] = lambda chance, prompts: np.choose(
    chance.integers(len(LENGTHS) - 1, size=len(prompts)), [of(chance, prompts) for of in list(LENGTHS.values())[:-1]]
)
TARIFF = Tariff(currency="EUR", input="0.5", output="2")
MODEL = ModelSpec(name="m", engine="echo", price=TARIFF)
SPEED = Throughput(1000.0, 400.0, 200.0, 0.0, 100.0, requests=10_000, in_flight=32, limit=32)


def file_of(lengths: np.ndarray) -> io.BytesIO:
    return io.BytesIO(b"".join(b"x" * int(length) + b"\n" for length in lengths))


def test_a_sample_has_one_line_of_each_stratum_and_is_the_same_again() -> None:
    file = file_of(np.arange(1, 1001))
    sample = lines(file, 10, 10_000, 1_000, "seed")
    assert sorted((number - 1) // 100 for number in sample) == list(range(10))
    file.seek(0)
    assert lines(file, 10, 10_000, 1_000, "seed") == sample
    file.seek(0)
    assert lines(file, 10, 10_000, 1_000, "another") != sample


def test_files_of_equal_rows_for_different_models_have_the_same_sample() -> None:
    lengths = np.random.default_rng(1).integers(1, 200, 1000)
    assert lines(file_of(lengths), 50, 10_000, 1_000) == lines(file_of(lengths + 7), 50, 10_000, 1_000)


def test_a_sample_counts_failures_by_code_and_answers_that_are_wrong_or_empty(
    context: AppContext, project: str
) -> None:
    expected = {1: ("to r1", "t"), 2: ("another", "t"), 3: ("to r3", "t")}
    batch = plan_batch(context, project, "abcdefghij", segment_requests=5, post_process=["score"], expected=expected)
    with context.database.write() as session:
        session.execute(update(Batch).values(sample_rows=5, sample_segments=1))
    finish_segment(context, batch, answers(range(1, 6), failed={3: "boom", 4: "boom"}, texts={5: ""}))
    found = report(context, reload(context.database, batch))
    assert (found["models"], found["sample"]["errors"]) == (["echo"], {"boom": 2})
    shares = {name: share["share"] for name, share in found["forecast"]["shares"].items()}
    assert shares == {
        **dict.fromkeys(("cut_off", "refused", "invalid", "looped"), 0),
        **{"failed": 0.4, "empty": 0.2, "wrong": 2 / 3},
    }
    assert [one["custom_id"] for one in found["sample"]["odd"]["wrong"]] == ["r3", "r2"], "by length"


def test_a_file_without_more_lines_than_the_sample_has_none() -> None:
    assert lines(file_of(np.ones(10)), 10, 10_000, 1_000, "seed") == frozenset()


def test_a_file_with_more_lines_than_a_batch_may_have_is_read_no_further() -> None:
    file = file_of(np.ones(1_000))
    assert lines(file, 10, 10_000, 100, "seed") == frozenset()
    assert file.tell() == 2 * 101


def held(seed: int) -> dict[str, bool]:
    """Return which ranges of a simulated file's sample hold: of tokens, time, cost and a share."""
    chance = np.random.default_rng(seed)
    kind, total = list(LENGTHS)[seed % len(LENGTHS)], int(math.exp(chance.uniform(math.log(1_000), math.log(200_000))))
    inputs = np.exp(chance.normal(5, 0.8, total)).astype(int) + 10
    outputs = np.maximum(LENGTHS[kind](chance, inputs).astype(int), 1)
    failed = chance.random(total) < chance.choice([0.02, 0.07, 0.2, 0.5])
    picked = sorted(lines(file_of(inputs), ROWS, 10_000_000, total, str(seed)))
    sample = [
        SampledAnswer(
            custom_id=f"{at}",
            text=None,
            error=("no", "") if failed[at] else None,
            flaws=frozenset({"failed"} if failed[at] else ()),
            scored=False,
            input_tokens=int(inputs[at]),
            output_tokens=int(outputs[at]),
            seconds=0,
        )
        for at in (number - 1 for number in picked)
    ]
    sample.sort(key=lambda one: (one.input_tokens, one.custom_id))
    used = sum(one.input_tokens for one in sample), sum(one.output_tokens for one in sample)
    models = {"m": MODEL.model_dump(mode="json")}
    said = summary_of(sample, total)["forecast"]
    spent = TotalCost({"EUR": Fraction(used[0] + 4 * used[1], 2_000_000)})
    cost = cost_of(models, spent, sample, total, (len(sample), *used))
    assert cost is not None
    rest = np.ones(total, bool)
    rest[[number - 1 for number in picked]] = False
    speed = SPEED.work_per_second * math.exp(chance.normal(0, DRIFT))
    true = {
        "tokens": (said["tokens"]["output_tokens"], outputs.sum()),
        "time": (seconds_of(SPEED, sample, total, total - ROWS), (1 + inputs + outputs)[rest].sum() / speed),
        "cost": ({name: float(cost[name]) for name in ("low", "high")}, (inputs.sum() + 4 * outputs.sum()) / 2e6),
        "share": (said["shares"]["failed"], failed.mean()),
    }
    return {name: said["low"] - 1e-6 <= value <= said["high"] + 1e-6 for name, (said, value) in true.items()}


@pytest.mark.long
@pytest.mark.parametrize("files", [45, pytest.param(400, marks=pytest.mark.exhaustive)])
def test_the_ranges_hold_in_nine_of_ten_files(files: int) -> None:
    found: Counter[str] = Counter()
    for seed in range(files):
        found.update(name for name, holds in held(seed).items() if holds)
    doubt = 0.1 if files < 100 else 0.0
    most = (0.95 + doubt) * files
    assert all((0.85 - doubt) * files <= found[name] <= most for name in ("tokens", "time", "cost", "share")), found
