"""Reports of a tune: tune.json, summary.csv, report.md, and the blocks of the job's page.

`document` is tune.json. All others are made of it alone, so every number in them has a source.
"""

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from batchyard.recipes import Bars, Block, Lines, Matrix, Series, Table
from recipes.reports import csv_text, interval, number, section
from recipes.tune.cells import Tune, TunedModel
from recipes.tune.diagnosis import diagnose
from recipes.tune.recommendation import measured, meets, objective, pareto, recommend
from recipes.tune.results import STEADY, CellResult, at_once, is_steady
from recipes.tune.slo import SLO

Document = Mapping[str, Any]
MIB = 2**20
MOST_NAMED = 8
"""Cells that reports name beside a sentence. tune.json has all."""
HASH = 12
"""Characters of a hash that are printed."""
OTHER_VALUES = "Cells that ran with other values"


def document(options: Tune, bases: Sequence[TunedModel], results: Sequence[CellResult]) -> dict[str, Any]:
    """Return tune.json of `options.models` in their order, and of all results in theirs."""
    slo = objective(options)
    by_name = {base.name: base for base in bases}
    states = Counter(result.state for result in results)
    points = {}
    for result in results:
        medians = measured(result)
        if medians is not None and medians.p95 is not None and medians.tokens is not None:
            points[result.cell.name] = medians.p95, medians.tokens
    front = pareto(points)
    return {
        "options": options.model_dump(mode="json"),
        "slo": None if slo is None else str(slo),
        "models": {base.name: dict(base.entry) for base in bases},
        "simulated": any(result.simulated for result in results),
        "counts": {
            "cells": len(results),
            **{state: states[state] for state in ("completed", "failed", "over_budget", "not_run")},
            "meet_slo": sum(meets(result, slo) for result in results),
        },
        "recommendation": asdict(recommend(options, bases, results)),
        "pareto": front,
        "cells": [_cell(result, by_name[result.cell.model], slo, front) for result in results],
    }


def _cell(result: CellResult, base: TunedModel, slo: SLO | None, front: Sequence[str]) -> dict[str, Any]:
    medians, diagnosis = result.medians, diagnose(result, base)
    whole = measured(result)
    return {
        **result.model_dump(mode="json"),
        "entry": result.cell.entry(base),
        "medians": None if medians is None else asdict(medians),
        "tokens_range": None if result.tokens_range is None else list(result.tokens_range),
        "at_once": at_once(result, base),
        "steady": is_steady(result, base),
        "differing": result.differing,
        "meets_slo": meets(result, slo) if slo is not None and whole is not None else None,
        "broken": [
            bound.broken_by(getattr(whole, bound.metric)) for bound in (slo.broken(whole) if slo and whole else ())
        ],
        "pareto": result.cell.name in front,
        "diagnosis": None if diagnosis is None else asdict(diagnosis),
    }


def metrics(document: Document) -> dict[str, Any]:
    name = document["recommendation"]["cell"]
    figures: Document = next((row["medians"] for row in document["cells"] if row["cell"]["name"] == name), {})
    keys = ("rows", "tokens", "p50", "p95", "p99", "errors") if figures else ()
    return {**document["counts"], "recommended": name, **{f"recommended/{key}": figures[key] for key in keys}}


def csv_of(document: Document) -> str:
    """Return summary.csv: a row for each cell, with all digits."""
    rows = [_all_digits(row) for row in document["cells"]]
    return csv_text(rows[0], (row.values() for row in rows))


def _all_digits(row: Document) -> dict[str, Any]:
    cell, medians, diagnosis = row["cell"], row["medians"] or {}, row["diagnosis"] or {}
    low, high = row["tokens_range"] or (None, None)
    return {
        "cell": cell["name"],
        **{name: cell[name] for name in ("model", "preset", "repair_of", "batch", "concurrency")},
        "overrides": _overrides(cell["overrides"]),
        "state": row["state"],
        "repeats": len(row["repeats"]),
        "rows_per_second": medians.get("rows"),
        "tokens_per_second": medians.get("tokens"),
        "tokens_per_second_low": low,
        "tokens_per_second_high": high,
        **{name: medians.get(name) for name in ("p50", "p95", "p99", "errors")},
        **{name: row[name] for name in ("steady", "meets_slo", "pareto", "start_seconds")},
        "peak_memory_bytes": row["peak_memory"],
        "peak_gpu_memory_bytes": row["peak_gpu_memory"],
        "category": diagnosis.get("category"),
        "error": row["error"],
        "config_sha256": row["config_sha256"],
    }


def markdown(document: Document) -> str:
    """Return report.md: the recommendation and why, all cells, and why some failed."""
    counts, recommendation = document["counts"], document["recommendation"]
    lines = ["# Report of the tune", ""]
    lines += [f"{counts['completed']} of {counts['cells']} cells completed.", ""]
    if document["simulated"]:
        lines += ["Answers, and so speeds, are simulated.", ""]
    lines += ["## Recommendation", ""]
    lines += [
        f"* {each['text']}" + ("" if all(name in each["text"] for name in each["cells"]) else f" ({_names(each)})")
        for each in recommendation["sentences"]
    ]
    lines += [""]
    if recommendation["entry"]:
        lines += ["```toml", *recommendation["entry"].splitlines(), "```", ""]
    lines += section(_measured(document), remark=_method(document))
    for block in _troubles(document):
        lines += section(block, remark="They are not recommended." if block.title == OTHER_VALUES else "")
    rows = []
    for row in document["cells"]:
        batches = [job for repeat in row["repeats"] for job in repeat["jobs"]]
        hashed = f"`{row['config_sha256'][:HASH]}`" if row["config_sha256"] else number(None)
        cell = [row["cell"]["name"], row["state"], row["derived"], hashed]
        rows.append([*cell, len(row["repeats"]), ", ".join(batches)])
    columns = ["cell", "state", "derived model", "configuration", "repeats", "batches"]
    lines += section(Table(title="What ran", columns=columns, rows=rows))
    lines += ["Every number is from the cells' manifests and batches; tune.json has every repeat.", ""]
    return "\n".join(lines)


def _method(document: Document) -> str:
    repeats = document["options"]["repeats"]
    slo = f" The SLO is {document['slo']}." if document["slo"] else " No SLO was set."
    return (
        f"Figures are medians of {repeats} repeats, fewer if a cell's time ended, after a warm-up that is not counted. "
        "Batches side by side share the engine. A cell is steady if each repeat has "
        f"{STEADY} rows for each request that the engine runs at once.{slo}"
    )


def _names(sentence: Mapping[str, Any]) -> str:
    cells = sentence["cells"]
    return ", ".join(cells) if len(cells) <= MOST_NAMED else f"{len(cells)} cells: {', '.join(cells[:MOST_NAMED])}, …"


def _overrides(overrides: Mapping[str, Any]) -> str:
    return "; ".join(f"{key} = {json.dumps(value)}" for key, value in overrides.items())


def _measured(document: Document) -> Table:
    recommended = document["recommendation"]["cell"]
    columns = ["cell", "overrides", "side by side", "rows/s", "tokens/s", "range", "p50", "p95", "p99", "errors"]
    rows = []
    for row in document["cells"]:
        cell, medians = row["cell"], row["medians"] or {}
        errors = medians.get("errors")
        rows.append(
            [
                f"{cell['name']} (recommended)" if cell["name"] == recommended else cell["name"],
                _overrides(cell["overrides"]),
                number(cell["concurrency"]),
                *(number(medians.get(name)) for name in ("rows", "tokens")),
                interval(row["tokens_range"]),
                *(number(medians.get(name)) for name in ("p50", "p95", "p99")),
                number(None) if errors is None else f"{100 * errors:.3g} %",
                _yes(row["steady"]),
                "; ".join(row["broken"]) or (_yes(row["meets_slo"]) if row["state"] == "completed" else row["state"]),
            ]
        )
    return Table(title="Cells", columns=[*columns, "steady", "SLO"], rows=rows)


def _yes(value: bool | None) -> str:
    return number(None) if value is None else "yes" if value else "no"


def _troubles(document: Document) -> list[Table]:
    """Return the tables that say what a cell needs and what went wrong; one without rows is missing."""
    repairs = {row["cell"]["repair_of"]: row["cell"]["name"] for row in document["cells"]}
    parts = ["category", "severity", "evidence", "remedy"]
    starts: list[list[Any]] = []
    failures: list[list[Any]] = []
    errors: list[list[Any]] = []
    differing: list[list[Any]] = []
    for row in document["cells"]:
        name, sizes = row["cell"]["name"], [row["peak_memory"], row["peak_gpu_memory"]]
        if any(value is not None for value in (row["start_seconds"], *sizes)):
            mib = [number(None if size is None else round(size / MIB)) for size in sizes]
            starts.append([name, number(row["start_seconds"]), *mib, number(row["at_once"])])
        if diagnosis := row["diagnosis"]:
            failures.append([name, *(diagnosis[part] for part in parts), repairs.get(name, "")])
        counts = Counter[str]()
        for repeat in row["repeats"]:
            counts.update(repeat["errors"])
        errors += ([name, code, count] for code, count in counts.items())
        for key in row["differing"]:
            differing.append([name, key, *(json.dumps(each["overrides"].get(key)) for each in (row["cell"], row))])
    values = ["cell", "key", "value of the cell", "value by the manifest"]
    starting = ["cell", "start, s", "memory, MiB", "GPU memory, MiB", "requests at once"]
    blocks = (
        Table(title="Starts and memory", columns=starting, rows=starts),
        Table(title="Cells that failed", columns=["cell", *parts, "tried as"], rows=failures),
        Table(title="Requests that failed", columns=["cell", "error", "requests"], rows=errors),
        Table(title=OTHER_VALUES, columns=values, rows=differing),
    )
    return [block for block in blocks if block.rows]


def heat_map(document: Document) -> Matrix | None:
    """Return tokens/s over the first two dimensions with several values, by the fastest cells, or None."""
    rows = [row for row in document["cells"] if row["medians"] and row["state"] == "completed"]
    dimensions = {name: [row["cell"][name] for row in rows] for name in ("batch", "concurrency", "model")}
    for key in document["options"]["set"]:
        dimensions[key] = [row["cell"]["overrides"].get(key) for row in rows]
    varied = [name for name, values in dimensions.items() if len(_distinct(values)) > 1][:2]
    if len(varied) < 2:
        return None
    down, across = (_distinct(dimensions[name]) for name in varied)
    values: list[list[float | None]] = [[None] * len(across) for _ in down]
    for row, y, x in zip(rows, dimensions[varied[0]], dimensions[varied[1]], strict=True):
        line, at = values[down.index(_text(y))], across.index(_text(x))
        line[at] = max(line[at] or 0, row["medians"]["tokens"] or 0)
    named = [[f"{name} {value}" for value in each] for name, each in zip(varied, (down, across), strict=True)]
    title = f"Tokens/s by {varied[0]} and {varied[1]}"
    return Matrix(title=title, rows=named[0], columns=named[1], values=values)


def _distinct(values: Iterable[Any]) -> list[str]:
    """Return different values as texts, numbers by their size, in front of them none at all."""
    numbers = sorted({value for value in values if isinstance(value, int | float)})
    return list(dict.fromkeys(_text(value) for value in (*(v for v in values if v is None), *numbers, *values)))


def _text(value: Any) -> str:
    if value is None:
        return "default"
    return value if isinstance(value, str) else json.dumps(value)


def view(document: Document) -> list[Block]:
    """Return the recommendation, the cells, tokens/s by cell, the Pareto front, a heat map, and what failed."""
    rows: list[list[Any]] = [[each["text"], _names(each)] for each in document["recommendation"]["sentences"]]
    blocks: list[Block] = [Table(title="Recommendation", columns=["", "cells"], rows=rows)]
    if entry := document["recommendation"]["entry"]:
        lines = [[line] for line in entry.splitlines()]
        blocks.append(Table(title="Entry of models.toml", columns=["models.toml"], rows=lines))
    blocks.append(_measured(document))
    there = [row for row in document["cells"] if row["medians"]]
    if there:
        names, values = [row["cell"]["name"] for row in there], [row["medians"]["tokens"] for row in there]
        blocks.append(Bars(title="Tokens/s by cell", labels=names, values=values))
    front = [row["medians"] for row in there if row["pareto"]]
    if len(front) > 1:
        front.sort(key=lambda medians: medians["p95"])
        series = [Series(name="tokens/s", y=[medians["tokens"] for medians in front])]
        title = "Tokens/s over p95: cells that no other beats in both"
        blocks.append(Lines(title=title, x=[medians["p95"] for medians in front], series=series))
    if heat := heat_map(document):
        blocks.append(heat)
    return [*blocks, *_troubles(document)]
