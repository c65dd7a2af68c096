"""Rewards and gates: functions that judge an answer."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from batchyard.recipes.item import Item
from batchyard.recipes.outcomes import Failure, Scored


@dataclass(frozen=True)
class Reward:
    """A reward by name, with verl's signature, which returns a number or a dict."""

    name: str
    function: Callable[..., float | dict[str, Any]]
    data_sources: Sequence[str] = ()  # those for which it is taken if a job names none
    columns: Sequence[str] = ()  # what a row needs, dotted for fields within

    def __call__(
        self, data_source: str, solution_str: str, ground_truth: Any, extra_info: Mapping[str, Any] | None = None
    ) -> float | dict[str, Any]:
        return self.function(data_source, solution_str, ground_truth, extra_info)


def reward(
    name: str, data_sources: Sequence[str] = (), columns: Sequence[str] = ()
) -> Callable[[Callable[..., float | dict[str, Any]]], Reward]:
    """Make a reward of a function, see Reward. A dict has `score`, maybe `acc` and `pred`."""
    return lambda function: Reward(name, function, tuple(data_sources), tuple(columns))


def scored(value: float | Mapping[str, Any]) -> Scored:
    """Return what a reward said as a Scored.

    Raises TypeError: it is neither a finite number nor a dict with one as `score`.
    """
    values = dict(value) if isinstance(value, Mapping) else {"score": value}
    score, acc, pred = values.get("score"), values.get("acc"), values.get("pred")
    if not isinstance(score, int | float) or not math.isfinite(score):
        raise TypeError(f"a reward returns a number, or a dict with a number as 'score', not {value!r}")
    return Scored(
        score=float(score),
        acc=float(acc) if isinstance(acc, int | float) else None,
        pred=None if pred is None else str(pred),
        values=values,
    )


def is_wrong(sample: Mapping[str, Any]) -> bool:
    """Return True for a sample in an item's result that is not right: by what its reward says, else by its score.

    One without a score is wrong; one whose score is null was not judged.
    """
    right = sample.get("acc") if sample.get("acc") is not None else sample.get("score", 0.0)
    return right is not None and right < 1


@dataclass(frozen=True)
class Gate:
    """A gate by name: (text, item, value) → a Failure, or None for a text that passes."""

    name: str
    function: Callable[[str, Item, Any], Failure | None]
    # Raises ValueError for a value that the gate cannot take, with the reason; None if it takes any
    check: Callable[[Any], object] | None = None

    def __call__(self, text: str, item: Item, value: Any = None) -> Failure | None:
        return self.function(text, item, value)


def gate(
    name: str, check: Callable[[Any], object] | None = None
) -> Callable[[Callable[[str, Item, Any], Failure | None]], Gate]:
    """Make a gate of a function, see Gate."""
    return lambda function: Gate(name, function, check)
