"""Why a cell failed: its category, the line that says so, and the remedy, as overrides of one more cell if there are.

The table reads messages of Batchyard, vLLM 0.32, torch and Ray 2.60. Causes (a refused argument, a missing module, too
little memory) come before what follows from them (an engine that is late, an actor that died), wherever they stand.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Literal, NamedTuple

from batchyard.wording import MAX_MESSAGE, cut, nearest
from recipes.tune.cells import Base, Cell, named
from recipes.tune.results import CellResult, batch_of

Category = Literal["timeout", "memory", "dependency", "cluster", "argument", "unknown"]
Severity = Literal["critical", "error", "warning"]
SHARE = 0.95
"""The highest share of a GPU's memory that a remedy sets."""
ARGUMENTS = "engine_args"
CONTEXT = f"{ARGUMENTS}.max_model_len"
MEMORY_SHARE = f"{ARGUMENTS}.gpu_memory_utilization"
CACHE_BYTES = f"{ARGUMENTS}.kv_cache_memory_bytes"
_GENERIC = re.compile(r"There are some potential root causes\..*", re.DOTALL)
"""Ray's list of what may end a process. It names the out-of-memory killer whatever it was."""


@dataclass(frozen=True)
class Remedy:
    """What to do, and the overrides of the cell that does it; a value of None takes a key out."""

    text: str
    overrides: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Diagnosis:
    """Why a cell failed.

    Attributes:
        severity: `critical`: every cell of the model will fail, until somebody acts. `error`: this cell's configuration
            cannot run. `warning`: it ran, and not to its end.
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
    base: Base

    def value(self, key: str) -> Any:
        """Return the value of a dotted key in the cell's entry, None without one."""
        return self.result.cell.value(self.base, key)


class _Rule(NamedTuple):
    category: Category
    severity: Severity
    pattern: re.Pattern[str]
    remedy: Callable[[_Failed, re.Match[str]], Remedy]


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
    """Rename the argument to the name that the message says is nearest."""
    key, name = f"{ARGUMENTS}.{match['key']}", match["nearest"]
    value = failed.value(key)
    if value is None:
        return Remedy(f"leave {key} out, or name {name}")
    return Remedy(f"name {name} in place of {match['key']}", {key: None, f"{ARGUMENTS}.{name}": value})


def _unexpected_argument(failed: _Failed, match: re.Match[str]) -> Remedy:
    key = match["key"]
    written = failed.value(ARGUMENTS) or {}
    near = nearest(key, written, 0.6)
    return Remedy(f"leave {ARGUMENTS}.{near or key} out", {f"{ARGUMENTS}.{near}": None} if near else {})


def _more_batched_tokens(failed: _Failed, match: re.Match[str]) -> Remedy:
    least = int(match["least"])
    return Remedy(f"set max_num_batched_tokens to {least} at least", {f"{ARGUMENTS}.max_num_batched_tokens": least})


def _shorter_context(failed: _Failed, match: re.Match[str]) -> Remedy:
    most = int(match["most"])
    return Remedy(f"lower max_model_len to {most}, or leave it out", {CONTEXT: most})


def _fitting_context(failed: _Failed, match: re.Match[str]) -> Remedy:
    most = int(match["most"])
    return Remedy(
        f"lower max_model_len to {most}, the longest that fits, or give the cache more memory", {CONTEXT: most}
    )


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


def _install(_: _Failed, match: re.Match[str]) -> Remedy:
    what = match.groupdict().get("module") or "what it names"
    return Remedy(f"install {what} on every machine where the engine runs; nothing was installed")


def _slow_start(failed: _Failed, _: re.Match[str]) -> Remedy:
    smaller = _smaller(failed, "")
    either = f", or {smaller.text}" if smaller.text else ""
    return Remedy(f"raise BATCHYARD_ENGINE_START_TIMEOUT{either}", smaller.overrides)


def _slow_request(failed: _Failed, _: re.Match[str]) -> Remedy:
    smaller = _smaller(failed, "")
    either = f", or {smaller.text}" if smaller.text else ""
    return Remedy(f"raise BATCHYARD_REQUEST_TIMEOUT{either}", smaller.overrides)


def _says(text: str) -> Callable[[_Failed, re.Match[str]], Remedy]:
    return lambda _failed, _match: Remedy(text)


def _rule(
    category: Category, pattern: str, remedy: Callable[[_Failed, re.Match[str]], Remedy], severity: Severity = "error"
) -> _Rule:
    return _Rule(category, severity, re.compile(pattern, re.IGNORECASE), remedy)


_CLUSTER = _says("see that Ray and its nodes are up (`ray status`), then run the same command; nothing was restarted")
_PROCESS = _says(
    "its process ended without a word: see the engine's log, and the kernel's for its out-of-memory killer; "
    "nothing was restarted"
)

CAUSES: Sequence[_Rule] = (
    _rule(
        "argument",
        r"engine_args\.(?P<key>\w+): .* has no such argument; did you mean (?P<nearest>\w+)\?",
        _unknown_argument,
    ),
    _rule("argument", r"unexpected keyword argument '(?P<key>\w+)'", _unexpected_argument),
    _rule(
        "argument", r"max_num_batched_tokens \(\d+\) must be .*max_num_seqs \((?P<least>\d+)\)", _more_batched_tokens
    ),
    _rule(
        "argument",
        r"max_num_batched_tokens \(\d+\) is smaller than max_model_len \((?P<least>\d+)\)",
        _more_batched_tokens,
    ),
    _rule("argument", r"greater than the derived max_model_len \(\w+=(?P<most>\d+)", _shorter_context),
    _rule(
        "argument",
        r"engine_args\.[\w.]+: |Value error, |error: argument --|validation errors? for \w*Config",
        _says("give the argument a value that the engine takes"),
    ),
    _rule("dependency", r"No module named '(?P<module>[\w.]+)'", _install, "critical"),
    _rule("dependency", r"(?P<module>lib[\w.+-]+\.so[\w.]*): cannot open shared object file", _install, "critical"),
    _rule("dependency", r"cannot import name '(?P<module>\w+)'", _install, "critical"),
    _rule(
        "dependency",
        r"ModuleNotFoundError|ImportError|needs vLLM where segments run|is not installed",
        _install,
        "critical",
    ),
    _rule("memory", r"estimated maximum model length is (?P<most>\d+)", _fitting_context),
    _rule(
        "memory",
        r"Free memory on device \S+ \((?P<free>[\d.]+)/(?P<total>[\d.]+) GiB\) on startup is less than",
        _smaller_share,
    ),
    _rule("memory", r"No available memory for the cache blocks|larger than the available KV cache memory", _more_cache),
    _rule(
        "memory",
        r"out of memory|OutOfMemory|cannot allocate memory|can't allocate memory|\bMemoryError\b|std::bad_alloc"
        r"|not enough memory|running low on memory|memory pressure|signal 9\b|SIGKILL|exit code:? (-9|137)\b|oom.?kill",
        _less_memory,
    ),
)
"""What an engine cannot run with."""
SYMPTOMS: Sequence[_Rule] = (
    _rule("timeout", r"did not start within", _slow_start),
    _rule(
        "timeout",
        r"request_timeout|ran longer than|answered nothing for|no progress|timed out|TimeoutError",
        _slow_request,
    ),
    _rule(
        "cluster",
        r"waits for a GPU: engines of",
        _says("wait until the other models have no work, or stop their engines"),
        "critical",
    ),
    _rule(
        "cluster",
        r"no Ray cluster|Ray could not run|the Ray node|Ray(System|Task)Error|NodeDiedError|\bGCS\b|raylet"
        r"|\bnode \S* ?(has |was |is )?(died|dead|lost|terminated)",
        _CLUSTER,
        "critical",
    ),
    _rule(
        "cluster",
        r"RayActorError|Actor(Died|Unavailable|Unschedulable)Error|WorkerCrashedError|worker process has died"
        r"|\bactor \S* ?(is |has )?(died|dead|unavailable)|engine_died|\bdied (\d+ times|each time)|ended each time",
        _PROCESS,
    ),
)
"""What follows from causes that nobody has named."""


def diagnose(result: CellResult, base: Base) -> Diagnosis | None:
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


def repair(result: CellResult, base: Base, taken: Sequence[str]) -> Cell | None:
    """Return the cell that tries the remedy of a failed one; None if no cell can, or the failed one is a repair itself.

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


def _found(rules: Sequence[_Rule], result: CellResult, base: Base) -> Diagnosis | None:
    """Return the diagnosis by the first line that a rule knows."""
    for line in _lines(result):
        for rule in rules:
            if match := rule.pattern.search(line):
                remedy = rule.remedy(_Failed(result, base), match)
                return Diagnosis(rule.category, rule.severity, cut(line, MAX_MESSAGE), remedy.text, remedy.overrides)
    return None


def _lines(result: CellResult) -> Iterator[str]:
    """Yield the lines that may say why: of the error, then of the evidence, the last first, then codes of requests."""
    for text in (result.error or "", *reversed(result.evidence)):
        for line in reversed(_GENERIC.sub("", text).splitlines()):
            if line.strip():
                yield line.strip()
    codes: dict[str, int] = {}
    for repeat in result.repeats:
        for code, requests in repeat.errors.items():
            codes[code] = codes.get(code, 0) + requests
    yield from sorted(codes, key=lambda code: -codes[code])


def _line(result: CellResult) -> str:
    return cut(next(_lines(result), "nothing was said"), MAX_MESSAGE)
