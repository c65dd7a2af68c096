"""Whether a cascade keeps its target, and what it costs: python benchmarks/cascade.py [--filter|--supg|--real 1200].

Each cell is so many seeded runs of the recipe's own decisions over simulated rows, at confidence 0.95, without models:
the target may be missed in 5 % of them. Beside the rows that the large model answers stand those of an oracle, which
knows all errors and needs no sample.

With `--filter` the cells are those of filters, with precision and recall as targets. With `--supg` they stand beside
SUPG (`supg.py`), which gets as many sampled rows in each run.

With `--real` the bundled models answer so many held-out problems instead: `nano` is the small model of `mini`, on
engine transformers. `mini` answers all rows, too, so that the agreement of all rows is known. With `--labels` they
label and filter so many reviews: small models are `nano` and `mini-embed`, whose vectors a classifier learns from.

With `--many` engine echo answers so many rows of a filter, whose scores are planted: what the rounds cost by row, and
the most memory that a process of the stack takes.
"""

from __future__ import annotations

import argparse
import random
import statistics
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import supg
from harness import RESULTS, machine, stack, table, write
from memory import Sampler

import batchyard
from batchyard.client import asking
from batchyard.client.api import ApiClient
from batchyard.client.map import CascadeResults, ask

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT))
sys.path.insert(0, str(ROOT / "examples/models"))
import problems  # noqa: E402  # of the demo models, which are no package

from recipes.measures.intervals import wilson  # noqa: E402
from tests.recipes.cascade import filtered, simulated  # noqa: E402

AGREE = (0.9, 0.95, 0.99)
ROWS = (500, 2000, 10_000, 50_000)
FILTER_TARGETS = (0.9, 0.95)
FILTER_ROWS = (500, 2000, 5000, 20_000)
SUPG_ROWS = (2000, 5000, 20_000)
QUANTILES = (0.05, 0.5, 0.95)


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
        "agreement": np.quantile([1 - run.errors / rows for _, run in made], QUANTILES).tolist(),
    }


def plot(made: Sequence[dict[str, Any]]) -> None:
    """Draw the measured agreement of 90 % of the runs, by the target, beside the line where both are equal."""
    import matplotlib as mpl

    mpl.use("svg")
    from matplotlib import pyplot

    figure, panels = pyplot.subplots(1, len(ROWS), figsize=(10, 3.4), layout="constrained", sharey=True)
    for axes, rows in zip(panels, ROWS, strict=True):
        axes.plot(AGREE, AGREE, "k--", linewidth=1, label="target")
        for place, kind in enumerate(simulated.KINDS):
            ends = np.array([each["agreement"] for each in made if (each["kind"], each["rows"]) == (kind, rows)])
            shift = 0.0012 * (place - len(simulated.KINDS) / 2)
            below, middle, above = ends.T
            errors = (middle - below, above - middle)
            axes.errorbar(np.array(AGREE) + shift, middle, errors, fmt=".", linewidth=1, label=kind)
        axes.set(title=f"{rows:,} rows", xlabel="agree", xticks=AGREE)
    panels[0].set_ylabel("measured agreement of all rows")
    figure.legend(*panels[0].get_legend_handles_labels(), loc="outside lower center", ncols=8, frameon=False)
    figure.savefig(RESULTS / "cascade.svg")


def filter_cell(kind: str, rows: int, target: float, runs: int) -> dict[str, Any]:
    """Return what became of the runs of one cell of filters, whose precision and recall have one target."""
    made = filtered.runs(kind, rows, target, target, runs)
    missed = sum(run.is_missed for _, run in made)
    return {
        "kind": kind,
        "rows": rows,
        "target": target,
        "missed": missed / runs,
        "interval": wilson(missed, runs),
        "large": statistics.mean(run.large / rows for _, run in made),
        "oracle": statistics.mean(drawn.best(target, target) / rows for drawn, _ in made),
        "sampled": statistics.mean(run.sampled / rows for _, run in made),
        "precision": statistics.mean(run.precision for _, run in made),
        "recall": statistics.mean(run.recall for _, run in made),
    }


def supg_cell(kind: str, rows: int, target: float, runs: int) -> dict[str, Any]:
    """Return how many rows the large model answers in filters by a cascade and by SUPG, and who misses a target."""
    made = filtered.runs(kind, rows, target, target, runs)
    large = {"cascade": [run.large for _, run in made]}
    large["oracle"] = [drawn.best(target, target) for drawn, _ in made]
    missed = {"cascade": sum(run.is_missed for _, run in made)}
    for name, select in (("joint", supg.joint), ("two cuts", supg.two_cuts)):
        selections = [
            select(of.scores, of.wanted, target, run.sampled, 0.05, np.random.default_rng([seed, rows]))
            for seed, (of, run) in enumerate(made)
            if run.sampled
        ]
        large[name] = [each.large for each in selections]
        missed[name] = sum(min(each.precision, each.recall) + 1e-12 < target for each in selections)
    return {
        "kind": kind,
        "rows": rows,
        "target": target,
        "runs": sum(run.sampled > 0 for _, run in made),
        "sampled": statistics.mean(run.sampled / rows for _, run in made),
        "large": {name: statistics.mean(values) / rows for name, values in large.items() if values},
        "missed": missed,
    }


def report_supg(runs: int, processes: int) -> None:
    made = list(cells(supg_cell, SUPG_ROWS, FILTER_TARGETS, runs, processes))
    names = ("cascade", "joint", "two cuts")
    columns = ["rows", "n", "target", "sampled", *names, "oracle", *(f"missed: {name}" for name in names)]
    lines = [
        [
            *(each["kind"], f"{each['rows']:,}", each["target"], f"{each['sampled']:.1%}"),
            *(f"{each['large'][name]:.1%}" if name in each["large"] else "-" for name in (*names, "oracle")),
            *(f"{each['missed'][name]} of {each['runs']}" for name in names),
        ]
        for each in made
    ]
    summary = f"{runs} runs a cell. Columns: share of rows that the large model answers, and runs that miss a target."
    settings = {"runs": runs}
    write(
        "cascade-supg",
        {"machine": machine("numpy"), "settings": settings, "cells": made},
        table(columns, lines),
        summary,
    )


def cells(
    make: Callable[..., dict[str, Any]], numbers: Sequence[int], targets: Sequence[float], runs: int, processes: int
) -> Iterator[dict[str, Any]]:
    """Yield all cells in their order."""
    with ProcessPoolExecutor(processes) as pool:
        wanted = [(kind, rows, target, runs) for kind in simulated.KINDS for rows in numbers for target in targets]
        yield from pool.map(make, *zip(*wanted, strict=True))


MODELS = "".join(
    f"""
[models.{name}]
engine = "transformers"
source = "{ROOT}/examples/models/{name}"
engine_args = {{ dtype = "float32" }}
"""
    for name in ("nano", "mini")
)
TASKS = {
    "easy": ("sentiment", "reverse", "sort"),
    "mixed": ("sentiment", "reverse", "sort", "sum"),
    "impossible": ("sum",),
}


def real(server: ApiClient, name: str, rows: int) -> dict[str, Any]:
    """Return what a cascade of one of TASKS did, beside what `mini` says of all rows."""
    tasks = TASKS[name]
    made = [problem for task in tasks for problem in problems.held_out(task, rows // len(tasks), 7)]
    random.Random(7).shuffle(made)
    table = [{"text": problem.prompt} for problem in made]
    how: dict[str, Any] = {"model": "mini", "temperature": 0, "max_tokens": 32, "progress": False, "server": server}
    began = time.monotonic()
    rows_of_cascade = batchyard.map(table, "{text}", cascade="nano", agree=0.95, details=True, name=name, **how)
    seconds = time.monotonic() - began
    metrics = next(server.jobs(recipe="cascade"))["batchyard"]["metrics"]
    began = time.monotonic()
    alone = batchyard.map(table, "{text}", name=name, **how)
    seconds_alone = time.monotonic() - began
    same = sum(row["answer"] == answer for row, answer in zip(rows_of_cascade, alone, strict=True))
    names = (
        "proxy",
        "large",
        "sampled",
        "threshold",
        "large_share",
        "audit",
        "tokens",
        "large_alone",
        "proxy_agreement",
    )
    agreement = {"agreement": same / len(table), "seconds": seconds, "seconds_alone": seconds_alone}
    return {"task": name, "rows": len(table), **agreement, **{name: metrics[name] for name in names}}


def report_real(rows: int) -> None:
    settings = {"BATCHYARD_MIN_WINDOW": "1s"}
    facts = machine("numpy", "transformers")
    with stack(MODELS, settings) as (server, _):
        made = [real(server, name, rows) for name in TASKS]
    columns = [
        "task",
        "rows",
        "models agree on",
        "rows by nano",
        "tokens of mini",
        "agreement",
        "audit",
        "seconds",
        "alone",
    ]
    lines = [
        [
            each["task"],
            each["rows"],
            f"{each['proxy_agreement']['mean']:.1%} of {each['sampled']}",
            f"{each['proxy'] / each['rows']:.1%}",
            f"{each['large_share']:.1%}",
            f"{each['agreement']:.1%}",
            " to ".join(f"{end:.1%}" for end in each["audit"]["intervals"].get("mean", ())) or "-",
            *(round(each[name]) for name in ("seconds", "seconds_alone")),
        ]
        for each in made
    ]
    write("cascade-real", {"machine": facts, "settings": settings, "tasks": made}, table(columns, lines))


LABELS = [f'{{"sentiment": "{label}"}}' for label in ("positive", "negative", "neutral")]
SMALL = {
    "nano": {"proxy": "nano"},
    "mini-embed": {"proxy": "", "embedding": "mini-embed"},
    "nano,mini-embed": {"proxy": "nano", "embedding": "mini-embed"},
}


def labels(server: ApiClient, rows: int) -> Iterator[dict[str, Any]]:
    """Yield what cascades did that label reviews, and that filter those that are not neutral for positive ones."""
    reviews = [{"text": problem.prompt} for problem in problems.held_out("sentiment", rows, 7)]
    how = asking.CallOptions(server=server, progress=False, name="reviews")
    body = {"model": "mini", "temperature": 0, "max_tokens": 32}
    alone = batchyard.map(reviews, "{text}", progress=False, server=server, **body)
    clear = [number for number, answer in enumerate(alone) if answer in LABELS[:2]]
    for small, options in SMALL.items():
        for task, wanted, targets in (
            ("labels", range(len(reviews)), {"labels": LABELS, "agree": 0.95}),
            ("filter", clear, {"labels": LABELS[:2], "precision": 0.9, "recall": 0.9}),
        ):
            results = CascadeResults({**options, **targets, "structured": False})
            began = time.monotonic()
            ask(results, [reviews[number] for number in wanted], "{text}", None, body, how)
            seconds = time.monotonic() - began
            pairs = list(zip(results.columns(None)["answer"].values, (alone[number] for number in wanted), strict=True))
            kept = [answer == LABELS[0] for answer, _ in pairs]
            right = [wanted == LABELS[0] for _, wanted in pairs]
            both = sum(map(min, kept, right))
            measured = {"precision": both / sum(kept), "recall": both / sum(right)}
            if task == "labels":
                measured = {"agree": sum(answer == wanted for answer, wanted in pairs) / len(pairs)}
            metrics = next(server.jobs(recipe="cascade"))["batchyard"]["metrics"]
            yield {"task": task, "small": small, "seconds": seconds, "measured": measured, **metrics}


def report_labels(rows: int) -> None:
    settings = {"BATCHYARD_MIN_WINDOW": "1s"}
    facts = machine("numpy", "transformers")
    embed = f'''[models.mini-embed]\nengine = "transformers"\nsource = "{ROOT}/examples/models/embed"\n'''
    embed += """endpoints = ["/v1/embeddings"]\nengine_args = { dtype = "float32" }\n"""
    with stack(MODELS + embed, settings) as (server, _):
        made = list(labels(server, rows))
    columns = [
        "task",
        "small",
        "rows",
        "certified",
        "trained",
        "sampled",
        "by the small model",
        "tokens of mini",
        "measured",
    ]
    lines = [
        [
            *(each[name] for name in ("task", "small", "rows", "certified")),
            each.get("trained", 0),
            each["sampled"],
            f"{each['proxy'] / each['rows']:.1%}",
            f"{each['large_share']:.1%}",
            ", ".join(f"{name} {share:.1%}" for name, share in each["measured"].items()),
        ]
        for each in made
    ]
    write("cascade-labels", {"machine": facts, "settings": settings, "tasks": made}, table(columns, lines))


def report_many(rows: int) -> None:
    """Filter so many rows by planted scores, with engine echo as the large model."""
    facts, settings = machine("numpy"), {"BATCHYARD_ALLOW_SIMULATED": "1"}
    with stack('[models.large]\nengine = "echo"\n', settings) as (server, data):
        draw = random.Random(7)
        scores = (round(draw.random(), 6) for _ in range(rows))
        answers = (("yes" if draw.random() < score**4 else "no", score) for score in scores)
        planted = [{"text": f"<large 1>{answer}</large>", "p": score} for answer, score in answers]
        sampler, ended = Sampler(data), threading.Event()

        def watch() -> None:
            while not ended.wait(1):
                sampler.sample(0)

        watcher = threading.Thread(target=watch)
        watcher.start()
        began = time.monotonic()
        try:
            kept = batchyard.filter(planted, "{text}", model="large", cascade="planted", scores="p", server=server)
        finally:
            ended.set()
            watcher.join()
        seconds = time.monotonic() - began
        metrics = next(server.jobs(recipe="cascade"))["batchyard"]["metrics"]
    largest = {name: max(sample[name] for sample in sampler.samples) for name in ("web", "worker", "housekeeper")}
    made = {"machine": facts, "settings": settings, "metrics": metrics, "seconds": seconds, "largest_mib": largest}
    columns = [
        "rows",
        "rows kept",
        "by the scores",
        "sampled",
        "seconds",
        "ms a row",
        *(f"{name}, MiB" for name in largest),
    ]
    facts_of_run = [
        rows,
        len(kept),
        metrics["proxy"],
        metrics["sampled"],
        round(seconds),
        round(1000 * seconds / rows, 2),
    ]
    write("cascade-many", made, table(columns, [[*facts_of_run, *largest.values()]]))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=400)
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--filter", action="store_true")
    parser.add_argument("--supg", action="store_true")
    reports = {"real": report_real, "labels": report_labels, "many": report_many}
    for name in reports:
        parser.add_argument(f"--{name}", type=int, metavar="ROWS")
    arguments = parser.parse_args()
    for name, report in reports.items():
        if rows := getattr(arguments, name):
            return report(rows)
    if arguments.supg:
        return report_supg(arguments.runs, arguments.processes)
    if arguments.filter:
        name, made = (
            "cascade-filter",
            list(cells(filter_cell, FILTER_ROWS, FILTER_TARGETS, arguments.runs, arguments.processes)),
        )
        target, others = "target", {"precision": ".1%", "recall": ".1%"}
    else:
        name, made = "cascade", list(cells(cell, ROWS, AGREE, arguments.runs, arguments.processes))
        target, others = "agree", {"looks": ".1f"}
        plot(made)
    columns = ["rows", "n", target, "target missed (95 % interval)", "large model", "oracle", "sampled", *others]
    lines = [
        [
            each["kind"],
            f"{each['rows']:,}",
            each[target],
            f"{each['missed']:.1%} ({each['interval'][0]:.1%} to {each['interval'][1]:.1%})",
            *(f"{each[name]:.1%}" for name in ("large", "oracle", "sampled")),
            *(format(each[name], form) for name, form in others.items()),
        ]
        for each in made
    ]
    total = statistics.mean(each["missed"] for each in made)
    worst = max(each["missed"] for each in made)
    summary = (
        f"{arguments.runs} runs a cell: the target is missed in {total:.1%} of all, in {worst:.1%} of the worst cell."
    )
    write(
        name,
        {"machine": machine("numpy"), "settings": {"runs": arguments.runs}, "cells": made},
        table(columns, lines),
        summary,
    )


if __name__ == "__main__":
    main()
