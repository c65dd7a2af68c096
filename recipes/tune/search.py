"""Which cell comes next: a pure function, so a resumed tune measures no cell again."""

from collections.abc import Iterator, Mapping, Sequence
from itertools import product
from typing import Any

from recipes.tune import slo
from recipes.tune.cells import Cell, Tune, TunedModel, cells, defaults, made, named
from recipes.tune.diagnosis import repair
from recipes.tune.results import CellResult, batch_of

BREAKS = 2
"""Cells in a row that break the SLO, after which a search ends."""
FIRST_BATCH = 32
"""Where a search begins if neither options nor engine say how many requests run at once."""
STARTUP = 4
"""Cells that are drawn at random before the sampler learns of them."""
DRAWS = 20
"""Proposals in a row that were measured before, after which the next cell of the matrix is taken."""


def next_cell(
    options: Tune,
    bases: Sequence[TunedModel],
    results: Sequence[CellResult],
    *,
    max_concurrency: int | None = None,
) -> Cell | None:
    """Return the cell to measure now, None if all are.

    First those of the matrix, in their order, each failed one followed by its repair; then those of search `up`. Search
    `optuna` chooses of the matrix instead.
    """
    matrix = cells(options, bases)
    as_they_are = {cell.name for cell in matrix[: defaults(options, bases)]}
    by_name = {base.name: base for base in bases}
    ended = {result.cell.name: result for result in results}
    known = {cell.name: cell for cell in (*matrix, *(result.cell for result in results))}
    identities = {cell.identity(by_name[cell.model]) for cell in known.values()}
    chooses = options.search == "optuna"
    for cell in matrix:
        if cell.name not in ended and not (chooses and cell.name not in as_they_are):
            return cell
        if cell.name not in ended or not options.repair:
            continue
        if any(result.cell.repair_of == cell.name for result in results):
            continue
        repaired = repair(ended[cell.name], by_name[cell.model], list(known))
        if repaired is not None and repaired.identity(by_name[cell.model]) not in identities:
            return repaired
    if chooses:
        return proposed(options, [cell for cell in matrix if cell.name not in as_they_are], results)
    if options.search is None:
        return None
    for higher in _higher(options, by_name, results):
        over = max_concurrency is not None and higher.concurrency > max_concurrency
        if not over and higher.identity(by_name[higher.model]) not in identities:
            return named(higher, list(known))
    return None


def _higher(options: Tune, bases: Mapping[str, TunedModel], results: Sequence[CellResult]) -> Iterator[Cell]:
    """Yield the next cell of each series that goes on: twice the `batch` or `concurrency`."""
    objective = slo.parse(options.slo or "")
    raises_batch = bool(options.batch) or not options.concurrency
    series: dict[str, list[CellResult]] = {}
    for result in results:
        cell, base = result.cell, bases[result.cell.model]
        if cell.repair_of is None and not (options.batch and cell.batch is None):
            fixed = {"overrides": _without_batch(cell, base)} if raises_batch else {"concurrency": 0}
            series.setdefault(cell.model_copy(update=fixed).identity(base), []).append(result)
    for measured in series.values():
        base = bases[measured[0].cell.model]
        measured.sort(key=lambda result: _height(result, base, raises_batch=raises_batch))
        top = measured[-1].cell
        height = _height(measured[-1], base, raises_batch=raises_batch)
        breaks = [
            _breaks(result, before, objective) for before, result in zip((None, *measured), measured, strict=False)
        ]
        if any(result.state == "not_run" for result in measured) or (len(breaks) >= BREAKS and all(breaks[-BREAKS:])):
            continue
        rows = [repeat.rows for repeat in measured[-1].repeats]
        if raises_batch and rows and max(rows) <= height:  # all rows run at once already
            continue
        if raises_batch:
            yield made(base, _without_batch(top, base), 2 * height, top.concurrency)
        else:
            batch = {} if top.batch is None else {base.batch_key: top.batch}
            rest = {key: value for key, value in top.overrides.items() if key not in batch}
            yield made(base, rest, top.batch, 2 * height)


def _breaks(result: CellResult, before: CellResult | None, objective: slo.SLO) -> bool:
    """True if a cell breaks the SLO, and no higher one can be expected to meet it.

    A throughput below its bound that is still growing may reach it.
    """
    medians = result.medians
    if result.state != "completed" or medians is None:
        return True
    broken = objective.broken(medians)
    if all(bound.is_lower for bound in broken) and broken:
        earlier = None if before is None else before.medians
        return before is not None and (medians.tokens or 0) <= (earlier.tokens or 0 if earlier else 0)
    return bool(broken)


def _without_batch(cell: Cell, base: TunedModel) -> dict[str, Any]:
    return {key: value for key, value in cell.overrides.items() if key != base.batch_key}


def _height(result: CellResult, base: TunedModel, *, raises_batch: bool) -> int:
    return (batch_of(result, base) or FIRST_BATCH) if raises_batch else result.cell.concurrency


def proposed(options: Tune, matrix: Sequence[Cell], results: Sequence[CellResult]) -> Cell | None:
    """Return the cell of the matrix that Optuna chooses next, None if there are `options.cells` or all of them.

    A pure function: the sampler is made anew from the results, so a tune that goes on gets the same cells. It is the
    tree-structured Parzen estimator (Bergstra et al. 2011) over the place of each value in its list, and maximizes the
    tokens/s of cells that meet the SLO; the others count 0.
    """
    import optuna  # of the extra `optuna`; takes most of a second

    optuna.logging.set_verbosity(optuna.logging.WARNING)
    values = {result.cell.name: throughput(result, options) for result in results}
    left = [cell for cell in matrix if cell.name not in values]
    if not left or len(matrix) - len(left) >= options.cells:
        return None
    lists = (options.models, *options.set.values(), options.batch or [None], options.concurrency or [None])
    lengths = [len(each) for each in lists]  # those whose product is the matrix, in its order
    space: dict[str, optuna.distributions.BaseDistribution] = {
        f"{place}": optuna.distributions.IntDistribution(0, length - 1) for place, length in enumerate(lengths)
    }
    by_places = dict(zip(product(*map(range, lengths)), matrix, strict=True))
    sampler = optuna.samplers.TPESampler(seed=len(results), n_startup_trials=STARTUP)
    study = optuna.create_study(direction="maximize", sampler=sampler)
    for places, cell in by_places.items():
        if cell.name in values:
            params = {f"{index}": place for index, place in enumerate(places)}
            study.add_trial(optuna.create_trial(params=params, distributions=space, value=values[cell.name]))
    for _ in range(DRAWS):
        trial = study.ask(space)
        cell = by_places[tuple(trial.params[f"{index}"] for index in range(len(lengths)))]
        if cell.name not in values:
            return cell
        study.tell(trial, values[cell.name])
    return left[0]


def throughput(result: CellResult, options: Tune) -> float:
    """Return the tokens/s of a cell that meets the SLO, 0 of another."""
    medians = result.medians
    if result.state != "completed" or medians is None or (options.slo and slo.parse(options.slo).broken(medians)):
        return 0.0
    return medians.tokens or medians.rows or 0.0
