"""A live item with its program and the outcomes of its turn; and the requests of items that have no answer yet."""

from collections import Counter, defaultdict, deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from batchyard.recipes import Call, Check, Checked, Item, Score, Scored
from batchyard.recipes.program import Program, Wants
from jobs.intake.requests import PreparedRequest
from jobs.running.programs import Outcome

ToJudge: TypeAlias = Score | Check
JudgeInline: TypeAlias = Callable[[ToJudge, Item], Scored | Checked | None]
"""Judges a call at once, or returns None for one that takes its time."""


@dataclass(slots=True)
class LiveItem:
    """An item that has begun and not ended.

    `outcomes` are of what its turn wants, None for the `missing` ones, empty between two turns. `history` has all turns
    so far, of an item that is to be run again when it ends.
    """

    position: int
    program: Program
    started_at: float
    bytes: int
    history: list[tuple[Wants, list[Any]]] | None = None
    outcomes: list[Outcome | None] = field(default_factory=list)
    retries: list[int] = field(default_factory=list)
    missing: int = 0

    @property
    def item(self) -> Item:
        return self.program.item

    def enter_turn(self) -> None:
        """Wait for an outcome of each want of the program's turn."""
        number = len(self.program.wants)
        self.outcomes, self.retries, self.missing = [None] * number, [0] * number, number

    def set_outcome(self, index: int, outcome: Outcome) -> None:
        self.outcomes[index] = outcome
        self.missing -= 1

    def take_turn(self) -> list[Any]:
        """Return the outcomes of a turn that is complete, and forget them."""
        outcomes: list[Any] = self.outcomes
        if self.history is not None:
            self.history.append((self.program.wants, outcomes))
        self.outcomes = []
        return outcomes


@dataclass(frozen=True, slots=True)
class PendingCall:
    """A judgement to make, or a tool's call whose beginning is noted, with its place. That has an idempotency `key`."""

    position: int
    turn: int
    index: int
    call: ToJudge | Call
    item: Item
    key: str = ""
    is_retriable: bool = False


class OpenRequests:
    """The requests of one job without an answer.

    `buffers` have those that stand in no segment yet, by stage and model; `out` is by stage and line.
    """

    def __init__(self) -> None:
        self.buffers: dict[tuple[str, str], deque[PreparedRequest]] = defaultdict(deque)
        self.out: dict[str, dict[int, tuple[int, int]]] = defaultdict(dict)
        self.unanswered: dict[str, int] = defaultdict(int)
        self.answered: dict[str, int] = defaultdict(int)

    def add(self, request: PreparedRequest) -> None:
        self.buffers[request.stage, request.model].append(request)

    def issue(self, requests: list[PreparedRequest], first_line: int) -> None:
        """Note that these requests stand in a segment, with lines from `first_line` on."""
        for line, request in enumerate(requests, first_line):
            self.note_out(request.stage, line, request.position, request.sample, request.model)

    def note_out(self, stage: str, line: int, position: int, index: int, model: str) -> None:
        """Note that a request is out: of which item, and which of its turn's wants."""
        self.out[stage][line] = (position, index)
        self.unanswered[model] += 1

    def take(self, stage: str, line: int) -> tuple[int, int] | None:
        """Return position and index of a request that is answered now, None if it is not out."""
        return self.out[stage].pop(line, None)

    def note_answer(self, model: str) -> None:
        self.unanswered[model] -= 1
        self.answered[model] += 1

    def buffered(self, stage: str | None = None) -> list[str]:
        """Return the models with requests that stand in no segment yet, of one stage or all, sorted."""
        return sorted({model for (name, model), buffer in self.buffers.items() if buffer and stage in (None, name)})

    def pending(self) -> Counter[str]:
        pending: Counter[str] = Counter()
        for (_, model), buffer in self.buffers.items():
            pending[model] += len(buffer)
        return pending

    def total(self) -> int:
        return sum(self.unanswered.values()) + self.pending().total()
