"""Reports of a tune: tune.json, summary.csv, report.md, and the blocks of the job's page.

`document` is tune.json. All others are made of it alone, so every number in them has a source.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from batchyard.recipes import Bars, Block, Lines, Matrix, Series, Table
from recipes.reports import csv_files
from recipes.reports.markdown import interval, number, section
from recipes.tune.cells import TunedModel, TuneOptions
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
COLUMNS = (
    "cell",
    "model",
    "preset",
    "repair_of",
    "batch",
    "concurrency",
    "overrides",
    "state",
    "repeats",
    "rows_per_second",
    "tokens_per_second",
    "tokens_per_second_low",
    "tokens_per_second_high",
    "p50",
    "p95",
    "p99",
    "errors",
    "steady",
    "meets_slo",
    "pareto",
    "start_seconds",
    "peak_memory_bytes",
    "peak_gpu_memory_bytes",
    "category",
    "error",
    "config_sha256",
)


def document(options: TuneOptions, bases: Sequence[TunedModel], results: Sequence[CellResult]) -> dict[str, Any]:
    """Return tune.json.

    Args:
        bases: of `options.models`, in that order.
        results: of all cells, in the order in which they ran.
    """
    slo = objective(options)
    by_name = {base.name: base for base in bases}
    front = pareto(
        {
            result.cell.name: (medians.p95, medians.tokens)
            for result in results
            if (medians := measured(result)) is not None and medians.p95 is not None and medians.tokens is not None
        }
    )
    recommendation = recommend(options, bases, results)
    return {
        "options": options.model_dump(mode="json"),
        "slo": None if slo is None else str(slo),
        "models": {base.name: dict(base.entry) for base in bases},
        "simulated": any(result.simulated for result in results),
        "counts": {
            "cells": len(results),
            **{
                state: sum(result.state == state for result in results)
                for state in ("completed", "failed", "over_budget", "not_run")
            },
            "meet_slo": sum(meets(result, slo) for result in results),
        },
        "recommendation": recommendation.document(),
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
        "broken": [bound.broken_by(getattr(whole, bound.metric)) for bound in slo.broken(whole)]
        if slo and whole
        else [],
        "pareto": result.cell.name in front,
        "diagnosis": None if diagnosis is None else diagnosis.document(),
    }


def metrics(document: Document) -> dict[str, Any]:
    """Return the numbers of metrics.json."""
    chosen = _recommended(document)
    figures = chosen["medians"] if chosen else {}
    return {
        **document["counts"],
        "recommended": document["recommendation"]["cell"],
        **{
            f"recommended/{name}": figures[name]
            for name in ("rows", "tokens", "p50", "p95", "p99", "errors")
            if figures
        },
    }


def csv_of(document: Document) -> str:
    """Return summary.csv: a row for each cell, with all digits."""
    return csv_files.text_of(COLUMNS, _all_digits(document))


def _all_digits(document: Document) -> Iterator[list[Any]]:
    for row in document["cells"]:
        cell, medians, diagnosis = row["cell"], row["medians"] or {}, row["diagnosis"] or {}
        yield [
            cell["name"],
            cell["model"],
            cell["preset"],
            cell["repair_of"],
            cell["batch"],
            cell["concurrency"],
            _overrides(cell["overrides"]),
            row["state"],
            len(row["repeats"]),
            medians.get("rows"),
            medians.get("tokens"),
            *(row["tokens_range"] or (None, None)),
            *(medians.get(name) for name in ("p50", "p95", "p99", "errors")),
            *(row[name] for name in ("steady", "meets_slo", "pareto", "start_seconds")),
            row["peak_memory"],
            row["peak_gpu_memory"],
            diagnosis.get("category"),
            row["error"],
            row["config_sha256"],
        ]


def markdown(document: Document) -> str:
    """Return report.md: the recommendation and why, all cells, and why some failed."""
    counts, recommendation = document["counts"], document["recommendation"]
    lines = ["# Report of the tune", ""]
    lines += [f"{counts['completed']} of {counts['cells']} cells completed.", ""]
    if document["simulated"]:
        lines += ["Answers, and so speeds, are simulated.", ""]
    lines += ["## Recommendation", ""]
    lines += [
        f"* {text}" + ("" if all(name in text for name in cells) else f" ({_names(cells)})")
        for text, cells in _sentences(document)
    ]
    lines += [""]
    if recommendation["entry"]:
        lines += ["```toml", *recommendation["entry"].splitlines(), "```", ""]
    lines += section(_measured(document), remark=_method(document))
    for block in _troubles(document):
        lines += section(block, remark="They are not recommended." if block.title == OTHER_VALUES else "")
    lines += section(_ran(document))
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


def _sentences(document: Document) -> Iterator[tuple[str, Sequence[str]]]:
    for sentence in document["recommendation"]["sentences"]:
        yield sentence["text"], sentence["cells"]


def _names(cells: Sequence[str]) -> str:
    return ", ".join(cells) if len(cells) <= MOST_NAMED else f"{len(cells)} cells: {', '.join(cells[:MOST_NAMED])}, …"


def _overrides(overrides: Mapping[str, Any]) -> str:
    return "; ".join(f"{key} = {json.dumps(value)}" for key, value in overrides.items())


# Tables


def _measured(document: Document) -> Table:
    columns = ["cell", "overrides", "side by side", "rows/s", "tokens/s", "range", "p50", "p95", "p99", "errors"]
    rows = []
    for row in document["cells"]:
        cell, medians = row["cell"], row["medians"] or {}
        errors = medians.get("errors")
        rows.append(
            [
                _marked(document, row),
                _overrides(cell["overrides"]),
                number(cell["concurrency"]),
                number(medians.get("rows")),
                number(medians.get("tokens")),
                interval(row["tokens_range"]),
                *(number(medians.get(name)) for name in ("p50", "p95", "p99")),
                number(None) if errors is None else f"{100 * errors:.3g} %",
                _yes(row["steady"]),
                "; ".join(row["broken"]) or (_yes(row["meets_slo"]) if row["state"] == "completed" else row["state"]),
            ]
        )
    return Table(title="Cells", columns=[*columns, "steady", "SLO"], rows=rows)


def _marked(document: Document, row: Document) -> str:
    name: str = row["cell"]["name"]
    return f"{name} (recommended)" if name == document["recommendation"]["cell"] else name


def _yes(value: bool | None) -> str:
    return number(None) if value is None else "yes" if value else "no"


def _troubles(document: Document) -> list[Table]:
    """Return the tables that say what a cell needs and what went wrong; one without rows is missing."""
    blocks = (_memory(document), _failures(document), _errors(document), _differing(document))
    return [block for block in blocks if block.rows]


def _memory(document: Document) -> Table:
    rows = []
    for row in document["cells"]:
        sizes = [row["peak_memory"], row["peak_gpu_memory"]]
        if any(value is not None for value in (row["start_seconds"], *sizes)):
            mib = [number(None if size is None else round(size / MIB)) for size in sizes]
            rows.append([row["cell"]["name"], number(row["start_seconds"]), *mib, number(row["at_once"])])
    columns = ["cell", "start, s", "memory, MiB", "GPU memory, MiB", "requests at once"]
    return Table(title="Starts and memory", columns=columns, rows=rows)


def _failures(document: Document) -> Table:
    repairs = {row["cell"]["repair_of"]: row["cell"]["name"] for row in document["cells"]}
    parts = ["category", "severity", "evidence", "remedy"]
    rows = []
    for row in document["cells"]:
        if diagnosis := row["diagnosis"]:
            name = row["cell"]["name"]
            rows.append([name, *(diagnosis[part] for part in parts), repairs.get(name, "")])
    return Table(title="Cells that failed", columns=["cell", *parts, "tried as"], rows=rows)


def _errors(document: Document) -> Table:
    rows = []
    for row in document["cells"]:
        codes = dict.fromkeys(code for repeat in row["repeats"] for code in repeat["errors"])
        for code in codes:
            rows.append([row["cell"]["name"], code, sum(repeat["errors"].get(code, 0) for repeat in row["repeats"])])
    return Table(title="Requests that failed", columns=["cell", "error", "requests"], rows=rows)


def _differing(document: Document) -> Table:
    rows = []
    for row in document["cells"]:
        for key in row["differing"]:
            values = row["cell"]["overrides"].get(key), row["overrides"].get(key)
            rows.append([row["cell"]["name"], key, *map(json.dumps, values)])
    columns = ["cell", "key", "value of the cell", "value by the manifest"]
    return Table(title=OTHER_VALUES, columns=columns, rows=rows)


def _ran(document: Document) -> Table:
    rows = []
    for row in document["cells"]:
        batches = [job for repeat in row["repeats"] for job in repeat["jobs"]]
        sha256 = row["config_sha256"]
        hashed = f"`{sha256[:HASH]}`" if sha256 else number(None)
        rows.append(
            [row["cell"]["name"], row["state"], row["derived"], hashed, len(row["repeats"]), ", ".join(batches)]
        )
    columns = ["cell", "state", "derived model", "configuration", "repeats", "batches"]
    return Table(title="What ran", columns=columns, rows=rows)


def _recommended(document: Document) -> Document | None:
    name = document["recommendation"]["cell"]
    return next((row for row in document["cells"] if row["cell"]["name"] == name), None)


# Two dimensions


def heat_map(document: Document) -> Matrix | None:
    """Return tokens/s over the first two dimensions of which there are several values, None without two.

    Of several cells at one place the fastest counts. `batch` and `concurrency` come first.
    """
    rows = [row for row in document["cells"] if row["medians"] and row["state"] == "completed"]
    dimensions = {
        "batch": [row["cell"]["batch"] for row in rows],
        "concurrency": [row["cell"]["concurrency"] for row in rows],
        "model": [row["cell"]["model"] for row in rows],
        **{
            key: [row["cell"]["overrides"].get(key) for row in rows]
            for key in dict.fromkeys(document["options"]["set"])
        },
    }
    varied = [name for name, values in dimensions.items() if len(_distinct(values)) > 1][:2]
    if len(varied) < 2:
        return None
    down, across = (_distinct(dimensions[name]) for name in varied)
    values: list[list[float | None]] = [[None] * len(across) for _ in down]
    for row, y, x in zip(rows, dimensions[varied[0]], dimensions[varied[1]], strict=True):
        place = values[down.index(_text(y))], across.index(_text(x))
        place[0][place[1]] = max(place[0][place[1]] or 0, row["medians"]["tokens"] or 0)
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


# The page


def view(document: Document) -> list[Block]:
    """Return the recommendation, the cells, tokens/s by cell, the Pareto front, a heat map, and what failed."""
    rows: list[list[Any]] = [[text, _names(cells)] for text, cells in _sentences(document)]
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
