"""Why a cell failed: category, the line that says so, and the remedy as overrides.

The table of causes is that of all engines (`batchyard.failures`). Here stand the remedies that know the cell.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, NamedTuple

from batchyard.failures.causes import CAUSES, SYMPTOMS, Category, Match, Rule, Severity, find
from batchyard.failures.reasons import cause_of
from batchyard.wording import MAX_MESSAGE, cut, nearest
from recipes.tune.cells import Cell, TunedModel, named
from recipes.tune.results import CellResult, batch_of

SHARE = 0.95
"""The highest share of a GPU's memory that a remedy sets."""
ARGUMENTS = "engine_args"
CONTEXT = f"{ARGUMENTS}.max_model_len"
MEMORY_SHARE = f"{ARGUMENTS}.gpu_memory_utilization"
CACHE_BYTES = f"{ARGUMENTS}.kv_cache_memory_bytes"


@dataclass(frozen=True)
class Remedy:
    """What to do, and the overrides of a cell that does it; None takes a key out."""

    text: str
    overrides: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Diagnosis:
    """Why a cell failed.

    Attributes:
        evidence: the line that it rests on.
        overrides: of the remedy, over those of the cell; {} if no cell can try it.
    """

    category: Category
    severity: Severity
    evidence: str
    remedy: str
    overrides: Mapping[str, Any] = field(default_factory=dict)

    def document(self) -> dict[str, Any]:
        return asdict(self)


class _Failed(NamedTuple):
    """A cell that failed, and its base."""

    result: CellResult
    base: TunedModel

    def value(self, key: str) -> Any:
        """Return the value of a dotted key in the cell's entry, None without one."""
        return self.result.cell.value(self.base, key)


def _smaller(failed: _Failed, otherwise: str) -> Remedy:
    """Halve the requests at once; say `otherwise` if they cannot be fewer."""
    batch = batch_of(failed.result, failed.base)
    if batch is None or batch < 2:
        return Remedy(otherwise)
    half = batch // 2
    return Remedy(f"run {half} requests at once in place of {batch}", {failed.base.batch_key: half})


def _less_memory(failed: _Failed, _: re.Match[str]) -> Remedy:
    return _smaller(failed, "lower max_model_len, or take a larger machine or a smaller model")


def _unknown_argument(failed: _Failed, match: re.Match[str]) -> Remedy:
    """Rename the argument to the name that the message says is nearest, if it says one."""
    key, name = f"{ARGUMENTS}.{match['key']}", match["nearest"]
    value = failed.value(key)
    if name is None:
        return Remedy(f"leave {key} out", {} if value is None else {key: None})
    if value is None:
        return Remedy(f"leave {key} out, or name {name}")
    return Remedy(f"name {name} in place of {match['key']}", {key: None, f"{ARGUMENTS}.{name}": value})


def _unexpected_argument(failed: _Failed, match: re.Match[str]) -> Remedy:
    key = match["key"]
    written = failed.value(ARGUMENTS) or {}
    near = nearest(key, written)
    return Remedy(f"leave {ARGUMENTS}.{near or key} out", {f"{ARGUMENTS}.{near}": None} if near else {})


def _more_cache(failed: _Failed, _: re.Match[str]) -> Remedy:
    """Give the KV cache more memory, where the entry says how much it has."""
    size, share = failed.value(CACHE_BYTES), failed.value(MEMORY_SHARE)
    if isinstance(size, int):
        return Remedy(f"double kv_cache_memory_bytes to {2 * size}", {CACHE_BYTES: 2 * size})
    if isinstance(share, int | float) and share < SHARE:
        more = min(SHARE, round(1.5 * share, 3))
        return Remedy(f"raise gpu_memory_utilization from {share:g} to {more:g}", {MEMORY_SHARE: more})
    return _smaller(failed, "lower max_model_len, or take a larger machine or a smaller model")


def _smaller_share(failed: _Failed, match: re.Match[str]) -> Remedy:
    """Lower the share to what is free, less a hundredth."""
    free = int(100 * float(match["free"]) / float(match["total"])) - 1
    if free < 1:
        return Remedy("end the other processes that hold the device's memory")
    return Remedy(
        f"lower gpu_memory_utilization to {free / 100:g}, or end the processes that hold the memory",
        {MEMORY_SHARE: free / 100},
    )


def _slow(setting: str) -> Callable[[_Failed, re.Match[str]], Remedy]:
    def slow(failed: _Failed, _: re.Match[str]) -> Remedy:
        smaller = _smaller(failed, "")
        either = f", or {smaller.text}" if smaller.text else ""
        return Remedy(f"raise {setting}{either}", smaller.overrides)

    return slow


_OF_CELLS: Mapping[str, Callable[[_Failed, re.Match[str]], Remedy]] = {
    "unknown argument": _unknown_argument,
    "unexpected argument": _unexpected_argument,
    "share of the device": _smaller_share,
    "cache": _more_cache,
    "memory of the GPU": _less_memory,
    "killed": _less_memory,
    "memory": _less_memory,
    "slow start": _slow("BATCHYARD_ENGINE_START_TIMEOUT"),
    "slow request": _slow("BATCHYARD_REQUEST_TIMEOUT"),
}
"""By the name of a rule, a remedy that knows the cell."""
_OVERRIDES: Mapping[str, Callable[[re.Match[str]], Mapping[str, Any]]] = {
    "few batched tokens": lambda match: {f"{ARGUMENTS}.max_num_batched_tokens": int(match["least"])},
    "long context": lambda match: {CONTEXT: int(match["most"])},
    "context that fits": lambda match: {CONTEXT: int(match["most"])},
    "instruction": lambda _: {f"{ARGUMENTS}.dtype": "float32"},
}
"""By the name of a rule, the overrides that do what its remedy says."""


def _remedy(failed: _Failed, known: Match) -> Remedy:
    name = known.rule.name
    if name in _OF_CELLS:
        return _OF_CELLS[name](failed, known.match)
    return Remedy(known.remedy, _OVERRIDES[name](known.match) if name in _OVERRIDES else {})


def diagnose(result: CellResult, base: TunedModel) -> Diagnosis | None:
    """Return why a cell failed; None if it did not. One whose requests all failed did."""
    silent = result.state == "completed" and not any(repeat.ok for repeat in result.repeats)
    if result.state not in ("failed", "over_budget") and not silent:
        return None
    if diagnosis := _found(CAUSES, result, base) or _found(SYMPTOMS, result, base):
        return diagnosis
    if result.state != "over_budget":
        return Diagnosis("unknown", "error", _line(result), "read the engine's own line, and its log")
    smaller = _smaller(_Failed(result, base), "")
    if result.repeats or not smaller.text:
        return Diagnosis("timeout", "warning", _line(result), "give it more time (cell_budget), or fewer rows")
    text = f"give it more time (cell_budget), or {smaller.text}"
    return Diagnosis("timeout", "warning", _line(result), text, smaller.overrides)


def repair(result: CellResult, base: TunedModel, taken: Sequence[str]) -> Cell | None:
    """Return the cell that tries the remedy of a failed one, if one can. A repair gets none.

    Args:
        taken: names of other cells.
    """
    diagnosis = diagnose(result, base)
    if diagnosis is None or not diagnosis.overrides or result.cell.repair_of is not None:
        return None
    cell = result.cell
    return named(
        cell.model_copy(
            update={
                "name": f"{cell.name}-repair",
                "overrides": {**cell.overrides, **diagnosis.overrides},
                "batch": diagnosis.overrides.get(base.batch_key, cell.batch),
                "preset": None,
                "repair_of": cell.name,
            }
        ),
        taken,
    )


def _found(rules: Sequence[Rule], result: CellResult, base: TunedModel) -> Diagnosis | None:
    """Return the diagnosis by the first line that a rule knows."""
    for line in _lines(result):
        if known := find(line, rules):
            rule, remedy = known.rule, _remedy(_Failed(result, base), known)
            return Diagnosis(rule.category, rule.severity, cut(line, MAX_MESSAGE), remedy.text, remedy.overrides)
    return None


def _lines(result: CellResult) -> Iterator[str]:
    """Yield lines that may say why: the error's, the evidence's from the last, then codes."""
    for text in (result.error or "", *reversed(result.evidence)):
        for line in reversed(cause_of(text).splitlines()):
            if line.strip():
                yield line.strip()
    codes: dict[str, int] = {}
    for repeat in result.repeats:
        for code, requests in repeat.errors.items():
            codes[code] = codes.get(code, 0) + requests
    yield from sorted(codes, key=lambda code: -codes[code])


def _line(result: CellResult) -> str:
    return cut(next(_lines(result), "nothing was said"), MAX_MESSAGE)
