"""Metrics of samples: of each prompt, averaged over prompts, with intervals."""

from array import array
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from math import comb
from typing import Any

import numpy as np

from recipes.measures import intervals, verl

WITH_INTERVAL = ("mean@", "pass@", "pass^", "majority@", "acc/mean@")
"""Beginnings of the names of metrics that get an interval by bootstrap."""


@dataclass(frozen=True)
class Sample:
    """A sample of a prompt, scored."""

    answered: bool  # false for a request without an answer
    score: float = 0.0
    acc: float | None = None  # 1 if it is right; None if that is unknown
    pred: str | None = None
    values: Mapping[str, float] = field(default_factory=dict)  # the other numbers that the reward returned, by name
    error: bool = False  # the reward failed

    @property
    def judged(self) -> bool:
        """True if a reward has scored an answer. What it has not counts 0."""
        return self.answered and not self.error


def is_judged(kept: Mapping[str, Any]) -> bool:
    """Return True if a reward has scored a sample that the result of an item keeps."""
    return kept["text"] is not None and kept["error"] is None


def all_binary(results: Iterable[Sequence[Mapping[str, Any]]]) -> bool:
    """Return True if all kept scores are 0 or 1, unless the reward says what is right."""
    return all(
        kept["acc"] is not None or kept["score"] in (0, 1) for result in results for kept in result if is_judged(kept)
    )


def samples_of(result: Sequence[Mapping[str, Any]], size: int, *, binary: bool) -> Iterator[Sample]:
    """Yield the kept samples of an item; all `size` are lost if it was never asked.

    `binary`: a score of 1 is a right answer where the reward does not say which is.
    """
    for kept in result or [{"text": None}] * size:
        if kept["text"] is None:
            yield Sample(False)
        elif kept["error"] is not None:
            yield Sample(True, error=True)
        else:
            acc = kept["acc"] if kept["acc"] is not None else kept["score"] if binary else None
            yield Sample(True, kept["score"], acc, kept["pred"], kept["values"])


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


class SampledPrompt:
    """The metrics of one prompt by name."""

    def __init__(
        self, samples: Sequence[Sample], size: int, *, skip_unanswered: bool = False, adaptive: bool = False
    ) -> None:
        """`adaptive`: sampling ends with a good sample, so pass@k cannot be estimated."""
        self.samples = samples
        # Its samples; those without an answer count 0, without a prediction, unless they are skipped
        self.counted = [sample for sample in samples if sample.answered or not skip_unanswered]
        # Names of the reward's other numbers
        self.variables = {name for sample in self.counted if sample.judged for name in sample.values}
        accs = [sample.acc if sample.judged else 0.0 for sample in self.counted]
        known = not adaptive and None not in accs
        # How many of these are right; None if that is unknown
        self.correct = sum(acc == 1 for acc in accs) if known else None
        self.metrics = self._metrics(size) if self.counted else {}

    def reaches(self, threshold: float) -> bool:
        """Return True if a sample has this score."""
        return any(sample.judged and sample.score >= threshold for sample in self.samples)

    def _metrics(self, size: int) -> dict[str, float]:
        preds = [sample.pred if sample.judged else None for sample in self.counted]
        scores = [sample.score if sample.judged else 0.0 for sample in self.counted]
        number = len(scores)
        metrics = verl.metrics(scores, preds)
        for name in sorted(self.variables):
            # As verl does, samples for which a reward has no such value are left out.
            present = [sample for sample in self.counted if name in sample.values or not sample.judged]
            values = [sample.values.get(name, 0.0) if sample.judged else 0.0 for sample in present]
            named = [sample.pred if sample.judged else None for sample in present]
            metrics |= _of(name, verl.metrics(values, named if len(present) == len(self.counted) else None))
        metrics[f"majority@{number}"] = majority(preds, scores)
        metrics["no_answer"] = float(all(pred is None for pred in preds))
        for k in [] if self.correct is None else [1, *verl.sizes(size)]:
            if k <= number:
                metrics[f"pass@{k}"] = pass_at(number, self.correct or 0, k)
                metrics[f"pass^{k}"] = pass_all(number, self.correct or 0, k)
        return metrics


class _Column:
    """The values of one metric. Of many only their number and their sums are kept."""

    def __init__(self) -> None:
        self.values = array("d")  # all of them, or if there were more than MOST_DRAWN the last ones
        self._folded = 0
        self._total = 0.0
        self._squares = 0.0

    def add(self, value: float, times: int = 1) -> None:
        """Add a value, as often as `times` says."""
        for _ in range(times):
            if len(self.values) == intervals.MOST_DRAWN:
                self._total, self._squares = self._sums()
                self._folded += len(self.values)
                self.values = array("d")
            self.values.append(value)

    @property
    def is_whole(self) -> bool:
        """True if all values are kept."""
        return self._folded == 0

    @property
    def mean(self) -> float:
        return float(np.mean(self.values)) if self.is_whole else self._sums()[0] / len(self)

    @property
    def normal_interval(self) -> tuple[float, float]:
        total, squares = self._sums()
        mean = total / len(self)
        return intervals.normal(mean, max(0.0, squares / len(self) - mean**2), len(self))

    def __len__(self) -> int:
        return self._folded + len(self.values)

    def _sums(self) -> tuple[float, float]:
        values = np.asarray(self.values)
        return self._total + float(values.sum()), self._squares + float(np.square(values).sum())


class Tally:
    """Prompts of a job, or of one data source of it."""

    def __init__(self) -> None:
        self.prompts = 0
        self.samples = 0
        self.unanswered = 0
        self.reward_errors = 0
        # Prompts by the number of right samples and of all; None if that is unknown for one of them
        self.correct: Counter[tuple[int, int]] | None = Counter()
        self._columns: dict[str, _Column] = defaultdict(_Column)
        self._variables: set[str] = set()
        self._unjudged: Counter[int] = Counter()

    def add(self, prompt: SampledPrompt) -> None:
        """Count a prompt."""
        self.prompts += 1
        self.samples += len(prompt.samples)
        self.unanswered += sum(not sample.answered for sample in prompt.samples)
        self.reward_errors += sum(sample.error for sample in prompt.samples)
        if prompt.correct is None:
            self.correct = None
        elif self.correct is not None and prompt.counted:
            self.correct[prompt.correct, len(prompt.counted)] += 1
        for name, value in prompt.metrics.items():
            self._columns[name].add(value)
        self._variables |= prompt.variables
        if prompt.counted and not any(sample.judged for sample in prompt.counted):
            self._unjudged[len(prompt.counted)] += 1

    def metrics(self) -> dict[str, Any]:
        """Return counts, mean metrics over the prompts that have them, and `intervals`; once, after all prompts."""
        unknown = ("pass@", "pass^") if self.correct is None else ()
        columns = {name: column for name, column in self._columns.items() if not name.startswith(unknown)}
        for number, count in self._unjudged.items():
            for variable in self._variables:
                for name, value in of_unjudged(variable, number).items():
                    columns.setdefault(name, _Column()).add(value, count)
        self._unjudged.clear()
        counts = {name: getattr(self, name) for name in ("prompts", "samples", "unanswered", "reward_errors")}
        means = {name: column.mean for name, column in columns.items()}
        named = {name: column for name, column in columns.items() if name.startswith(WITH_INTERVAL)}
        ends = {name: column.normal_interval for name, column in named.items() if not column.is_whole}
        whole = [name for _, name in sorted((len(column), name) for name, column in named.items() if column.is_whole)]
        ends.update(zip(whole, intervals.of_means([named[name].values for name in whole]), strict=True))
        if absent := columns.get("no_answer"):
            ends["no_answer"] = intervals.wilson(round(absent.mean * len(absent)), len(absent))
        return {**counts, **means, "intervals": ends}


def of_unjudged(variable: str, number: int) -> dict[str, float]:
    """Return the metrics of a reward's other number for a prompt without a judged sample."""
    return _of(variable, verl.metrics([0.0] * number))


def _of(variable: str, metrics: Mapping[str, float]) -> dict[str, float]:
    return {f"{variable}/{name}": value for name, value in metrics.items()}
