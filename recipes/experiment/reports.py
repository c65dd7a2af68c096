"""Reports of a comparison: comparison.csv, comparison.md, final_report.md, and the blocks of the job's page."""

import re
from collections.abc import Iterable, Iterator, Mapping
from datetime import UTC, datetime
from typing import Any

from batchyard.recipes import Bars, Block, Lines, Series, Table
from recipes.experiment.values import OF_ITEMS
from recipes.reports import NOTHING, csv_text, escaped, interval, number, section, table

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
    """Return comparison.csv: a row for each metric of each variant, with all digits."""
    rows = []
    for metric, variant, entry, difference in _rows(document, document["metrics"]):
        of_difference = [difference.get("n"), difference.get("mean"), *(difference.get("interval") or (None, None))]
        of_difference += [difference.get(name) for name in ("test", "p", "p_holm", "words")]
        ends = entry["interval"] or (None, None)
        rows.append([metric, variant, entry["n"], entry["mean"], *ends, *of_difference])
    return csv_text([*COLUMNS, *DIFFERENCE_COLUMNS], rows)


_COMPARED = ["metric", "variant", "n", "mean", "interval", "difference", "its interval", "p", "p (Holm)", "verdict"]


def _metrics(document: Document) -> Table:
    rows = []
    for metric, variant, entry, difference in _rows(document, headline(document)):
        words = "baseline" if variant == document["baseline"] else difference.get("words")
        if words is None:
            words = NOTHING if document["metrics"][metric]["by_item"] else "not decidable: no values by item"
        estimate = [number(entry["n"]), number(entry["mean"]), interval(entry["interval"])]
        compared = [number(difference.get("mean")), interval(difference.get("interval"))]
        ps = [number(difference.get(name)) for name in ("p", "p_holm")]
        rows.append([metric, variant, *estimate, *compared, *ps, words])
    return Table(title="Metrics by variant", columns=_COMPARED, rows=rows)


def _expectations(document: Document) -> Iterator[Table]:
    """Yield what became of the expectations, those that have to hold last."""
    columns = ["expression", "verdict", "n", "difference", "its interval", "p"]
    for title, kind in (("Expected", "expect"), ("To pass", "pass")):
        rows = []
        for verdict in document[kind]:
            figures = [number(verdict["n"]), number(verdict["difference"]), interval(verdict["interval"])]
            rows.append([verdict["expression"], verdict["words"], *figures, number(verdict["p"])])
        if rows:
            yield Table(title=title, columns=columns, rows=rows)


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
    lines = [line for block in _expectations(document) for line in section(block)]
    if document["passed"] is not None:
        lines += [f"The experiment has {'passed' if document['passed'] else 'not passed'}.", ""]
    return lines


def comparison(document: Document) -> str:
    """Return comparison.md."""
    shown = headline(document)
    lines = ["# Comparison", "", *_warnings(document), _method(document), "", *_verdicts(document)]
    lines += section(_metrics(document), "Metrics")
    whole = [name for name, metric in document["metrics"].items() if not metric["by_item"] and name not in shown]
    if whole:
        rows = [
            [metric, variant, number(entry["n"]), number(entry["mean"])]
            for metric, variant, entry, _ in _rows(document, whole)
        ]
        lines += section(Table(title="Metrics without values by item", columns=_COMPARED[:4], rows=rows))
    lines += ["comparison.csv has all metrics.", ""]
    return "\n".join(lines)


_RAN = [
    *("child", "job", "status", "recipe", "models", "seed"),
    *("items", "failed", "stuck", "input tokens", "output tokens"),
]
_HASHES = ["child", "configuration", "recipe", "input", "Batchyard", "started (UTC)", "seconds"]


def _ran(child: Mapping[str, Any]) -> list[Any]:
    counts, usage, models = (child.get(name) or {} for name in ("request_counts", "usage", "models"))
    named = [f"{name} ({models[name].get('engine', NOTHING)})" for name in sorted(models)]
    return [
        *(child["key"], child["job_id"], child["status"], child.get("recipe"), ", ".join(named), child.get("seed")),
        *(counts.get(name) for name in ("total", "failed", "stuck")),
        *(usage.get(name) for name in ("input_tokens", "output_tokens")),
    ]


def _hashes(child: Mapping[str, Any]) -> list[Any]:
    hashes = [child.get(name) for name in ("config_sha256", "recipe_sha256", "input_sha256")]
    started = child.get("started_at")
    return [
        child["key"],
        *(f"`{value[:HASH]}`" if value else NOTHING for value in hashes),
        child.get("batchyard"),
        NOTHING if started is None else f"{datetime.fromtimestamp(started, UTC):%Y-%m-%d %H:%M:%S}",
        number(child["seconds"]),
    ]


def final(document: Document) -> str:
    """Return final_report.md: what ran, what was expected, what came of it, and what failed."""
    counts = document["counts"]
    lines = ["# Report of the experiment", ""]
    lines += [f"{counts['completed']} of {counts['children']} children completed.", ""]
    lines += _warnings(document)
    if failed := _failed(document):
        lines += section(failed, "Failed", remark="Nothing of these is in the comparison.")
    lines += _verdicts(document)
    lines += section(_metrics(document), "Metrics", remark=_method(document))
    lines += section(_latency(document))
    if errors := _errors(document):
        lines += section(errors)
    lines += section(Table(title="What ran", columns=_RAN, rows=[*map(_ran, document["children"])]))
    lines += table(Table(columns=_HASHES, rows=[*map(_hashes, document["children"])]))
    lines += ["Every number is from the children's manifests, metrics, results and journals.", ""]
    return "\n".join(lines)


def _failed(document: Document) -> Table | None:
    failed = [child for child in document["children"] if child["status"] != "completed"]
    columns = ["child", "job", "status", "error"]
    rows = [[child["key"], child["job_id"], child["status"], child["error"]] for child in failed]
    return Table(title="Failed children", columns=columns, rows=rows) if rows else None


def _latency(document: Document) -> Table:
    quantiles = ["requests", "mean", "p50", "p90", "p95", "p99"]
    rows = [
        [name, *(number((variant["latency"] or {}).get(column)) for column in quantiles)]
        for name, variant in document["variants"].items()
    ]
    return Table(title="Seconds of requests", columns=["variant", *quantiles], rows=rows)


def _errors(document: Document) -> Table | None:
    rows = [
        [name, code, number(requests)]
        for name, variant in document["variants"].items()
        for code, requests in variant["errors"].items()
    ]
    return Table(title="Requests that failed", columns=["variant", "error", "requests"], rows=rows) if rows else None


def view(document: Document) -> list[Block]:
    """Return tables of verdicts and metrics, bars of the first metrics, lines over rounds, and what failed."""
    shown = headline(document)
    blocks: list[Block | None] = [*_expectations(document), _metrics(document)]
    for metric in shown[:2]:
        entries = document["metrics"][metric]["variants"]
        values = [entry["mean"] for entry in entries.values()]
        blocks.append(Bars(title=metric, labels=list(entries), values=values))
    blocks += _of_rounds(document, shown)
    blocks += [_latency(document), _errors(document), _failed(document)]
    return [block for block in blocks if block is not None]


def _of_rounds(document: Document, metrics: Iterable[str]) -> Iterator[Lines]:
    rounds = document["rounds"]
    numbers = sorted({entry["round"] for entry in rounds})
    values = {(entry["round"], entry["variant"]): entry["metrics"] for entry in rounds}
    names = list(dict.fromkeys(entry["variant"] for entry in rounds))
    present = [name for name in metrics if any(name in entry["metrics"] for entry in rounds)]
    for metric in present[:1]:
        lines = [[values.get((each, name), {}).get(metric) for each in numbers] for name in names]
        series = [Series(name=name, y=line) for name, line in zip(names, lines, strict=True)]
        yield Lines(title=f"{metric} by round", x=numbers, series=series)
