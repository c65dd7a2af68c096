"""The options of `tune`, and the cells that they ask for: configurations of models, each measured alone."""

import itertools
import json
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, PositiveInt, field_validator

from batchyard import config, durations, plugins
from batchyard.models import OF_SERVERS, ModelSpec
from batchyard.recipes import BASIC, BareOptions, Judgement
from batchyard.settings import readable
from batchyard.wording import quoted, suggestion
from recipes.options import option
from recipes.tune.slo import parse

MOST = 1000
"""Cells of one matrix."""
FIXED = frozenset({"name", "engine", "source", "endpoints", "adapters"})
"""Keys of a model's entry that make it another model."""
KEYS = [field for field in ModelSpec.model_fields if field not in FIXED]
IN_FLIGHT = "max_in_flight"
"""The key that bounds the requests at once of any engine."""
NAME = 56
"""Most characters of a cell's name."""
SEED = (
    ("baseline", 64, 1),
    ("baseline", 128, 2),
    ("baseline", 256, 2),
    ("concurrency", 64, 4),
    ("concurrency", 64, 8),
    ("concurrency", 64, 16),
    ("large", 64, 2),
    ("stress", 512, 2),
    ("stress", 128, 16),
)
"""Cells of the matrix `seed`: purpose, requests at once, and parallel equal batches."""


Duration = Annotated[str, readable(durations.seconds)]


class Tune(BareOptions):
    """Options of `tune`."""

    models: list[str] = Field(min_length=1, description="Models to tune, by their names in models.toml")
    matrix: Literal["seed"] | None = Field(
        None,
        description="`seed`: requests at once x batches side by side from 64x1 to 128x16, on the first model, and 64x2 "
        "on the largest; in place of `batch` and `concurrency`",
    )
    batch: list[PositiveInt] = Field(
        [],
        description="Requests at once: max_num_seqs of vLLM, batch_size of transformers, slots of echo",
        json_schema_extra=BASIC,
    )
    concurrency: list[PositiveInt] = Field(
        [], description="Equal batches side by side; default: 1", json_schema_extra=BASIC
    )
    set: dict[str, Annotated[list[Any], Field(min_length=1)]] = Field(
        {}, description="{key of a model's entry: [values]}, as in engine_args.max_num_batched_tokens or replicas"
    )
    default: bool = Field(False, description="Measure each model as it is, too, to compare with")
    repeats: int = Field(3, ge=1, le=100, description="Measurements of each cell; its figures are their medians")
    budget: Duration | None = Field(None, description="Time for all cells, such as 2h; no cell starts after it")
    cell_budget: Duration = Field("30m", description="Time for one cell, its start included")
    slo: Judgement[Annotated[str, readable(parse)] | None] = Field(
        None, description="What a cell has to meet: `p95<=5s,errors<=5%,tokens>=1000/s,rows>=5/s`, or `seed` for these"
    )
    window: Judgement[Duration] = Field("24h", description="The report says how many rows the best cell answers in it")
    search: Literal["up", "optuna"] | None = Field(
        None,
        description="`up`: double `batch`, else `concurrency`, until two cells in a row break the SLO; `optuna`: let "
        "Optuna choose `cells` of the matrix, each by what those before have shown",
    )
    cells: int = Field(12, ge=1, le=MOST, description="Cells of the matrix that search `optuna` measures")
    repair: bool = Field(False, description="Try the remedy of a failed cell as one more cell")
    options: dict[str, Any] = Field(
        {}, description="Options of recipe `batch` for all requests; keys may have dots, as in sampling.max_tokens"
    )
    warm_up: int = Field(16, ge=1, description="Rows of the job that starts a cell's engine and is not measured")

    @field_validator("set")
    @classmethod
    def _keys(cls, dimensions: dict[str, list[Any]]) -> dict[str, list[Any]]:
        for key in dimensions:
            first, *rest = config.path(key)
            if first in FIXED:
                raise ValueError(
                    f"{key}: another {first} is another model; add it to models.toml and name it in `models`"
                )
            if first not in KEYS:
                raise ValueError(f"{key}: a model's entry has no such key; {suggestion(first, KEYS, '{}')}")
            if (first == "engine_args") != bool(rest):
                raise ValueError(f"{key}: only engine_args has keys of its own, as in engine_args.max_num_seqs")
            if rest and rest[0] in OF_SERVERS:  # a client must not start programs
                raise ValueError(f"{key}: how a server is started is set in models.toml only")
        return dimensions

    @field_validator("options")
    @classmethod
    def _paths(cls, values: dict[str, Any]) -> dict[str, Any]:
        for key in values:
            if config.path(key)[0] in ("model", "fresh", "retries"):
                raise ValueError(f"{key}: `tune` sets it itself; leave it out")
        return values


@dataclass(frozen=True)
class TunedModel:
    """A model that cells are derived from."""

    name: str
    # Its entry in models.toml, as it is in force: no defaults filled in but what the catalog resolves
    entry: Mapping[str, Any]
    # The key of `engine_args` that says how many requests run at once; None if its engine has none
    batch_argument: str | None = None
    batch_default: int | None = None  # its value where the entry has none; None if the engine decides it at start
    size: int | None = None  # bytes of its weights, None if unknown

    @property
    def batch_key(self) -> str:
        """The key of the entry that `batch` sets."""
        return IN_FLIGHT if self.batch_argument is None else f"engine_args.{self.batch_argument}"


def value_at(entry: Any, key: str) -> Any:
    """Return the value at a dotted key of a model's entry, None if it has none."""
    for name in config.path(key):
        entry = entry.get(name) if isinstance(entry, Mapping) else None
    return entry


class Cell(BaseModel):
    """A configuration that is measured."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str  # unique in its matrix; letters, digits and `_.+-`, at most 64
    model: str  # the model that it is derived from
    overrides: dict[str, Any] = {}  # {dotted key of the model's entry: value}, that of `batch` included
    batch: int | None = None  # requests at once, None for what the entry says
    concurrency: int = 1  # equal batches side by side
    preset: str | None = None  # the kind of its preset: baseline, concurrency, large, stress
    repair_of: str | None = None  # the name of the cell whose failure it remedies

    def entry(self, base: TunedModel) -> dict[str, Any]:
        """Return the derived model's entry: the base under the overrides. None removes a key."""
        entry = {**base.entry, "engine_args": dict(base.entry.get("engine_args") or {})}
        for key, value in self.overrides.items():
            first, *rest = config.path(key)
            target = entry
            for name in rest:
                target[first] = dict(target.get(first) or {})
                target, first = target[first], name
            if value is None:
                target.pop(first, None)
            else:
                target[first] = value
        if not entry["engine_args"]:
            del entry["engine_args"]
        return entry

    def value(self, base: TunedModel, key: str) -> Any:
        """Return the value of a dotted key in the derived model's entry, None without one."""
        return value_at(self.entry(base), key)

    def identity(self, base: TunedModel) -> str:
        """Return what is equal for cells that measure the same."""
        return json.dumps([self.model, self.entry(base), self.concurrency], sort_keys=True)


def cells(options: Tune, bases: Sequence[TunedModel]) -> list[Cell]:
    """Return the cells of a matrix: the product of its dimensions, models first.

    `bases`: of `options.models`, in that order.
    Raises ValueError: with the path of the option, for dimensions that cannot be. Two cells that are one configuration
    are refused by both names.
    """
    _check(options, bases)
    by_name = {base.name: base for base in bases}
    chosen: list[Cell] = []
    seen: dict[str, str] = {}
    # Models as they are have the first other cell's batches side by side.
    plain = [made(base, {}, None, (options.concurrency or [1])[0]) for base in bases[: defaults(options, bases)]]
    for cell in (*plain, *_product(options, bases)):
        cell = named(cell, [other.name for other in chosen])
        identity = cell.identity(by_name[cell.model])
        if identity in seen:
            raise ValueError(f"set: cells '{seen[identity]}' and '{cell.name}' are one configuration; leave one out")
        seen[identity] = cell.name
        chosen.append(cell)
    return chosen


def named(cell: Cell, taken: Sequence[str]) -> Cell:
    """Return a cell whose name is not taken: with a number if need be."""
    name = re.sub(r"[^A-Za-z0-9_.+-]", "_", cell.name)[:NAME]
    numbered = (f"{name}-{number}" for number in itertools.count(2))
    return cell.model_copy(update={"name": name if name not in taken else next(n for n in numbered if n not in taken)})


def largest(bases: Sequence[TunedModel]) -> TunedModel:
    """Return the base with the largest weights; the last unless all sizes are known."""
    sizes = [base.size for base in bases]
    known = [size for size in sizes if size is not None]
    return bases[sizes.index(max(known))] if len(known) == len(bases) else bases[-1]


def _check(options: Tune, bases: Sequence[TunedModel]) -> None:
    if options.search == "optuna":
        if options.matrix:
            raise ValueError(
                f"matrix: search 'optuna' chooses of `batch`, `concurrency` and `set`; leave out '{options.matrix}'"
            )
        with option("search"):
            plugins.require("optuna", "search 'optuna'")
    if options.search == "up" and options.slo is None:
        raise ValueError("slo: search 'up' goes on until cells break it; set one, such as 'p95<=5s,errors<=5%'")
    for index, name in enumerate(options.models):
        if name in options.models[:index]:
            raise ValueError(f"models.{index}: {quoted(name)} is named twice")
    for base in bases:
        if base.batch_key in options.set and (options.batch or options.matrix):
            raise ValueError(f"set.{base.batch_key}: that is `batch` of model {base.name}; name it once")
    if options.matrix is None:
        lists = (bases, options.batch or [1], options.concurrency or [1], *options.set.values())
        number = math.prod(map(len, lists))
        if number > MOST:
            raise ValueError(f"set: {number:,} cells, and {MOST:,} are the most; take fewer values")
        return
    for key in ("batch", "concurrency"):
        if getattr(options, key):
            raise ValueError(f"{key}: matrix '{options.matrix}' has its own; leave one of them out")
    used = {bases[0].name, largest(bases).name}
    for index, base in enumerate(bases):
        if base.name not in used:
            names = " and ".join(repr(name) for name in sorted(used))
            raise ValueError(f"models.{index}: matrix '{options.matrix}' runs on {names}; leave out {base.name!r}")


def defaults(options: Tune, bases: Sequence[TunedModel]) -> int:
    """Return how many cells are models as they are: the first ones."""
    return len(bases) if options.default and (options.matrix or options.batch or options.set) else 0


def _product(options: Tune, bases: Sequence[TunedModel]) -> Iterator[Cell]:
    overrides = [dict(zip(options.set, values, strict=True)) for values in itertools.product(*options.set.values())]
    if options.matrix is not None:
        for (kind, size, side_by_side), own in itertools.product(SEED, overrides):
            yield made(largest(bases) if kind == "large" else bases[0], own, size, side_by_side, kind)
        return
    batches: Sequence[int | None] = options.batch or [None]
    for base, own, batch, concurrency in itertools.product(bases, overrides, batches, options.concurrency or [1]):
        yield made(base, own, batch, concurrency)


def made(
    base: TunedModel, overrides: Mapping[str, Any], batch: int | None, concurrency: int, preset: str | None = None
) -> Cell:
    """Return a cell, named by its model and by what it is made of: `mini-64x2`, `mini-64x2+replicas-2`."""
    of_name = base.name
    if batch is not None or concurrency > 1:
        of_name += f"-{'' if batch is None else batch}x{concurrency}"
    for key, value in overrides.items():
        of_name += f"+{config.path(key)[-1]}-{value if isinstance(value, str) else json.dumps(value)}"
    of_batch = {} if batch is None else {base.batch_key: batch}
    values = {**overrides, **of_batch}
    return Cell(name=of_name, model=base.name, overrides=values, batch=batch, concurrency=concurrency, preset=preset)
