"""The comparison of an evaluation with an earlier one, question by question."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from batchyard import json_lines
from batchyard.recipes import Results
from recipes.evaluate.outcomes import Mask, Outcomes
from recipes.experiment.statistics import side
from recipes.measures import paired
from recipes.measures.estimates import Clusters
from recipes.measures.paired import Difference, Values

RESULTS, CONFIG = "results.jsonl", "config.json"
_NOT_COMPARED = ("compare_with", "limit", "timeout", "retries", "shuffle", "streaming")
"""Options that change no answer."""


@dataclass(frozen=True)
class MetricChange:
    """A metric of both runs over the questions that both have.

    Attributes:
        slice: the value of a column that these questions have, "" for all.
        now, earlier: means over the same questions.
        p: by Holm's method, for the number of slices.
    """

    metric: str
    slice: str
    now: float
    earlier: float
    difference: Difference
    p: float | None

    @property
    def verdict(self) -> str:
        """Whether it is higher or lower, or not decidable."""
        sign = side(self.difference.interval, self.p)
        return {1: "higher", -1: "lower", 0: f"not decidable at n = {self.difference.n}"}[sign]

    def document(self) -> dict[str, Any]:
        """Return the change as metrics.json has it."""
        interval = self.difference.interval
        return {
            "n": self.difference.n,
            "mean": self.difference.mean,
            "intervals": {} if interval is None else {"mean": list(interval)},
            "now": self.now,
            "earlier": self.earlier,
            "p": self.p,
            "verdict": self.verdict,
        }


@dataclass(frozen=True)
class RunComparison:
    """What has changed since an earlier run.

    Attributes:
        pairs: questions that both have.
        only_now, only_earlier: questions that one of them has.
        changed: names of the options with another value.
    """

    job_id: str
    pairs: int
    only_now: int
    only_earlier: int
    changed: list[str]
    changes: list[MetricChange]
    by_slice: list[MetricChange]


def compare(results: Results, job_id: str, outcomes: Outcomes, options: Mapping[str, Any]) -> RunComparison | str:
    """Compare with a job, or return why that cannot be."""
    path, config = (results.of_child(job_id, name) for name in (RESULTS, CONFIG))
    if path is None or config is None:
        return f"job {job_id} has no {RESULTS} (any more)"
    before = json_lines.loads(config.read_bytes())
    if before.get("recipe") != "evaluate":
        return f"job {job_id} is one of recipe {before.get('recipe')}, not of evaluate"
    with path.open("rb") as lines:
        earlier = dict(_numbered((line["result"] or {}) for line in map(json_lines.read, lines)))
    keys = list(_numbered({"question": question} for question in outcomes.questions))
    places = np.asarray([at for at, (key, _) in enumerate(keys) if key in earlier], np.int64)
    if not len(places):
        return f"job {job_id} has no question in common with this one"
    rows = [earlier[keys[at][0]] for at in places]
    labels = [label for label in outcomes.estimates() if any(label in row for row in rows)]
    sides = {
        label: (outcomes.column(label)[places], np.asarray([_value(row, label) for row in rows])) for label in labels
    }
    clusters = outcomes.clusters
    clusters = None if clusters is None else clusters[places]
    first = next(iter(labels), None)
    by_slice: list[MetricChange] = []
    for column in outcomes.slices if first is not None else ():
        masks = {name: mask[places] for name, mask in outcomes.by_slice(column).items()}
        named = {f"{column} = {name}": mask for name, mask in masks.items() if mask.any()}
        by_slice += _changes({(str(first), name): (sides[str(first)], mask) for name, mask in named.items()}, clusters)
    everywhere = np.ones(len(places), bool)
    return RunComparison(
        job_id=job_id,
        pairs=len(places),
        only_now=len(outcomes) - len(places),
        only_earlier=len(earlier) - len(places),
        changed=_changed(before.get("options") or {}, options),
        changes=[
            change for label in labels for change in _changes({(label, ""): (sides[label], everywhere)}, clusters)
        ],
        by_slice=by_slice,
    )


def _numbered(results: Iterable[Mapping[str, Any]]) -> Iterator[tuple[tuple[str, int], Mapping[str, Any]]]:
    """Yield the results that have a question, each with that and how many equal ones came before it."""
    seen = Counter[str]()
    for result in results:
        if question := result.get("question"):
            yield (question, seen[question]), result
            seen[question] += 1


def _value(row: Mapping[str, Any], label: str) -> float:
    value = row.get(label)
    return float(value) if isinstance(value, int | float) else float("nan")


def _changes(
    sides: Mapping[tuple[str, str], tuple[tuple[Values, Values], Mask]], clusters: Clusters | None
) -> list[MetricChange]:
    """Return the change of each metric and slice, with p for their number."""
    pairs, means, names = [], [], []
    for name, ((now, earlier), where) in sides.items():
        there = np.isfinite(now) & np.isfinite(earlier) & where
        if there.any():
            names.append(name)
            means.append((float(now[there].mean()), float(earlier[there].mean()), int(there.sum())))
            of_pairs = now[there], earlier[there]
            pairs.append(of_pairs if clusters is None else _by_cluster(*of_pairs, clusters[there]))
    differences = paired.differences(pairs)
    known = [each.p for each in differences if each.p is not None]
    adjusted = iter(paired.holm(known))
    return [
        MetricChange(
            *name,
            *mean[:2],
            Difference(mean[2], mean[0] - mean[1], each.interval, each.p, each.test),
            None if each.p is None else next(adjusted),
        )
        for name, mean, each in zip(names, means, differences, strict=True)
    ]


def _by_cluster(now: Values, earlier: Values, clusters: Clusters) -> tuple[Values, Values]:
    """Return the sums of each cluster by the mean size of one, so that the mean difference is that of questions."""
    sizes = np.bincount(clusters).astype(np.float64)
    there = sizes > 0
    mean_size = sizes[there].mean()
    sums = [np.bincount(clusters, values).astype(np.float64)[there] / mean_size for values in (now, earlier)]
    return sums[0], sums[1]


def _changed(before: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """Return the names of the options that have another value, one level deep."""
    names: list[str] = []
    for name in now:
        one, other = before.get(name), now[name]
        if one == other or name in _NOT_COMPARED:
            continue
        if isinstance(one, Mapping) and isinstance(other, Mapping):
            names += [f"{name}.{key}" for key in {**one, **other} if one.get(key) != other.get(key)]
        else:
            names.append(name)
    return names
