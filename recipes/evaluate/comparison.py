"""The comparison of an evaluation with an earlier one, question by question."""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import numpy as np

from batchyard import json_lines
from batchyard.recipes import Results
from recipes.evaluate.outcomes import Mask, Outcomes
from recipes.measures import paired
from recipes.measures.estimates import Clusters
from recipes.measures.paired import Values

RESULTS, CONFIG = "results.jsonl", "config.json"
_NOT_COMPARED = ("compare_with", "limit", "timeout", "retries", "shuffle", "streaming")
"""Options that change no answer."""
_VERDICTS = {1: "higher", -1: "lower", 0: "not decidable at n = {}"}


def compare(results: Results, job_id: str, outcomes: Outcomes, options: Mapping[str, Any]) -> dict[str, Any] | str:
    """Compare with a job, or return why that cannot be.

    `pairs` are questions that both have, `only_now` and `only_earlier` those that one of them has, `changed` the names
    of the options with another value. `changes` has each metric, and `slices` the first one over the questions with one
    value of a column: means over the same questions, and p by Holm's method, for the number of slices.
    """
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
    changes: dict[str, Any] = {}
    for label in labels:
        changes |= _changes({label: (sides[label], np.ones(len(places), bool))}, clusters)
    slices: dict[str, Any] = {}
    for column in outcomes.slices if labels else ():
        masks = {name: mask[places] for name, mask in outcomes.by_slice(column).items()}
        named = {f"{column} = {name}": mask for name, mask in masks.items() if mask.any()}
        slices |= _changes({name: (sides[labels[0]], mask) for name, mask in named.items()}, clusters)
    return {
        "job": job_id,
        "pairs": len(places),
        "only_now": len(outcomes) - len(places),
        "only_earlier": len(earlier) - len(places),
        "changed": _changed(before.get("options") or {}, options),
        "changes": changes,
        "slices": slices,
    }


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
    sides: Mapping[str, tuple[tuple[Values, Values], Mask]], clusters: Clusters | None
) -> dict[str, dict[str, Any]]:
    """Return the change of each metric or slice as metrics.json has it, with p for their number."""
    pairs, means = [], []
    for name, ((now, earlier), where) in sides.items():
        there = np.isfinite(now) & np.isfinite(earlier) & where
        if there.any():
            means.append((name, float(now[there].mean()), float(earlier[there].mean()), int(there.sum())))
            of_pairs = now[there], earlier[there]
            if clusters is not None:  # sums by the mean size of a cluster, so that their mean is that of questions
                sizes = np.bincount(clusters[there])
                present = sizes > 0
                sums = (np.bincount(clusters[there], values)[present] for values in of_pairs)
                first, second = (each / sizes[present].mean() for each in sums)
                of_pairs = first, second
            pairs.append(of_pairs)
    differences = paired.differences(pairs)
    changes = {}
    ps = paired.holm([each.p for each in differences])
    for (name, mean, before, n), each, p in zip(means, differences, ps, strict=True):
        changes[name] = {
            "n": n,
            "mean": mean - before,
            "intervals": {} if each.interval is None else {"mean": list(each.interval)},
            **{"now": mean, "earlier": before, "p": p},
            "verdict": _VERDICTS[paired.side(each.interval, p)].format(n),
        }
    return changes


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
