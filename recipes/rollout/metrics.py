"""Metrics of recipe `rollout`, over all and by data source, and the blocks of its page."""

from array import array
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from batchyard.recipes import Block, Histogram, Lines, Report, Series, Table
from recipes.measures import intervals, verl
from recipes.measures.tally import Sample, SampledPrompt, Tally
from recipes.reports import histogram
from recipes.rollout.options import Rollout

MOST_SOURCES = 100
"""Data sources with metrics for each. Others count in those over all."""
MOST_BARS = 32


class Summary:
    """The metrics of a job, prompt by prompt."""

    def __init__(self, options: Rollout) -> None:
        self._options = options
        self._all = Tally()
        self._sources: dict[str, Tally] = {}
        self._scores: array[float] = array("d")
        self._solved = 0

    def add(self, data_source: str, samples: Sequence[Sample]) -> None:
        skips, adaptive = self._options.skip_unanswered, self._options.threshold is not None
        prompt = SampledPrompt(samples, self._options.n, skip_unanswered=skips, adaptive=adaptive)
        self._all.add(prompt)
        if data_source in self._sources or len(self._sources) < MOST_SOURCES:
            self._sources.setdefault(data_source, Tally()).add(prompt)
        scores = [sample.score for sample in samples if sample.judged]
        self._scores.extend(scores)
        self._solved += self._options.threshold is not None and prompt.reaches(self._options.threshold)

    def report(self) -> Report:
        metrics = self._all.metrics()
        if len(self._sources) > 1:
            sources = {name: tally.metrics() for name, tally in sorted(self._sources.items())}
        else:  # it has all prompts
            sources = dict.fromkeys(self._sources, metrics)
        if self._options.threshold is not None:
            solved = self._solved / self._all.prompts if self._all.prompts else None
            interval = intervals.wilson(self._solved, self._all.prompts)
            metrics = {**metrics, "solved": solved, "intervals": {**metrics["intervals"], "solved": interval}}
        table = self._table({**sources, "all": metrics} if len(sources) > 1 else sources)
        view: list[Block | None] = [self._curve(metrics), self._correct(), self._rewards(), table]
        return Report({**metrics, "data_sources": sources}, [block for block in view if block is not None])

    def _curve(self, metrics: Mapping[str, Any]) -> Lines | None:
        """Return what more samples gain: pass@k, or where that is unknown best@k and worst@k."""
        n = self._options.n
        if "pass@1" in metrics:
            title, sizes, names, y_range = "pass@k", [1, *verl.sizes(n)], ["pass@{}", "pass^{}"], (0, 1)
        else:
            title, sizes, names = "best@k and worst@k", verl.sizes(n), ["best@{}/mean", "worst@{}/mean"]
            y_range = None  # a reward may be any number
        sizes = [size for size in sizes if all(name.format(size) in metrics for name in names)]
        if len(sizes) < 2:
            return None
        series = []
        for name in names:
            line = Series(name=name.format("k"), y=[metrics[name.format(size)] for size in sizes])
            ends = [metrics["intervals"].get(name.format(size)) for size in sizes]
            if all(ends):
                line.low, line.high = [end[0] for end in ends], [end[1] for end in ends]
            series.append(line)
        return Lines(title=title, x=sizes, series=series, y_range=y_range)

    def _correct(self) -> Histogram | None:
        if not self._all.correct:
            return None
        n = self._options.n
        width = n // MOST_BARS + 1
        values = [0] * (n // width + 1)
        for (correct, _), prompts in self._all.correct.items():
            values[correct // width] += prompts
        groups = [(first, min(first + width - 1, n)) for first in range(0, n + 1, width)]
        labels = [f"{first}" if first == last else f"{first} to {last}" for first, last in groups]
        return Histogram(title=f"Prompts by right samples of {n}", labels=labels, values=values)

    def _rewards(self) -> Histogram | None:
        scores = np.asarray(self._scores)
        if not len(scores):
            return None
        title = "Samples by reward"
        values, counts = np.unique(scores, return_counts=True)
        if len(values) > MOST_BARS:
            return histogram(title, scores, MOST_BARS)
        return Histogram(title=title, labels=[f"{value:g}" for value in values], values=counts.tolist())

    def _table(self, metrics: Mapping[str, Mapping[str, Any]]) -> Table:
        n = self._options.n
        names = [f"mean@{n}", "pass@1", f"pass@{n}", f"majority@{n}", "no_answer"]
        names = [name for name in dict.fromkeys(names) if any(name in entry for entry in metrics.values())]
        counts = ["prompts", "samples", "unanswered", "reward_errors"]
        rows = [[source, *(entry.get(name) for name in counts + names)] for source, entry in metrics.items()]
        columns = ["data source", *(name.replace("_", " ") for name in counts), *names]
        return Table(title="Data sources", columns=columns, rows=rows)
