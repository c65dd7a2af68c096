"""What was measured of a cell: its repeats, its start, its memory, or why it failed."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from statistics import median
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict

from recipes.tune.cells import IN_FLIGHT, Cell, TunedModel

STEADY = 5
"""Rows for each request at once, below which a repeat is mostly filling and draining the engine: it is not steady."""


class Repeat(BaseModel):
    """One measurement of a cell, of all its batches side by side. The warm-up is none."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    rows: int  # requests that have an answer or an error
    ok: int  # those that have an answer
    errors: dict[str, int] = {}  # the others by error code
    # Of those with an answer, as the engine counted
    input_tokens: int = 0
    output_tokens: int = 0
    seconds: float  # from the first batch's start to the last one's end, without the engine's start
    # Seconds of a request in the engine; None without an answer
    p50: float | None = None
    p95: float | None = None
    p99: float | None = None
    jobs: tuple[str, ...] = ()  # ids of its batches

    @property
    def tokens(self) -> int:
        """Tokens that count as throughput: those of the outputs, or of the inputs where there are no others."""
        return self.output_tokens or self.input_tokens


State = Literal["completed", "failed", "over_budget", "not_run"]


class CellResult(BaseModel):
    """What became of a cell."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    cell: Cell
    # `completed`: all repeats ran. `failed`: `error` says why. `over_budget`: the cell's own time ended before.
    # `not_run`: the time of all cells ended before it began.
    state: State
    repeats: tuple[Repeat, ...] = ()
    start_seconds: float | None = None  # of the engine's start, None if it was warm or never ran
    capacity: int | None = None  # requests at once of all replicas, as the engine said; None if it never ran
    # Bytes of the engine's processes at most; None if unknown
    peak_memory: int | None = None
    peak_gpu_memory: int | None = None
    error: str | None = None  # message of what failed
    # Lines of the engine's output or of errors, the oldest first, which the diagnosis reads after `error`
    evidence: tuple[str, ...] = ()
    derived: str | None = None  # name of the derived model
    config_sha256: str | None = None  # of the derived model
    # As the manifest of its first batch says: the derived model's values at the keys of `cell.overrides`. {} if it has
    # no manifest.
    overrides: dict[str, Any] = {}
    simulated: bool = False  # what the manifest says

    @property
    def medians(self) -> Medians | None:
        """The medians over its repeats, None without any."""
        if not self.repeats:
            return None
        return Medians(
            rows=_median(repeat.ok / repeat.seconds for repeat in self.repeats if repeat.seconds > 0),
            tokens=_median(repeat.tokens / repeat.seconds for repeat in self.repeats if repeat.seconds > 0),
            errors=_median((repeat.rows - repeat.ok) / repeat.rows for repeat in self.repeats if repeat.rows),
            **{name: _median(getattr(each, name) for each in self.repeats) for name in ("p50", "p95", "p99")},
        )

    @property
    def tokens_range(self) -> tuple[float, float] | None:
        """The least and the most tokens/s of a repeat, None without any."""
        values = [repeat.tokens / repeat.seconds for repeat in self.repeats if repeat.seconds > 0]
        return (min(values), max(values)) if values else None

    @property
    def differing(self) -> list[str]:
        """Keys at which the manifest says something else than the cell. None are known without a manifest.

        A key of the entry that the cell takes out has its default there.
        """
        return [
            key
            for key, value in self.cell.overrides.items()
            if self.overrides
            and self.overrides.get(key) != value
            and (value is not None or key.startswith("engine_args."))
        ]


@dataclass(frozen=True)
class Medians:
    """Medians over the repeats of a cell; None where no repeat has a value."""

    # Answered in a second
    rows: float | None
    tokens: float | None
    errors: float | None  # share of the rows, 0 to 1
    # Seconds of a request
    p50: float | None
    p95: float | None
    p99: float | None


def _median(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return median(known) if known else None


def batch_of(result: CellResult, base: TunedModel) -> int | None:
    """Return a cell's `batch`: its own, the entry's or the engine's. None if unknown."""
    value = result.cell.value(base, base.batch_key)
    return value if isinstance(value, int) else base.batch_default or result.capacity


def at_once(result: CellResult, base: TunedModel) -> int | None:
    """Return the requests that all replicas of a cell ran at once, None if nobody knows."""
    replicas, most = result.cell.value(base, "replicas") or 1, result.cell.value(base, IN_FLIGHT)
    batch = result.cell.value(base, base.batch_key) or base.batch_default
    limits = [batch and batch * replicas, most and most * replicas, None if batch else result.capacity]
    return min((limit for limit in limits if isinstance(limit, int)), default=None)


def is_steady(result: CellResult, base: TunedModel) -> bool | None:
    """True if each repeat had STEADY rows for each parallel request. None if unknown."""
    requests = at_once(result, base)
    if not result.repeats or requests is None:
        return None
    return min(repeat.rows for repeat in result.repeats) >= STEADY * requests
