"""A live item: its program, and the outcomes of its turn that have come."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from batchyard.recipes import Check, Checked, Item, Score, Scored
from batchyard.recipes.program import Program, Wants
from jobs.running.programs import Outcome

ToJudge: TypeAlias = Score | Check
JudgeInline: TypeAlias = Callable[[ToJudge, Item], Scored | Checked | None]
"""Judges a call at once, or returns None for one that takes its time."""


@dataclass(slots=True)
class LiveItem:
    """An item that has begun and not ended.

    Attributes:
        bytes: approximate size of its texts in memory.
        outcomes: of what its turn wants, None for those still to come; empty between two turns.
        retries: how often each of these was asked again.
        missing: the number of outcomes still to come.
        history: all turns so far with their outcomes, of an item that is to be run again when it ends.
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
        """Take the outcome of one of the turn's wants."""
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
    """A Score or a Check that is to be judged."""

    position: int
    turn: int
    index: int
    call: ToJudge
    item: Item
