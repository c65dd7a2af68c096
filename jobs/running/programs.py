"""The programs of a job's items: how they start, go on, and are run again."""

import zlib
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias

from batchyard.recipes import (
    Answer,
    Call,
    Called,
    Check,
    Checked,
    FlowRecipe,
    Item,
    Options,
    Peer,
    Reply,
    Score,
    Scored,
    Wait,
)
from batchyard.recipes.program import Chosen, Program, RecipeError, Request, Wants
from jobs.intake.requests import PreparedRequest
from jobs.running.calling import Tools
from jobs.running.records import Issued, Records
from recipes.answers import answer_of, may_better
from store.formats.job_chunks import CALL, CALLED

Outcome: TypeAlias = Answer | Scored | Checked | Called | Reply | Chosen
WatchStep: TypeAlias = Callable[[int, int, int], AbstractContextManager[object]]
"""Opens the `with` block of a step: of position, life and turn."""
Prepare: TypeAlias = Callable[[Item, int, Request, int], PreparedRequest | Answer]
"""Makes a request for a segment of an item's request, or the answer that says why it cannot run."""
CHECKED_ITEMS = 100
"""One item in so many is run again when it ends, to see whether its recipe depends on what it is sent alone."""
MOST_LIVES = 10
"""A recipe takes another way whenever its file has changed. After so many lives it is not the file."""
_OUTCOMES: Mapping[type, Mapping[str, Callable[..., Outcome]]] = {
    Request: {"refused": Answer, "reused": Answer},
    Score: {"score": Scored},
    Check: {"check": Checked},
    Call: {CALLED: Called},
    Wait: {"verdict": Reply},
    Peer: {"peer": Chosen},
}
"""What the kinds of judgements are, by what a program may want."""

_UNWATCHED = nullcontext()


class NotDeterministic(Exception):
    """A recipe took another way when it was run again. The message names item and turn."""

    code = "recipe_not_deterministic"

    def __init__(self, custom_id: str, turn: int) -> None:
        super().__init__(
            f"item {custom_id!r}, turn {turn}: the recipe did something else when it was run again with the same "
            "answers; it may depend on its item, its options and what it is sent alone (random numbers: item.random)"
        )


@dataclass
class Programs:
    """Starts the programs of one job, and lets them go on.

    `hung` has, by position and life, the turn after which a step has hung, and what to say of it. `watch` opens the
    `with` block of each step. `bases` are the models that answer, by the names that requests have for them.
    """

    recipe: FlowRecipe[Any]
    options: Options
    prepare: Prepare
    max_requests: int = 1000
    recipe_sha256: str = ""
    created_sha256: str = ""
    hung: Mapping[tuple[int, int], tuple[int, str]] = field(default_factory=dict)
    watch: WatchStep = lambda position, life, turn: _UNWATCHED
    bases: Mapping[str, str] = field(default_factory=dict)
    tools: Tools = field(default_factory=Tools)
    _is_checked: bool = False

    def start(self, position: int, item: Item) -> Program:
        """Start the program of an item. Raises RecipeError."""
        with self.watch(position, item.life, 0):
            return Program(self.recipe, self.options, item, self.max_requests)

    def send(self, position: int, program: Program, outcomes: list[Any]) -> None:
        """Send a program the outcomes of its turn. Raises RecipeError."""
        with self.watch(position, program.item.life, program.turn):
            program.send(outcomes)

    def model_of(self, request: Request) -> str:
        """Return the model that answers a request: of an adapter, its base."""
        return self.bases.get(request.model, request.model)

    def is_sampled(self, item: Item) -> bool:
        """True for an item whose program is to be run again when it ends."""
        return not self._is_checked or zlib.crc32(item.custom_id.encode()) % CHECKED_ITEMS == 0

    def issued(self, position: int, item: Item, request: Request, records: Records) -> Issued | None:
        """Return the record of a request. Raises NotDeterministic if that is of another one."""
        issued = records.request(position, request.stage, request.visit, request.sample)
        if issued is not None:
            prepared = self.prepare(item, position, request, 0)
            if isinstance(prepared, Answer) or prepared.ask != issued.ask:
                raise NotDeterministic(item.custom_id, request.turn)
        return issued

    def asks_again(self, answer: Answer, retries: int) -> bool:
        """True if a request with this answer is to be asked again after so many retries."""
        return retries < self.options.retries and may_better(answer)

    def asks_the_same(self, position: int, item: Item, records: Records) -> bool:
        """True if an item's program asks all that was recorded. Nothing is noted."""
        used = 0
        try:
            program = self.start(position, item)
            while program.result is None:
                outcomes: list[Any] = []
                for index, want in enumerate(program.wants):
                    outcome = self.recorded_outcome(program, position, index, records)
                    used += outcome is not None or self.has_begun(program, position, index, records)
                    if outcome is None and isinstance(want, Request):
                        issued = self.issued(position, item, want, records)
                        used += issued is not None
                        if issued is not None and issued.answer is not None:
                            answer = answer_of(*issued.answer, want)
                            outcome = None if self.asks_again(answer, issued.retry) else answer
                    if outcome is not None:
                        outcomes.append(outcome)
                if len(outcomes) < len(program.wants):
                    break
                self.send(position, program, outcomes)
        except NotDeterministic:
            return False
        except RecipeError:
            pass  # the item may have ended so
        return used == records.count(position)

    def recorded_outcome(self, program: Program, position: int, index: int, records: Records) -> Outcome | None:
        """Return the recorded outcome of what a program wants. Raises NotDeterministic if it is of something else."""
        judgement = records.judgement(position, program.turn, index)
        if judgement is None or self.has_begun(program, position, index, records):
            return None
        kind, values = judgement
        want = program.wants[index]
        outcome = next(kinds.get(kind) for wanted, kinds in _OUTCOMES.items() if isinstance(want, wanted))
        if outcome is None:
            raise NotDeterministic(program.item.custom_id, program.turn)
        if isinstance(want, Call):
            self._check_key(program, index, want, values)
            values = {name: value for name, value in values.items() if name != "key"}
        return outcome(**values)

    def has_begun(self, program: Program, position: int, index: int, records: Records) -> bool:
        """True if a wanted call of a tool has begun and not ended. Raises NotDeterministic if another has."""
        want, judgement = program.wants[index], records.judgement(position, program.turn, index)
        if not isinstance(want, Call) or judgement is None or judgement[0] != CALL:
            return False
        self._check_key(program, index, want, judgement[1])
        return True

    def _check_key(self, program: Program, index: int, call: Call, values: Mapping[str, Any]) -> None:
        if values["key"] != self.tools.key(program.item, program.turn, index, call):
            raise NotDeterministic(program.item.custom_id, program.turn)

    def check(self, position: int, first: Program, history: list[tuple[Wants, list[Any]]]) -> None:
        """Run an ended program again with what it was sent, and compare. Raises NotDeterministic."""
        item = first.item
        again: Program | None = None
        turn = 1
        try:
            again = self.start(position, item)
            for turn, (wants, outcomes) in enumerate(history, start=1):
                if again.wants != wants:
                    raise NotDeterministic(item.custom_id, turn)
                self.send(position, again, outcomes)
        except RecipeError as error:
            raise NotDeterministic(item.custom_id, turn) from error
        result, before = again.result, first.result
        if result is None or before is None or vars(result) != vars(before):
            raise NotDeterministic(item.custom_id, turn + 1)
        self._is_checked = True

    def next_life(self, item: Item, restarts: int) -> Item:
        """Return an item in its next life. Raises NotDeterministic after MOST_LIVES."""
        if restarts >= MOST_LIVES - 1:
            raise NotDeterministic(item.custom_id, 1)
        return replace(item, life=item.life + 1)
