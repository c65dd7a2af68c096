"""What was recorded of items before their programs were lost, and what a tick adds to it."""

import json
import time
from collections import Counter, defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from batchyard import json_lines
from batchyard.recipes import Item
from batchyard.recipes.program import RecipeError
from store.formats.job_chunks import RECIPE


@dataclass(frozen=True, slots=True)
class RecordedOutcome:
    """An outcome that no batch keeps: of a call, a wait, or a request that no engine runs."""

    position: int
    life: int
    turn: int
    index: int
    kind: str
    value: bytes


@dataclass(frozen=True, slots=True)
class Change:
    """The state that an item has come to, for the records (store.formats.job_chunks). `result`, `error` are JSON."""

    position: int
    number: int
    custom_id: str
    state: str
    life: int
    turns: int
    result: bytes
    error: bytes | None
    started_at: float
    ended_at: float | None


class Life(NamedTuple):
    """A life of an item, and the SHA-256 of the recipe's file that it went on with last.

    `hint` is that of who has put the item back, `restarts` counts the lives since then that a change of the recipe's
    file began.
    """

    number: int
    recipe_sha256: str
    hint: str | None = None
    restarts: int = 0


@dataclass(frozen=True, slots=True)
class Issued:
    """A request in the records. `answer` is None while it has none."""

    retry: int
    line: int
    ask: bytes
    answer: tuple[str, float | None] | None


@dataclass
class Uncommitted:
    """What has happened to items since the last commit.

    `moved` are changes of state that come before those of `ended`; `outcomes` those that no batch keeps, and calls of
    tools that are to begin; `called` the keys of calls that have ended; `reopened` the former states of items put back.
    """

    ended: list[Change] = field(default_factory=list)
    moved: list[Change] = field(default_factory=list)
    outcomes: list[RecordedOutcome] = field(default_factory=list)
    called: list[str] = field(default_factory=list)
    reopened: Counter[str] = field(default_factory=Counter)
    counters: dict[str, int] = field(default_factory=lambda: defaultdict(int))
    reused: int = 0
    restarted: int = 0

    def note(self, position: int, item: Item, turn: int, index: int, kind: str, value: bytes) -> None:
        self.outcomes.append(RecordedOutcome(position, item.life, turn, index, kind, value))

    def begin_life(self, position: int, item: Item, recipe_sha256: str, restarts: int, at: float) -> None:
        """Note that a life of an item begins, or goes on with another file of the recipe."""
        values = {"recipe_sha256": recipe_sha256, "hint": item.hint, "restarts": restarts, "at": at}
        self.note(position, item, 0, 0, RECIPE, json_lines.dumps(values))

    def move(
        self, position: int, item: Item, state: str, turns: int, values: Mapping[str, Any], started_at: float
    ) -> None:
        """Note that an item is in a state that is not its end."""
        result = json.dumps(values, ensure_ascii=False).encode()
        self.moved.append(
            Change(position, item.number, item.custom_id, state, item.life, turns, result, None, started_at, None)
        )

    def end(
        self, position: int, item: Item, state: str, turns: int, result: bytes, error: bytes | None, started_at: float
    ) -> None:
        """Note the end of an item. `result` and `error` are JSON."""
        number, custom_id, at = item.number, item.custom_id, time.time()
        self.ended.append(Change(position, number, custom_id, state, item.life, turns, result, error, started_at, at))

    def fail(self, position: int, item: Item, turns: int, error: RecipeError, started_at: float) -> None:
        details = json_lines.dumps({"code": error.code, "message": error.message})
        self.end(position, item, "failed", turns, b'{"text":null}', details, started_at)
