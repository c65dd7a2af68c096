"""The cells that Optuna chooses of a matrix, one after the other, by what those before have shown."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from recipes.tune import slo
from recipes.tune.cells import Cell, TuneOptions
from recipes.tune.results import CellResult

STARTUP = 4
"""Cells that are drawn at random before the sampler learns of them."""
DRAWS = 20
"""Proposals in a row that were measured before, after which the next cell of the matrix is taken."""


def next_of(options: TuneOptions, matrix: Sequence[Cell], results: Sequence[CellResult]) -> Cell | None:
    """Return the cell of the matrix to measure next, None if there are `options.cells` or all of them.

    A pure function: the sampler is made anew from the results, so a tune that goes on gets the same cells. It is the
    tree-structured Parzen estimator (Bergstra et al. 2011) over the place of each value in its list, and maximizes the
    tokens/s of cells that meet the SLO; the others count 0.

    Args:
        matrix: the cells of the product of the options' lists, in its order.
    """
    import optuna  # of the extra `optuna`; takes most of a second

    optuna.logging.set_verbosity(optuna.logging.WARNING)
    values = {result.cell.name: _value(result, options) for result in results}
    left = [cell for cell in matrix if cell.name not in values]
    if not left or len(matrix) - len(left) >= options.cells:
        return None
    lengths = [len(each) for each in _dimensions(options)]
    space: dict[str, optuna.distributions.BaseDistribution] = {
        f"{place}": optuna.distributions.IntDistribution(0, length - 1) for place, length in enumerate(lengths)
    }
    by_places = dict(zip(itertools.product(*map(range, lengths)), matrix, strict=True))
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


def _dimensions(options: TuneOptions) -> list[Sequence[object]]:
    """Return the lists whose product is the matrix, in its order."""
    return [options.models, *options.set.values(), options.batch or [None], options.concurrency or [None]]


def _value(result: CellResult, options: TuneOptions) -> float:
    medians = result.medians
    if result.state != "completed" or medians is None or (options.slo and slo.parse(options.slo).broken(medians)):
        return 0.0
    return medians.tokens or medians.rows or 0.0
