"""Why a cell failed: category, the line that says so, and the remedy as overrides.

The table of causes is that of all engines (`batchyard.failures`). Here stand the remedies that know the cell.
"""

import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from batchyard.failures.causes import CAUSES, SYMPTOMS, Category, Rule, Severity, find
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
    """Why a cell failed."""

    category: Category
    severity: Severity
    evidence: str  # the line that it rests on
    remedy: str
    # Of the remedy, over those of the cell; {} if no cell can try it
    overrides: Mapping[str, Any] = field(default_factory=dict)


def _smaller(result: CellResult, base: TunedModel, otherwise: str) -> Remedy:
    """Halve the requests at once; say `otherwise` if they cannot be fewer."""
    batch = batch_of(result, base)
    if batch is None or batch < 2:
        return Remedy(otherwise)
    half = batch // 2
    return Remedy(f"run {half} requests at once in place of {batch}", {base.batch_key: half})


def _less_memory(result: CellResult, base: TunedModel, _: re.Match[str]) -> Remedy:
    return _smaller(result, base, "lower max_model_len, or take a larger machine or a smaller model")


def _unknown_argument(result: CellResult, base: TunedModel, match: re.Match[str]) -> Remedy:
    """Rename the argument to the name that the message says is nearest, if it says one."""
    key, name = f"{ARGUMENTS}.{match['key']}", match["nearest"]
    value = result.cell.value(base, key)
    if name is None:
        return Remedy(f"leave {key} out", {} if value is None else {key: None})
    if value is None:
        return Remedy(f"leave {key} out, or name {name}")
    return Remedy(f"name {name} in place of {match['key']}", {key: None, f"{ARGUMENTS}.{name}": value})


def _unexpected_argument(result: CellResult, base: TunedModel, match: re.Match[str]) -> Remedy:
    key = match["key"]
    written = result.cell.value(base, ARGUMENTS) or {}
    near = nearest(key, written)
    return Remedy(f"leave {ARGUMENTS}.{near or key} out", {f"{ARGUMENTS}.{near}": None} if near else {})


def _more_cache(result: CellResult, base: TunedModel, match: re.Match[str]) -> Remedy:
    """Give the KV cache more memory, where the entry says how much it has."""
    size, share = result.cell.value(base, CACHE_BYTES), result.cell.value(base, MEMORY_SHARE)
    if isinstance(size, int):
        return Remedy(f"double kv_cache_memory_bytes to {2 * size}", {CACHE_BYTES: 2 * size})
    if isinstance(share, int | float) and share < SHARE:
        more = min(SHARE, round(1.5 * share, 3))
        return Remedy(f"raise gpu_memory_utilization from {share:g} to {more:g}", {MEMORY_SHARE: more})
    return _less_memory(result, base, match)


def _smaller_share(result: CellResult, base: TunedModel, match: re.Match[str]) -> Remedy:
    """Lower the share to what is free, less a hundredth."""
    free = int(100 * float(match["free"]) / float(match["total"])) - 1
    if free < 1:
        return Remedy("end the other processes that hold the device's memory")
    return Remedy(
        f"lower gpu_memory_utilization to {free / 100:g}, or end the processes that hold the memory",
        {MEMORY_SHARE: free / 100},
    )


def _slow(setting: str) -> Callable[[CellResult, TunedModel, re.Match[str]], Remedy]:
    def slow(result: CellResult, base: TunedModel, _: re.Match[str]) -> Remedy:
        smaller = _smaller(result, base, "")
        either = f", or {smaller.text}" if smaller.text else ""
        return Remedy(f"raise {setting}{either}", smaller.overrides)

    return slow


_OF_CELLS: Mapping[str, Callable[[CellResult, TunedModel, re.Match[str]], Remedy]] = {
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


def diagnose(result: CellResult, base: TunedModel) -> Diagnosis | None:
    """Return why a cell failed; None if it did not. One whose requests all failed did."""
    silent = result.state == "completed" and not any(repeat.ok for repeat in result.repeats)
    if result.state not in ("failed", "over_budget") and not silent:
        return None
    if diagnosis := _found(CAUSES, result, base) or _found(SYMPTOMS, result, base):
        return diagnosis
    said = cut(next(_lines(result), "nothing was said"), MAX_MESSAGE)
    if result.state != "over_budget":
        return Diagnosis("unknown", "error", said, "read the engine's own line, and its log")
    smaller = _smaller(result, base, "")
    if result.repeats or not smaller.text:
        return Diagnosis("timeout", "warning", said, "give it more time (cell_budget), or fewer rows")
    text = f"give it more time (cell_budget), or {smaller.text}"
    return Diagnosis("timeout", "warning", said, text, smaller.overrides)


def repair(result: CellResult, base: TunedModel, taken: Sequence[str]) -> Cell | None:
    """Return the cell that tries a remedy, or None. A repair gets none. `taken`: names of others."""
    diagnosis = diagnose(result, base)
    if diagnosis is None or not diagnosis.overrides or result.cell.repair_of is not None:
        return None
    cell = result.cell
    changes = {
        "name": f"{cell.name}-repair",
        "overrides": {**cell.overrides, **diagnosis.overrides},
        "batch": diagnosis.overrides.get(base.batch_key, cell.batch),
        "preset": None,
        "repair_of": cell.name,
    }
    return named(cell.model_copy(update=changes), taken)


def _found(rules: Sequence[Rule], result: CellResult, base: TunedModel) -> Diagnosis | None:
    """Return the diagnosis by the first line that a rule knows."""
    for line in _lines(result):
        if known := find(line, rules):
            rule = known.rule
            if own := _OF_CELLS.get(rule.name):
                remedy = own(result, base, known.match)
            else:
                overrides = _OVERRIDES[rule.name](known.match) if rule.name in _OVERRIDES else {}
                remedy = Remedy(known.remedy, overrides)
            return Diagnosis(rule.category, rule.severity, cut(line, MAX_MESSAGE), remedy.text, remedy.overrides)
    return None


def _lines(result: CellResult) -> Iterator[str]:
    """Yield lines that may say why: the error's, the evidence's from the last, then codes."""
    for text in (result.error or "", *reversed(result.evidence)):
        for line in reversed(cause_of(text).splitlines()):
            if line.strip():
                yield line.strip()
    codes = Counter[str]()
    for repeat in result.repeats:
        codes.update(repeat.errors)
    yield from (code for code, _ in codes.most_common())
