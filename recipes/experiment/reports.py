"""Reports of a comparison: comparison.csv, comparison.md, final_report.md, and the blocks of the job's page."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Iterable, Iterator, Mapping
from datetime import UTC, datetime
from typing import Any

from recipes.experiment.tables import NOTHING, escaped, interval, number, table
from recipes.experiment.values import OF_ITEMS

Document = Mapping[str, Any]

USUAL = ("mean@", "pass@", "majority@", "acc/mean@")
"""Beginnings of the names of metrics of samples that readers look at first."""
HASH = 12
"""Characters of a hash that are printed."""
MOST_METRICS = 24
"""Metrics in tables for readers. comparison.csv and comparison.json have all."""
COLUMNS = ("metric", "variant", "n", "mean", "low", "high")
DIFFERENCE_COLUMNS = ("pairs", "difference", "difference_low", "difference_high", "test", "p", "p_holm", "verdict")


def headline(document: Document) -> list[str]:
    """Return the metrics that readers look at first: those of expectations, the usual ones of samples, other values."""
    texts = [verdict["expression"] for kind in ("expect", "pass") for verdict in document[kind]]
    named = [name for name in document["metrics"] if any(f".{name} " in f"{text} " for text in texts)]
    usual = [
        name
        for name, metric in document["metrics"].items()
        if metric["by_item"] and (not re.search("[@^]", name) or name.startswith(USUAL))
    ]
    usual.sort(key=lambda name: name in OF_ITEMS)
    return list(dict.fromkeys([*named, *usual]))[:MOST_METRICS]


def _rows(document: Document, metrics: Iterable[str]) -> Iterator[tuple[str, str, dict[str, Any], dict[str, Any]]]:
    """Yield metric, variant, its entry and its difference from the baseline; {} for none. The baseline comes first."""
    for metric in metrics:
        entries = document["metrics"][metric]["variants"]
        for variant in sorted(entries, key=lambda name: name != document["baseline"]):
            yield metric, variant, entries[variant], entries[variant].get("difference") or {}


def csv_of(document: Document) -> str:
    """Return a row for each metric of each variant, with all digits."""
    file = io.StringIO()
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow([*COLUMNS, *DIFFERENCE_COLUMNS])
    for metric, variant, entry, difference in _rows(document, document["metrics"]):
        low, high = entry["interval"] or (None, None)
        difference_low, difference_high = difference.get("interval") or (None, None)
        of_difference = [
            difference.get("n"),
            difference.get("mean"),
            difference_low,
            difference_high,
            *(difference.get(name) for name in ("test", "p", "p_holm", "words")),
        ]
        writer.writerow([metric, variant, entry["n"], entry["mean"], low, high, *of_difference])
    return file.getvalue()


_COMPARED = ["metric", "variant", "n", "mean", "interval", "difference", "its interval", "p", "p (Holm)", "verdict"]


def _compared(document: Document, metrics: Iterable[str]) -> Iterator[list[Any]]:
    for metric, variant, entry, difference in _rows(document, metrics):
        words = "baseline" if variant == document["baseline"] else difference.get("words")
        if words is None:
            words = NOTHING if document["metrics"][metric]["by_item"] else "not decidable: no values by item"
        yield [
            metric,
            variant,
            number(entry["n"]),
            number(entry["mean"]),
            interval(entry["interval"]),
            number(difference.get("mean")),
            interval(difference.get("interval")),
            number(difference.get("p")),
            number(difference.get("p_holm")),
            words,
        ]


_JUDGED = ["expression", "verdict", "n", "difference", "its interval", "p"]


def _judged(verdicts: Iterable[Mapping[str, Any]]) -> Iterator[list[str]]:
    for verdict in verdicts:
        figures = [number(verdict["n"]), number(verdict["difference"]), interval(verdict["interval"])]
        yield [verdict["expression"], verdict["words"], *figures, number(verdict["p"])]


def _method(document: Document) -> str:
    method = document["method"]
    return (
        f"Intervals are of {method['interval_percent']} %. Differences are left less right side or variant less "
        f"baseline, item by item: a paired bootstrap ({method['draws']} draws, seed {method['seed']}), and p of a "
        "paired permutation test, McNemar's exact one where all values are 0 or 1. p (Holm) is adjusted for the number "
        "of variants."
    )


def _warnings(document: Document) -> list[str]:
    return [line for warning in document["warnings"] for line in (f"**Warning:** {escaped(warning['message'])}", "")]


def _verdicts(document: Document) -> list[str]:
    lines = []
    for title, kind in (("Expected", "expect"), ("To pass", "pass")):
        if document[kind]:
            lines += [f"## {title}", "", *table(_JUDGED, _judged(document[kind]))]
    if document["passed"] is not None:
        lines += [f"The experiment has {'passed' if document['passed'] else 'not passed'}.", ""]
    return lines


def comparison(document: Document) -> str:
    """Return comparison.md."""
    shown = headline(document)
    lines = ["# Comparison", "", *_warnings(document), _method(document), "", *_verdicts(document), "## Metrics", ""]
    lines += table(_COMPARED, _compared(document, shown))
    whole = [name for name, metric in document["metrics"].items() if not metric["by_item"] and name not in shown]
    if whole:
        lines += ["## Metrics without values by item", "", *table(_COMPARED[:4], _whole(document, whole))]
    lines += ["comparison.csv has all metrics.", ""]
    return "\n".join(lines)


def _whole(document: Document, metrics: Iterable[str]) -> Iterator[list[str]]:
    for metric, variant, entry, _ in _rows(document, metrics):
        yield [metric, variant, number(entry["n"]), number(entry["mean"])]


def _when(seconds: float | None) -> str:
    return NOTHING if seconds is None else datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d %H:%M:%S")


_RAN = [
    "child",
    "job",
    "status",
    "recipe",
    "models",
    "seed",
    "items",
    "failed",
    "stuck",
    "input tokens",
    "output tokens",
]


def _ran(document: Document) -> Iterator[list[Any]]:
    for child in document["children"]:
        counts, usage = child.get("request_counts") or {}, child.get("usage") or {}
        models = child.get("models") or {}
        named = [f"{name} ({models[name].get('engine', NOTHING)})" for name in sorted(models)]
        yield [
            child["key"],
            child["job_id"],
            child["status"],
            child.get("recipe"),
            ", ".join(named),
            child.get("seed"),
            counts.get("total"),
            counts.get("failed"),
            counts.get("stuck"),
            usage.get("input_tokens"),
            usage.get("output_tokens"),
        ]


def _hashes(document: Document) -> Iterator[list[Any]]:
    for child in document["children"]:
        hashes = [child.get(name) for name in ("config_sha256", "recipe_sha256", "input_sha256")]
        yield [
            child["key"],
            *(f"`{value[:HASH]}`" if value else NOTHING for value in hashes),
            child.get("batchyard"),
            _when(child.get("started_at")),
            number(child["seconds"]),
        ]


def final(document: Document) -> str:
    """Return final_report.md: what ran, what was expected, what came of it, and what failed."""
    counts = document["counts"]
    lines = ["# Report of the experiment", ""]
    lines += [f"{counts['completed']} of {counts['children']} children completed.", ""]
    lines += _warnings(document)
    if failed := [child for child in document["children"] if child["status"] != "completed"]:
        rows = [[child["key"], child["job_id"], child["status"], child["error"]] for child in failed]
        lines += ["## Failed", "", "Nothing of these is in the comparison.", ""]
        lines += table(["child", "job", "status", "error"], rows)
    lines += _verdicts(document)
    lines += ["## Metrics", "", _method(document), "", *table(_COMPARED, _compared(document, headline(document)))]
    lines += ["## Seconds of requests", "", *table(_LATENCY, _latency(document))]
    if errors := list(_errors(document)):
        lines += ["## Requests that failed", "", *table(["variant", "error", "requests"], errors)]
    lines += ["## What ran", "", *table(_RAN, _ran(document))]
    columns = ["child", "configuration", "recipe", "input", "Batchyard", "started (UTC)", "seconds"]
    lines += [*table(columns, _hashes(document))]
    lines += ["Every number is from the children's manifests, metrics, results and journals.", ""]
    return "\n".join(lines)


_LATENCY = ["variant", "requests", "mean", "p50", "p90", "p95", "p99"]


def _latency(document: Document) -> Iterator[list[str]]:
    for name, variant in document["variants"].items():
        latency = variant["latency"] or {}
        yield [name, *(number(latency.get(column)) for column in _LATENCY[1:])]


def _errors(document: Document) -> Iterator[list[str]]:
    for name, variant in document["variants"].items():
        for code, requests in variant["errors"].items():
            yield [name, code, number(requests)]


# The page


def view(document: Document) -> list[dict[str, Any]]:
    """Return tables of verdicts and metrics, bars of the first metrics, lines over rounds, and what failed."""
    shown = headline(document)
    blocks: list[dict[str, Any]] = []
    for title, kind in (("Expected", "expect"), ("To pass", "pass")):
        if document[kind]:
            rows = list(_judged(document[kind]))
            blocks.append({"kind": "table", "title": title, "columns": _JUDGED, "rows": rows})
    rows = list(_compared(document, shown))
    blocks.append({"kind": "table", "title": "Metrics by variant", "columns": _COMPARED, "rows": rows})
    for metric in shown[:2]:
        entries = document["metrics"][metric]["variants"]
        values = [entry["mean"] for entry in entries.values()]
        blocks.append({"kind": "bars", "title": metric, "labels": list(entries), "values": values})
    blocks += _of_rounds(document, shown)
    rows = list(_latency(document))
    blocks.append({"kind": "table", "title": "Seconds of requests", "columns": _LATENCY, "rows": rows})
    if errors := list(_errors(document)):
        columns = ["variant", "error", "requests"]
        blocks.append({"kind": "table", "title": "Requests that failed", "columns": columns, "rows": errors})
    if failed := [child for child in document["children"] if child["status"] != "completed"]:
        rows = [[child["key"], child["job_id"], child["status"], child["error"]] for child in failed]
        columns = ["child", "job", "status", "error"]
        blocks.append({"kind": "table", "title": "Failed children", "columns": columns, "rows": rows})
    return blocks


def _of_rounds(document: Document, metrics: Iterable[str]) -> Iterator[dict[str, Any]]:
    rounds = document["rounds"]
    numbers = sorted({entry["round"] for entry in rounds})
    values = {(entry["round"], entry["variant"]): entry["metrics"] for entry in rounds}
    names = list(dict.fromkeys(entry["variant"] for entry in rounds))
    present = [name for name in metrics if any(name in entry["metrics"] for entry in rounds)]
    for metric in present[:1]:
        lines = [[values.get((each, name), {}).get(metric) for each in numbers] for name in names]
        series = [{"name": name, "y": line} for name, line in zip(names, lines, strict=True)]
        yield {"kind": "lines", "title": f"{metric} by round", "x": numbers, "series": series}
