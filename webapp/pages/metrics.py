"""The metrics of a job, an object of any depth, as figures and tables for its page."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from webapp.pages.formats import figure, percent

MAX_FIGURES = 200
MAX_ROWS, MAX_COLUMNS = 100, 12
INTERVALS = "intervals"
"""An entry of this name holds `[low, high]` of the others by name."""


@dataclass(frozen=True)
class Figure:
    """A value; `note` is its interval, or what it is of."""

    name: str
    value: str
    note: str = ""


@dataclass
class Group:
    """What stands under one name: figures, and a table of entries that have the same figures each."""

    name: str
    figures: list[Figure] = field(default_factory=list)
    columns: list[str] = field(default_factory=list)
    rows: list[list[Figure]] = field(default_factory=list)
    more: str = ""


def headline(metrics: Any, accuracy: float | None = None) -> tuple[Figure, float] | None:
    """Return the score that says the most about a job, with its value: the share of right answers, else a mean."""
    scores = dict(metrics) if isinstance(metrics, Mapping) else {}
    right = accuracy if accuracy is not None else scores.get("pass@1")
    if isinstance(right, int | float):
        return Figure("right", f"{percent(right)} right"), right
    for name, value in scores.items():
        if isinstance(value, Mapping) and isinstance(value.get("mean"), int | float):
            [mean] = _figures({"mean": value["mean"], INTERVALS: value.get(INTERVALS)})
            return Figure(name.replace("_", " "), mean.value, mean.note), value["mean"]
    return None


def groups(metrics: Any) -> list[Group]:
    """Return the groups of all metrics: first those without a name, then one for each nested object."""
    return list(_groups("", metrics)) if isinstance(metrics, Mapping) else []


def _groups(name: str, values: Mapping[str, Any]) -> Iterator[Group]:
    nested = {key: value for key, value in values.items() if _is_nested(key, value)}
    figures = _figures(values)
    group = Group(name, figures[:MAX_FIGURES])
    if len(figures) > MAX_FIGURES:
        group.more = f"and {len(figures) - MAX_FIGURES:,} more in metrics.json"
    if nested and not group.figures and all(_figures(value) for value in nested.values()):
        _tabulate(group, nested)
        yield group
        nested = {}
    elif group.figures:
        yield group
    for key, value in nested.items():
        yield from _groups(f"{name} {key}".strip(), value)


def _is_nested(name: str, value: Any) -> bool:
    return isinstance(value, Mapping) and name != INTERVALS and value.keys() != {"mean", "n"}


def _figures(values: Mapping[str, Any]) -> list[Figure]:
    intervals, figures = values.get(INTERVALS), []
    for name, value in values.items():
        if name == INTERVALS or _is_nested(name, value):
            continue
        interval, note = intervals.get(name) if isinstance(intervals, Mapping) else None, ""
        if isinstance(value, Mapping):
            value, note = value["mean"], f"n = {figure(value['n'])}"
        elif isinstance(interval, list | tuple) and len(interval) == 2:
            note = f"{figure(interval[0])} to {figure(interval[1])}"
        figures.append(Figure(name.replace("_", " "), figure(value), note))
    return figures


def _tabulate(group: Group, entries: Mapping[str, Mapping[str, Any]]) -> None:
    """Set a group's table: a row for each entry, or for each figure if those are more."""
    by_entry = {str(name): {entry.name: entry for entry in _flat(values)} for name, values in entries.items()}
    names = list(dict.fromkeys(name for figures in by_entry.values() for name in figures))
    none = Figure("", "")
    if len(names) > len(by_entry):
        columns = ["", *by_entry]
        table = [[Figure("", key), *(figures.get(key, none) for figures in by_entry.values())] for key in names]
    else:
        columns = ["", *names]
        table = [[Figure("", name), *(figures.get(key, none) for key in names)] for name, figures in by_entry.items()]
    group.columns = columns[: MAX_COLUMNS + 1]
    group.rows = [row[: MAX_COLUMNS + 1] for row in table[:MAX_ROWS]]
    if len(columns) > MAX_COLUMNS + 1 or len(table) > MAX_ROWS:
        group.more = f"{len(by_entry):,} entries of {len(names):,} figures, whole in metrics.json"


def _flat(values: Mapping[str, Any], prefix: str = "") -> Iterator[Figure]:
    """Yield the figures of an entry, those within objects by both names."""
    for entry in _figures(values):
        yield Figure(prefix + entry.name, entry.value, entry.note)
    for name, value in values.items():
        if _is_nested(name, value):
            yield from _flat(value, f"{prefix}{name.replace('_', ' ')} ")
