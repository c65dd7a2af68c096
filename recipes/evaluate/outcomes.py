"""What became of each question: its metrics, its cluster, its slices, and what was predicted."""

import functools
from array import array
from collections import Counter, defaultdict
from collections.abc import Mapping
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from batchyard.comparing.values import comparable
from batchyard.recipes import EndedItem
from recipes.evaluate.options import ASSERTS, JUDGE, Evaluate
from recipes.evaluate.scoring import normalized_truth
from recipes.measures import estimates
from recipes.measures.estimates import Clusters, MetricEstimate
from recipes.measures.paired import Values
from recipes.options import column_of
from recipes.reports import as_text
from recipes.rewards.choices import CHOICES, letter_of

Mask: TypeAlias = NDArray[np.bool_]
"""Which questions are meant."""
MOST_SLICES = 50
"""Values of a column that have metrics of their own: the most frequent ones."""
MOST_CLASSES = 20
"""Answers in a confusion matrix. An evaluation with more right answers has none."""
NO_PREDICTION, OTHER = "(none)", "(other)"
text_of = functools.partial(as_text, default=str)
"""Return a cell as a text."""


class Outcomes:
    """The questions of a job, in the order of the input."""

    def __init__(self, options: Evaluate) -> None:
        self._options = options
        self._columns: dict[str, array[float]] = {label: array("d") for label in options.labels}
        self._extra: dict[str, list[float]] = defaultdict(list)
        self._clusters: dict[str, int] = {}
        self._cluster_of = array("q")
        # Of each column the values, by question
        self.slices: dict[str, list[str]] = {column: [] for column in options.slices}
        self.questions: list[str] = []  # what each is known by in another job
        self.counts = Counter[str](answers=0, unanswered=0, wrong=0, metric_errors=0)
        self.confusion: Counter[tuple[str, str]] | None = Counter()  # answers by the right one and the predicted one
        self.agreement: list[tuple[float, float]] = []  # the judge's and people's verdicts

    def __len__(self) -> int:
        return len(self.questions)

    def add(self, item: EndedItem, wrong: int) -> None:
        """Count a question with so many wrong answers. One that never ended counts 0."""
        options, result = self._options, item.result
        samples = result.get("samples") or [{"text": None}] * options.repeats
        self.questions.append(str(result.get("question") or f"{item.custom_id}"))
        for label, column in self._columns.items():
            column.append(result.get(label, float("nan") if label in (ASSERTS, JUDGE) else 0.0))
        if options.cluster is not None:
            name = text_of(column_of(item.columns, options.cluster))
            self._cluster_of.append(self._clusters.setdefault(name, len(self._clusters)))
        for column_name, values in self.slices.items():
            values.append(text_of(column_of(item.columns, column_name)))
        answered = [sample for sample in samples if sample["text"] is not None]
        self.counts["answers"] += len(samples)
        self.counts["unanswered"] += len(samples) - len(answered)
        self.counts["wrong"] += wrong
        for sample in answered:
            self.counts["metric_errors"] += len(sample.get("metric_errors") or ())
            for name, value in sample["values"].items():
                self._extra[name].append(value)
        if self.confusion is not None and (truth := self._truth(item.columns)) is not None:
            for sample in samples:
                pred = sample.get("pred")
                self.confusion[truth, NO_PREDICTION if pred is None else pred] += 1
            if len({truth for truth, _ in self.confusion}) > MOST_CLASSES:
                self.confusion = None
        if agreement := result.get("agreement"):
            self.agreement.append((agreement["judge"], agreement["people"]))

    def _truth(self, columns: Mapping[str, Any]) -> str | None:
        """Return the right answer in the form of predictions, None where metrics predict nothing that is compared."""
        metric = self._options.metrics[0] if self._options.metrics and self._options.choices is None else None
        if metric is None or metric.metric not in ("exact", "choice"):
            return None
        truth = column_of(columns, metric.ground_truth or self._options.ground_truth)
        if metric.metric == "choice":
            return letter_of(truth, columns.get(CHOICES))
        return None if truth is None else comparable(normalized_truth(truth, metric.ignore))

    @property
    def clusters(self) -> Clusters | None:
        """The cluster of each question, None if each is one."""
        return None if self._options.cluster is None else np.asarray(self._cluster_of, np.int64)

    def column(self, label: str) -> Values:
        """Return a metric by question, NaN where it does not apply."""
        return np.asarray(self._columns[label])

    def estimates(self, where: Mask | None = None) -> dict[str, MetricEstimate]:
        """Return the estimates of the metrics that have values, of all questions or of those where a mask is true."""
        columns = {label: self.column(label) for label in self._columns}
        by_mask: dict[bytes, list[str]] = defaultdict(list)  # columns over the same questions are drawn together
        masks = {}
        for label, column in columns.items():
            there = np.isfinite(column) if where is None else np.isfinite(column) & where
            if there.any():
                masks[there.tobytes()] = there
                by_mask[there.tobytes()].append(label)
        result: dict[str, MetricEstimate] = {}
        for key, labels in by_mask.items():
            clusters = None if self.clusters is None else self.clusters[masks[key]]
            chosen = [columns[label][masks[key]] for label in labels]
            result |= dict(zip(labels, estimates.estimates(chosen, clusters), strict=True))
        return {label: result[label] for label in columns if label in result}

    def by_slice(self, column: str) -> dict[str, Mask]:
        """Return a mask of the questions of each value of a column, the most frequent first."""
        values = np.asarray(self.slices[column], dtype=object)
        return {name: values == name for name, _ in Counter(self.slices[column]).most_common(MOST_SLICES)}

    @property
    def extra(self) -> dict[str, float]:
        """The means of the other numbers that metrics have returned, over answers."""
        return {name: sum(values) / len(values) for name, values in self._extra.items()}
