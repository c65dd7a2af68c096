"""Which cell to run with and why, and its entry of models.toml."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from batchyard import durations, models
from batchyard.wording import count
from recipes.tune.cells import Tune, TunedModel
from recipes.tune.results import STEADY, CellResult, Medians, is_steady
from recipes.tune.slo import METRICS, SLO, parse

MARGIN = 0.01
"""Of cells whose tokens/s are within this share of the highest, the one with the fewest overrides is recommended."""


@dataclass(frozen=True)
class Sentence:
    """A sentence, and the names of the cells that it rests on."""

    text: str
    cells: list[str]


@dataclass(frozen=True)
class Recommendation:
    """What to run with."""

    cell: str | None  # name of the recommended cell, None if no cell meets the SLO
    nearest: str | None  # name of the cell that is nearest to meeting it, None if one meets it, or none was measured
    sentences: list[Sentence]
    entry: str | None = None  # the recommended cell's entry of models.toml, under the base's name
    rows: int | None = None  # that it answers in the window


def objective(options: Tune) -> SLO | None:
    return None if options.slo is None else parse(options.slo)


def measured(result: CellResult) -> Medians | None:
    """Return the medians of a completed cell with answers, as its configuration; else None."""
    medians = result.medians
    if result.state != "completed" or result.differing or medians is None:
        return None
    return medians if medians.rows and medians.tokens else None


def meets(result: CellResult, slo: SLO | None) -> bool:
    """True if a cell was measured and its medians are within the SLO, if there is one."""
    medians = measured(result)
    return medians is not None and (slo is None or not slo.broken(medians))


def best(results: Sequence[CellResult], slo: SLO | None) -> CellResult | None:
    """Return the cell to run with: of those that meet the SLO the one with the most tokens/s.

    Of those within MARGIN of that, the one with the fewest overrides; then the most tokens/s, then the lowest p95.
    """
    met = [(result, medians) for result in results if meets(result, slo) and (medians := result.medians)]
    if not met:
        return None
    most = max(medians.tokens or 0 for _, medians in met)

    def order(pair: tuple[CellResult, Medians]) -> tuple[int, float, float]:
        result, medians = pair
        return len(result.cell.overrides), -(medians.tokens or 0), medians.p95 or 0

    return min((pair for pair in met if (pair[1].tokens or 0) >= (1 - MARGIN) * most), key=order)[0]


def recommend(options: Tune, bases: Sequence[TunedModel], results: Sequence[CellResult]) -> Recommendation:
    """Return what to run with, and why."""
    slo = objective(options)
    chosen = best(results, slo)
    if chosen is None:
        there = [(result, medians) for result in results if (medians := measured(result)) is not None]
        if slo is None or not there:
            names = [result.cell.name for result in results]
            unmeasured = Sentence("No cell was measured to its end, so none is recommended.", names)
            return Recommendation(None, None, [unmeasured])
        nearest, medians = min(there, key=lambda pair: (slo.excess(pair[1]), -(pair[1].tokens or 0)))
        broken = ", ".join(bound.broken_by(getattr(medians, bound.metric)) for bound in slo.broken(medians))
        names = [result.cell.name for result, _ in there]
        sentences = [
            Sentence(f"No cell of {len(there)} meets the SLO ({slo}), so none is recommended.", names),
            Sentence(f"{nearest.cell.name} is nearest to it: {broken}.", [nearest.cell.name]),
        ]
        return Recommendation(None, nearest.cell.name, sentences)
    by_name = {base.name: base for base in bases}
    rows = int((chosen.medians.rows or 0) * durations.seconds(options.window)) if chosen.medians else 0
    reasons = list(_reasons(slo, chosen, by_name, results, options.window, rows))
    entry = models.written(chosen.cell.model, chosen.cell.entry(by_name[chosen.cell.model]))
    return Recommendation(chosen.cell.name, None, reasons, entry, rows)


def _reasons(
    slo: SLO | None,
    chosen: CellResult,
    bases: Mapping[str, TunedModel],
    results: Sequence[CellResult],
    window: str,
    rows: int,
) -> Iterator[Sentence]:
    name, figures = chosen.cell.name, chosen.medians
    assert figures is not None  # the cell was measured
    candidates = [result for result in results if meets(result, slo)]
    of = f"of {len(candidates)} that meet the SLO ({slo})" if slo else f"of {len(candidates)} measured (no SLO was set)"
    names = [result.cell.name for result in candidates]
    fastest = max(candidates, key=_tokens)
    if fastest is chosen or _tokens(fastest) == _tokens(chosen):
        yield Sentence(f"{name} has the most tokens/s, {_rate(_tokens(chosen))}, {of}.", names)
    else:
        less = 100 * (1 - _tokens(chosen) / _tokens(fastest))
        yield Sentence(
            f"{name} has {count(len(chosen.cell.overrides), 'override')} in place of {len(fastest.cell.overrides)}, "
            f"and {_rate(_tokens(chosen))} tokens/s, {less:.2g} % less than {fastest.cell.name}, the fastest {of}.",
            names,
        )
    parts = [
        f"{metric} {METRICS[metric].written(value)}"
        for metric in ("p50", "p95", "p99", "errors")
        if (value := getattr(figures, metric)) is not None
    ]
    yield Sentence(f"Its medians over {count(len(chosen.repeats), 'repeat')}: {', '.join(parts)}.", [name])
    # The model without overrides; of several, with as many parallel batches.
    as_is = [result for result in candidates if not result.cell.overrides and result.cell.model == chosen.cell.model]
    plain = min(as_is, key=lambda result: result.cell.concurrency != chosen.cell.concurrency, default=None)
    if plain is not None and plain is not chosen:
        yield Sentence(
            f"That is {_ratio(chosen, plain)} the tokens/s of {plain.cell.name}, the model as it is.",
            [name, plain.cell.name],
        )
    if chosen.cell.concurrency > 1:
        yield Sentence(f"It was measured with {chosen.cell.concurrency} equal batches side by side.", [name])
    yield Sentence(
        f"At its {_rate(figures.rows or 0)} rows/s, a window of {window} has room for {rows:,} rows like these.",
        [name],
    )
    unsteady = [result.cell.name for result in candidates if is_steady(result, bases[result.cell.model]) is False]
    if unsteady:
        whose = "Its figures are" if name in unsteady else "Figures of other cells are"
        yield Sentence(
            f"{whose} not steady: a cell needs {STEADY} rows for each request at once; measure with more rows.",
            unsteady,
        )
    if chosen.simulated:
        yield Sentence("The answers are simulated, and so is the speed.", [name])
    if failed := [result.cell.name for result in results if result.state in ("failed", "over_budget")]:
        yield Sentence(f"{len(failed)} of {len(results)} cells did not run to their end.", failed)
    if left := [result.cell.name for result in results if result.state == "not_run"]:
        yield Sentence(f"{len(left)} of {len(results)} cells were not measured: the time was over.", left)


def _tokens(result: CellResult) -> float:
    medians = result.medians
    return (medians.tokens or 0.0) if medians else 0.0


def _ratio(chosen: CellResult, plain: CellResult) -> str:
    """Return how many times as fast a cell is, with least and most of any two repeats."""
    ratio = f"{_tokens(chosen) / _tokens(plain):.3g} times"
    tokens, plain_tokens = chosen.tokens_range, plain.tokens_range
    too_few = min(len(chosen.repeats), len(plain.repeats)) < 2
    if too_few or tokens is None or plain_tokens is None or not plain_tokens[0]:
        return ratio
    low, high = tokens[0] / plain_tokens[1], tokens[1] / plain_tokens[0]
    apart = "" if low > 1 or high < 1 else ", which does not tell them apart"
    return f"{ratio} ({low:.3g} to {high:.3g} by the repeats{apart})"


def _rate(value: float) -> str:
    return METRICS["tokens"].written(value).removesuffix("/s")


def pareto(results: Mapping[str, tuple[float, float]]) -> list[str]:
    """Return the names of undominated points by x: less x or more y is better."""
    front: list[str] = []
    most = float("-inf")
    for name, (_, y) in sorted(results.items(), key=lambda point: (point[1][0], -point[1][1])):
        if y > most:
            front.append(name)
            most = y
    return front
