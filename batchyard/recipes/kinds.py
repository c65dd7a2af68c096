"""Recipes and composites, and what their hooks get and return."""

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import KW_ONLY, dataclass, field, replace
from pathlib import Path
from typing import IO, Any, ClassVar, Generic, Protocol, Self, TypeVar, cast

from batchyard.recipes.asks import Ask, Check, Flow, Score, Stage, Stages
from batchyard.recipes.blocks import Block
from batchyard.recipes.item import Item
from batchyard.recipes.options import BareOptions

log = logging.getLogger(__name__)

O = TypeVar("O", bound=BareOptions)  # noqa: E741


@dataclass
class EndedItem:
    """An item as the finish hook sees it. `result` has its values, and its text as `text`.

    `started_at` and `ended_at` are Unix times: when its program began, and when it ended. An item that never began has
    none.
    """

    number: int
    custom_id: str
    columns: Mapping[str, Any]
    state: str
    result: Mapping[str, Any]
    error: Mapping[str, Any] | None
    started_at: float | None = None
    ended_at: float | None = None


class Results(Protocol):
    """The ended items of a job, and the way to its artifacts."""

    def items(self) -> Iterator[EndedItem]:
        """Stream all items in the order of the input."""

    def tables(self) -> Iterator[Any]:
        """Stream these items' input rows in the same order, as Arrow tables of the input's types."""

    def create(self, name: str) -> AbstractContextManager[IO[bytes]]:
        """Open a new artifact for writing. It is one when the context ends without an error."""

    def of_child(self, job_id: str, name: str) -> Path | None:
        """Return a copy of a child's artifact; None if it has none of that name."""


@dataclass(frozen=True)
class Report:
    """What a finish hook returns: metrics by name, and blocks for the job's page.

    A block is one of `batchyard.recipes.blocks`, or a mapping with its fields:
    {"kind": "bars", "title": "Wins", "labels": ["a", "b"], "values": [1, 2]}.

    `warnings` are codes and messages of what people should know before they use the results.
    """

    metrics: Mapping[str, Any] = field(default_factory=dict)
    view: Sequence[Block | Mapping[str, Any]] = ()
    warnings: Sequence[tuple[str, str]] = ()


@dataclass(frozen=True)
class Child:
    """A job that a composite starts."""

    variant: str  # its configuration
    repeat: int  # from 0. It is added to the composite's seed.
    # From 0. A child of a later round is started when that of the round before has completed, and its input is the
    # artifact `artifact` of that one. Those of round 0 have the composite's input.
    round: int
    recipe: str
    options: Mapping[str, Any]
    artifact: str | None = None
    # If the round before has completed without the artifact, neither it nor a later round is needed
    optional: bool = False

    @property
    def key(self) -> str:
        """What the child is called in its composite: `<variant>/<repeat>/<round>`."""
        return f"{self.variant}/{self.repeat}/{self.round}"

    @property
    def before(self) -> str | None:
        """The key of the child of the round before, None in the first round."""
        return f"{self.variant}/{self.repeat}/{self.round - 1}" if self.round else None


def undefined(*_: Any) -> Any:
    raise NotImplementedError("a recipe is made of a function: use it as a decorator")


@dataclass(frozen=True)
class Recipe(Generic[O]):
    """What all kinds of recipes have. A kind is the decorator of the author's function."""

    kind: ClassVar[str]
    """The name of what makes its jobs: `flow`, `composite`, or another of the group `batchyard.kinds`."""
    name: str
    options: type[O]
    _: KW_ONLY
    check: Callable[[O], None] | None = None
    finish: Callable[[Results, O], Report] | None = None
    main: str = "results.jsonl"
    events: Callable[[EndedItem, O], Sequence[Mapping[str, Any]]] | None = None
    function: Callable[..., Any] = undefined

    @property
    def summary(self) -> str:
        """The first line of the function's docstring."""
        return (self.function.__doc__ or "").strip().split("\n")[0]

    def default_stages(self) -> list[str] | None:
        """Return the names of the stages under default options; None if they do not tell."""
        return []


@dataclass(frozen=True)
class FlowRecipe(Recipe[O]):
    """Makes a recipe of a generator function, which answers each row of an input.

    Args:
        name: `[a-z][a-z0-9-]*`.
        options: a subclass of Options.
        stages: names in order, or a function of the options.
        loops: an item may ask in a stage before the one where it is.
        probe: returns examples of what it may yield: before a job is taken, their models, rewards and gates are looked
            up, and the gates' values and the requests are checked.
        check: raises ValueError for options that cannot be, with the path of the option and a colon before the reason.
        columns: returns the names of the columns that a row needs, dotted for fields within. It gets the row, and
            raises InvalidItem for one that cannot be an item.
        finish: writes artifacts when all items have ended.
        main: the artifact that the terminal writes to `-o`.
        events: returns what to tell clients of an item that has ended, as JSON objects with a `type`. Its `columns` may
            be left out.
        expected: returns how many requests an item makes in each stage, in their order, where that is known.
        bounds: returns instead, where the answers decide, how many an item makes that succeeds at once, and the most.
    """

    kind = "flow"

    stages: Stages | Callable[[O], Stages]
    _: KW_ONLY
    loops: bool = False
    probe: Callable[[O], Sequence[Ask | Score | Check]] | None = None
    columns: Callable[[O, Mapping[str, Any]], Sequence[str]] | None = None
    expected: Callable[[O], Sequence[float]] | None = None
    bounds: Callable[[O], Sequence[tuple[float, float]]] | None = None

    def __call__(self, function: Callable[[Item, O], Flow]) -> Self:
        return replace(self, function=function)

    def stages_of(self, options: O) -> list[Stage]:
        """Return the stages of a job with these options."""
        names = self.stages(options) if callable(self.stages) else self.stages
        return [stage if isinstance(stage, Stage) else Stage(stage) for stage in names]

    def default_stages(self) -> list[str] | None:
        try:
            return [stage.name for stage in self.stages_of(cast(O, self.options.model_construct()))]
        except Exception:
            log.debug("stages depend on an option without a default", extra={"recipe": self.name}, exc_info=True)
            return None


@dataclass(frozen=True)
class CompositeRecipe(Recipe[O]):
    """Makes a recipe whose items are jobs, of a function from options to all of them.

    The arguments are those of `recipe`. A child stands behind the child of the round before. `finish` gets an item for
    each child, with its `variant`, `repeat` and `round` as columns, and its `job_id` and `status` in its result.
    """

    kind = "composite"

    def __call__(self, function: Callable[[O], Sequence[Child]]) -> Self:
        return replace(self, function=function)

    def children(self, options: O) -> Sequence[Child]:
        children: Sequence[Child] = self.function(options)
        return children


recipe = FlowRecipe
composite = CompositeRecipe
