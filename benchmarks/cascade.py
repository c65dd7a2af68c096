"""Whether a cascade keeps its target, and what it costs: python benchmarks/cascade.py [--runs 400].

Each cell is so many seeded runs of the recipe's own decisions over simulated rows, at confidence 0.95, without models:
the target may be missed in 5 % of them. Beside the rows that the large model answers stand those of an oracle, which
knows all errors and needs no sample.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

from harness import machine, table, write

sys.path.insert(0, str(Path(__file__).parent.parent))
from recipes.measures.intervals import wilson
from tests.recipes.cascade import simulated

AGREE = (0.9, 0.95, 0.99)
ROWS = (500, 2000, 10_000, 50_000)


def cell(kind: str, rows: int, agree: float, runs: int) -> dict[str, Any]:
    """Return what became of the runs of one cell."""
    made = simulated.runs(kind, rows, agree, runs)
    budget = simulated.budget(agree, rows)
    missed = sum(run.errors > budget for _, run in made)
    return {
        "kind": kind,
        "rows": rows,
        "agree": agree,
        "missed": missed / runs,
        "interval": wilson(missed, runs),
        "large": statistics.mean(1 - run.proxy / rows for _, run in made),
        "oracle": statistics.mean(1 - drawn.best(budget) / rows for drawn, _ in made),
        "sampled": statistics.mean(run.sampled / rows for _, run in made),
        "looks": statistics.mean(run.looks for _, run in made),
    }


def cells(runs: int, processes: int) -> Iterator[dict[str, Any]]:
    """Yield all cells in their order."""
    with ProcessPoolExecutor(processes) as pool:
        wanted = [(kind, rows, agree, runs) for kind in simulated.KINDS for rows in ROWS for agree in AGREE]
        yield from pool.map(cell, *zip(*wanted, strict=True))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=400)
    parser.add_argument("--processes", type=int, default=1)
    arguments = parser.parse_args()
    made = list(cells(arguments.runs, arguments.processes))
    columns = ["rows", "n", "agree", "target missed (95 % interval)", "large model", "oracle", "sampled", "looks"]
    lines = [
        [
            each["kind"],
            f"{each['rows']:,}",
            each["agree"],
            f"{each['missed']:.1%} ({each['interval'][0]:.1%} to {each['interval'][1]:.1%})",
            *(f"{each[name]:.1%}" for name in ("large", "oracle", "sampled")),
            f"{each['looks']:.1f}",
        ]
        for each in made
    ]
    total = statistics.mean(each["missed"] for each in made)
    worst = max(each["missed"] for each in made)
    summary = (
        f"{arguments.runs} runs a cell: the target is missed in {total:.1%} of all, in {worst:.1%} of the worst cell."
    )
    write(
        "cascade",
        {"machine": machine("numpy"), "settings": {"runs": arguments.runs}, "cells": made},
        table(columns, lines),
        summary,
    )


if __name__ == "__main__":
    main()
