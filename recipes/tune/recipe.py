"""Recipe `tune`: measures configurations of models one by one and names the best.

A cell is a derived model (tasks.derived) under `concurrency` equal jobs of recipe `batch` side by side.
`jobs.tune.kind` runs them; which cells there are, and what their measurements say, is in `recipes.tune`.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Self

from batchyard.recipes import Child, Recipe, Report, Results
from recipes.options import nested
from recipes.reports import json_text, write
from recipes.tune import plots, report
from recipes.tune.cells import Cell, Tune, TunedModel, cells
from recipes.tune.results import CellResult

RECIPE = "batch"
"""The recipe of a cell's jobs."""


def requests(options: Tune, model: str, *, warm_up: bool = False) -> dict[str, Any]:
    """Return the options of a job that measures a model: each of its requests is computed, once."""
    values = nested(options.options)
    if warm_up:
        values["limit"] = min(options.warm_up, values.get("limit") or options.warm_up)
    return {**values, "model": model, "fresh": True, "retries": 0}


def job(options: Tune, cell: Cell, model: str, repeat: int, copy: int) -> Child:
    """Return a job of a cell. Repeat 0 is the warm-up; `copy` counts parallel ones from 0."""
    return Child(cell.name, repeat, copy, RECIPE, requests(options, model, warm_up=repeat == 0))


def finish(results: Results, options: Tune) -> Report:
    """Write the reports and plots of the cells that have ended, and return the metrics."""
    measured: list[tuple[int, CellResult]] = []
    bases: dict[str, TunedModel] = {}
    for item in results.items():
        if "cell" in item.result:
            cell = CellResult.model_validate(item.result["cell"])
            measured.append((item.result["run"], cell))
            bases[cell.cell.model] = TunedModel(**item.result["base"])
    if not measured:
        return Report()
    ordered = [bases[name] for name in options.models if name in bases]
    document = report.document(options, ordered, [cell for _, cell in sorted(measured, key=lambda entry: entry[0])])
    texts = {
        "tune.json": json_text(document),
        "summary.csv": report.csv_of(document),
        "report.md": report.markdown(document),
    }
    write(results, texts | {f"plot-{name}.svg": svg for name, svg in plots.of(document).items()})
    return Report(report.metrics(document), report.view(document))


@dataclass(frozen=True)
class TuneRecipe(Recipe[Tune]):
    """Makes a recipe whose items are cells: configurations of models, measured one after the other.

    Its jobs start and stop engines, so only administrators make them. The function returns the cells that are known
    before it begins, by its options and its models.
    """

    kind = "tune"

    def __call__(self, function: Callable[[Tune, Sequence[TunedModel]], Sequence[Cell]]) -> Self:
        return replace(self, function=function)


@TuneRecipe("tune", Tune, finish=finish, main="report.md")
def tune(options: Tune, models: Sequence[TunedModel]) -> Sequence[Cell]:
    """Measure configurations of a model and name the best."""
    return cells(options, models)
