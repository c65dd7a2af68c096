"""Post-processing steps: what a batch may ask for (`post_process: [{"step": "score"}]`), run once all answers are
there.

A step is one module in this folder: a pydantic model of its options and a function, registered by name:

    class Options(StepOptions):
        step: Literal["shout"]

    @register("shout", Options)
    def shout(results: Results, options: Options) -> None: ...
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from pydantic import BaseModel, ConfigDict

if TYPE_CHECKING:
    from store.artifacts import Writer
    from store.formats.results import Row


class StepOptions(BaseModel):
    """What a client writes for one step; each step adds its own fields."""

    model_config = ConfigDict(extra="forbid")
    step: str


class Results(Protocol):
    """What a step may see of a batch, and where it puts what it makes."""

    def rows(self) -> Iterator[Row]:
        """Every request in input order, with its answer or error. Streams."""

    def create(self) -> Writer:
        """A writer for a new artifact."""

    def add(self, name: str, sha256: str, size: int, lines: int | None = None) -> None:
        """Name what a writer has stored as an artifact of the batch."""


Options = TypeVar("Options", bound=StepOptions)
REGISTRY: dict[str, tuple[type[StepOptions], Callable[[Results, Any], None]]] = {}


def register(
    name: str, options: type[Options]
) -> Callable[[Callable[[Results, Options], None]], Callable[[Results, Options], None]]:
    """Make a function the step of that name."""

    def add(function: Callable[[Results, Options], None]) -> Callable[[Results, Options], None]:
        REGISTRY[name] = (options, function)
        return function

    return add


def asked(entry: dict[str, Any]) -> dict[str, Any]:
    """What the client wrote for a step, without what has become of it."""
    return {key: value for key, value in entry.items() if key not in ("status", "error")}


def run(entry: dict[str, Any], results: Results) -> None:
    """Run the step that an entry of `post_process` asks for. Raises whatever the step raises."""
    options, function = REGISTRY[entry["step"]]
    function(results, options.model_validate(entry))


for _name in ("parquet", "score"):
    importlib.import_module(f"tasks.steps.{_name}")
