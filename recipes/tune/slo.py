"""Service level objectives: `p95<=5s,errors<=5%,tokens>=1000/s,rows>=5/s`, bounds of a cell's medians."""

import math
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

from batchyard.wording import nearest, quoted, suggestion

PRESETS = {"seed": "p95<=5s,errors<=5%,tokens>=1000/s,rows>=5/s"}
_BOUND = re.compile(r"([^<>=!~\s]+)\s*([<>=!~]+)\s*(.*)")
_VALUE = re.compile(r"(\d+(?:\.\d+)?|\.\d+)\s*(\S*)")


class Metric(NamedTuple):
    """What a bound may bound: its better side, its units, and how a value is written."""

    upper: bool
    units: dict[str, float]
    written: Callable[[float], str]
    example: str  # a value, for messages


_SECONDS = Metric(
    True, {"ms": 1000, "s": 1, "m": 1 / 60}, lambda s: f"{1000 * s:.3g} ms" if s < 0.1 else f"{s:.4g} s", "5s"
)
_RATE = Metric(
    False, {"/s": 1, "/min": 60, "/h": 3600}, lambda n: f"{round(n):,}/s" if n >= 100 else f"{n:.3g}/s", "5/s"
)
METRICS = {
    "p50": _SECONDS,
    "p95": _SECONDS,
    "p99": _SECONDS,
    "errors": Metric(True, {"%": 100}, lambda value: f"{100 * value:.3g} %", "5%"),
    "tokens": _RATE,
    "rows": _RATE,
}


@dataclass(frozen=True)
class Bound:
    """A bound of a metric. `limit`: seconds, a share of 1, or a rate per second."""

    metric: str
    operator: str
    limit: float

    def __str__(self) -> str:
        return f"{self.metric} {self.operator} {self.written(self.limit)}"

    def written(self, value: float | None) -> str:
        return "unknown" if value is None else METRICS[self.metric].written(value)

    def broken_by(self, value: float | None) -> str:
        """Return how a value breaks the bound: `7.2 s breaks p95 <= 5 s`."""
        written = self.written(value)
        return f"{value if written == self.written(self.limit) else written} breaks {self}"

    @property
    def is_lower(self) -> bool:
        """True if values have to be above it."""
        return not METRICS[self.metric].upper

    def holds(self, value: float | None) -> bool:
        """True if a value is within the bound. An unknown value is not."""
        if value is None:
            return False
        if value == self.limit:
            return self.operator.endswith("=")
        return (value < self.limit) == METRICS[self.metric].upper

    def excess(self, value: float | None) -> float:
        """Return how many times the bound a value is, 1 at the bound, more beyond it."""
        if value is None:
            return math.inf
        over, under = (value, self.limit) if METRICS[self.metric].upper else (self.limit, value)
        if under == 0:
            return 1.0 if over == 0 else math.inf
        return over / under


@dataclass(frozen=True)
class SLO:
    """Bounds that all have to hold."""

    bounds: tuple[Bound, ...]

    def __str__(self) -> str:
        return ", ".join(map(str, self.bounds))

    def broken(self, measured: object) -> list[Bound]:
        """Return the bounds broken by an object with an attribute for each metric."""
        return [bound for bound in self.bounds if not bound.holds(getattr(measured, bound.metric))]

    def excess(self, measured: object) -> float:
        """Return the largest `Bound.excess` of all bounds: the nearest to meeting the SLO has the smallest."""
        return max(bound.excess(getattr(measured, bound.metric)) for bound in self.bounds)


def parse(text: str) -> SLO:
    """Return the SLO of a text or a preset. Raises ValueError with the column and the nearest name."""
    text = PRESETS.get(text.strip(), text)
    bounds: list[Bound] = []
    place = 0
    for part in text.split(","):
        column = place + len(part) - len(part.lstrip()) + 1
        place += len(part) + 1
        bound = _bound(part, column)
        if any(other.metric == bound.metric for other in bounds):
            raise ValueError(f"column {column}: {bound.metric} is bounded twice; leave one bound out")
        bounds.append(bound)
    return SLO(tuple(bounds))


def _bound(part: str, column: int) -> Bound:
    match = _BOUND.fullmatch(part.strip())
    if match is None:
        word = part.strip()
        if not word:
            raise ValueError(f"column {column}: a bound is missing; write one, such as p95<=5s")
        name = nearest(word, [*METRICS, *PRESETS], 0.5)
        if name in PRESETS:
            raise ValueError(f"column {column}: {quoted(word)} is no bound; did you mean '{name}'?")
        name = name or "p95"
        raise ValueError(f"column {column}: {quoted(word)} has no operator; write {_example(name)}")
    name, operator, written = match.groups()
    if name not in METRICS:
        raise ValueError(f"column {column}: {quoted(name)} is no metric; {suggestion(name, METRICS, '{}')}")
    metric = METRICS[name]
    if operator not in (("<=", "<") if metric.upper else (">=", ">")):
        better = "lower" if metric.upper else "higher"
        column += match.start(2) - match.start(1)
        raise ValueError(f"column {column}: {name} is better the {better} it is; write {_example(name)}")
    column += match.start(3) - match.start(1)
    value = _VALUE.fullmatch(written)
    if value is None or value[2] not in metric.units:
        units = " or ".join(metric.units)
        raise ValueError(f"column {column}: {quoted(written)} is not a number with {units}; write {_example(name)}")
    limit = float(value[1]) / metric.units[value[2]]
    if limit == 0 and not metric.upper:
        raise ValueError(f"column {column}: {name} is never below 0; write {_example(name)}")
    return Bound(name, operator, limit)


def _example(name: str) -> str:
    metric = METRICS[name]
    return f"{name}{'<=' if metric.upper else '>='}{metric.example}"
