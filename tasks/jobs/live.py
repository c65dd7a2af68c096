"""The items of a job that have begun and not ended: their programs in memory, without a database.

Each item's program says what it wants, and waits here until that has come. What a program is sent is noted at the same
time as what follows from it. So whoever writes both in one transaction can build the same state again.
"""

from __future__ import annotations

import time
import zlib
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, dataclass, field, replace
from types import MappingProxyType
from typing import Any, Protocol, TypeAlias

import orjson

from batchyard.program import Program, RecipeError, Request, Wants
from batchyard.recipes import Answer, Check, Checked, Item, Options, Recipe, Score, Scored
from store.formats.job_chunks import RECIPE
from tasks.jobs.outlook import Turns, outlook
from tasks.jobs.requests import Pending, answer_of, may_better

Call: TypeAlias = Score | Check
Outcome: TypeAlias = Answer | Scored | Checked
Step: TypeAlias = Callable[[int, int, int], AbstractContextManager[object]]
CHECKED_ITEMS = 100
"""One item in so many is run again when it ends, to see whether its recipe depends on what it is sent alone."""
MOST_LIVES = 10
"""A recipe takes another way whenever its file has changed. After so many lives it is not the file."""


class NotDeterministic(Exception):
    """A recipe took another way when it was run again. The message names item and turn."""

    code = "recipe_not_deterministic"

    def __init__(self, custom_id: str, turn: int) -> None:
        super().__init__(
            f"item {custom_id!r}, turn {turn}: the recipe did something else when it was run again with the same "
            "answers; it may depend on its item, its options and what it is sent alone (random numbers: item.random)"
        )


@dataclass(frozen=True, slots=True)
class Judged:
    """An outcome that no batch keeps, for the records: of a Score or a Check, or a request that no engine will run."""

    position: int
    life: int
    turn: int
    index: int
    kind: str
    value: bytes


@dataclass(frozen=True, slots=True)
class Ended:
    """An item that has ended, for the records. `result` and `error` are JSON."""

    position: int
    number: int
    custom_id: str
    state: str
    life: int
    turns: int
    result: bytes
    error: bytes | None
    started_at: float
    ended_at: float


@dataclass(frozen=True, slots=True)
class Issued:
    """A request in the records. `answer` is None while it has none."""

    retry: int
    line: int
    ask: bytes
    answer: tuple[str, float | None] | None


class Records(Protocol):
    """What was recorded of items before their programs were lost, each in its present life."""

    def life(self, position: int) -> tuple[int, str]:
        """Return the number of an item's life, and the SHA-256 of the recipe's file that it went on with last."""

    def count(self, position: int) -> int:
        """Return how many requests and judgements of an item there are."""

    def request(self, position: int, stage: str, visit: int, sample: int) -> Issued | None:
        """Return the last attempt at a request."""

    def judgement(self, position: int, turn: int, index: int) -> tuple[str, Mapping[str, Any]] | None:
        """Return kind and value of an outcome."""


class NoRecords:
    """The records of an item that begins."""

    def life(self, position: int) -> tuple[int, str]:
        return 1, ""

    def count(self, position: int) -> int:
        return 0

    def request(self, position: int, stage: str, visit: int, sample: int) -> Issued | None:
        return None

    def judgement(self, position: int, turn: int, index: int) -> tuple[str, Mapping[str, Any]] | None:
        return None


NO_RECORDS = NoRecords()
_UNWATCHED = nullcontext()
_OUTCOMES: Mapping[type, Mapping[str, Callable[..., Outcome]]] = {
    Request: {"refused": Answer, "reused": Answer},
    Score: {"score": Scored},
    Check: {"check": Checked},
}
"""What the kinds of judgements are, by what a program may want."""


@dataclass(slots=True)
class _LiveItem:
    position: int
    program: Program
    started_at: float
    bytes: int
    outcomes: list[Outcome | None] = field(default_factory=list)
    retries: list[int] = field(default_factory=list)
    missing: int = 0
    history: list[tuple[Wants, list[Outcome]]] | None = None


class LiveItems:
    """The live items of one job.

    Attributes:
        buffers: requests that stand in no segment yet, by stage and model.
        out: position and index of each request that has no answer yet, by stage and line.
        unanswered, answered: number of requests out, and of answers taken, by model.
        calls: Scores and Checks to judge, as (position, turn, index, call, item).
        ended, judged: what the records have to take up, see `taken`.
        counters: what results have counted since the last `taken`.
        reused, restarted: requests that another job had answered, and items that began a new life, since the last
            `taken`.
        step: opens the `with` block of each step, of (position, life, turn).
        turns: how far items have gone, for the outlook.
        bytes: approximate size of the texts in memory.
    """

    def __init__(
        self,
        recipe: Recipe[Any],
        options: Options,
        prepare: Callable[[Item, int, Request, int], Pending | Answer],
        *,
        inline: Callable[[Call, Item], Scored | Checked | None] = lambda call, item: None,
        reuse: Callable[[Item, Pending], Answer | None] = lambda item, request: None,
        max_requests: int = 1000,
        recipe_sha256: str = "",
        created_sha256: str = "",
        hung: Mapping[tuple[int, int], tuple[int, str]] = MappingProxyType({}),
        step: Step = lambda position, life, turn: _UNWATCHED,
    ) -> None:
        """
        Args:
            prepare: makes a pending request of an item's request, or the answer that says why it cannot run.
            inline: judges a call at once, or returns None for one that takes its time.
            reuse: returns the answer that another job has to a request, None if it has none.
            recipe_sha256, created_sha256: of the recipe's file, and of that when the job was created.
            hung: by position and life, the turn after which a step has hung, and what to say of it.
        """
        self._recipe = recipe
        self._options = options
        self._prepare = prepare
        self._inline = inline
        self._reuse = reuse
        self._max_requests = max_requests
        self._recipe_sha256, self._created_sha256 = recipe_sha256, created_sha256
        self._hung = hung
        self.step = step
        self._items: dict[int, _LiveItem] = {}
        self._all_checked = False
        self.buffers: dict[tuple[str, str], deque[Pending]] = defaultdict(deque)
        self.out: dict[str, dict[int, tuple[int, int]]] = defaultdict(dict)
        self.unanswered: dict[str, int] = defaultdict(int)
        self.answered: dict[str, int] = defaultdict(int)
        self.calls: list[tuple[int, int, int, Call, Item]] = []
        self.judging = 0
        self.ended: list[Ended] = []
        self.judged: list[Judged] = []
        self.counters: dict[str, int] = defaultdict(int)
        self.turns = Turns()
        self.reused = 0
        self.restarted = 0
        self.bytes = 0

    def __len__(self) -> int:
        return len(self._items)

    def positions(self) -> Iterator[int]:
        return iter(self._items)

    def where(self, position: int) -> tuple[int, str | None]:
        """Return the turn of a live item, and the stage of the requests that it waits for."""
        program = self._items[position].program
        first = program.wants[0] if program.wants else None
        return program.turn, first.stage if isinstance(first, Request) else None

    def begin(self, position: int, item: Item, size: int, records: Records = NO_RECORDS) -> None:
        """Begin an item, or resume it: its program is sent what was recorded.

        If the recipe's file has changed, and the program does not ask what was recorded, the item begins its next life.

        Raises:
            NotDeterministic: the program asks something else than it did before, and the file is the same.
        """
        started_at = time.time()
        before_sha256 = self._created_sha256
        if records is not NO_RECORDS:
            life, before_sha256 = records.life(position)
            item = replace(item, life=life)
        if (position, item.life) in self._hung:
            turn, message = self._hung[position, item.life]
            self._fail(position, item, turn, started_at, RecipeError(message, "recipe_hangs"))
            return
        if before_sha256 != self._recipe_sha256:
            if records is not NO_RECORDS and not self._asks_the_same(position, item, records):
                item, records = self._next_life(item), NO_RECORDS
            value = orjson.dumps({"recipe_sha256": self._recipe_sha256, "at": started_at})
            self.judged.append(Judged(position, item.life, 0, 0, RECIPE, value))
        try:
            with self.step(position, item.life, 0):
                program = Program(self._recipe, self._options, item, self._max_requests)
        except RecipeError as error:
            self._fail(position, item, 0, started_at, error)
            return
        live = _LiveItem(position, program, started_at, size)
        if not self._all_checked or zlib.crc32(item.custom_id.encode()) % CHECKED_ITEMS == 0:
            live.history = []
        self._items[position] = live
        self.bytes += live.bytes
        self._continue(live, records)

    def issue(self, requests: list[Pending], first_line: int) -> None:
        """Note that these requests stand in a segment, with lines from `first_line` on."""
        for line, request in enumerate(requests, first_line):
            self._note_out(request.stage, line, request.position, request.sample, request.model)

    def answer(self, stage: str, line: int, output_line: str, seconds: float | None) -> None:
        """Take the answer of a request. One that is not out is ignored: it was taken before.

        Raises:
            NotDeterministic: as `begin`.
        """
        place = self.out[stage].pop(line, None)
        if place is None:
            return
        position, index = place
        live = self._items[position]
        request = live.program.wants[index]
        assert isinstance(request, Request)
        self.unanswered[request.model] -= 1
        self.answered[request.model] += 1
        answer = answer_of(output_line, seconds, request)
        if self._ask_again(live, index, request, answer):
            return
        live.bytes += len(answer.text)
        self.bytes += len(answer.text)
        self._settle(live, index, answer)
        self._continue(live)

    def judge(self, position: int, turn: int, index: int, outcome: Scored | Checked) -> None:
        """Take the outcome of one of `calls`. Raises NotDeterministic as `begin` does."""
        self.judging -= 1
        live = self._items.get(position)
        if live is None or live.program.turn != turn or live.outcomes[index] is not None:
            return
        self._note(live, index, outcome)
        self._settle(live, index, outcome)
        self._continue(live)

    def taken(self) -> None:
        """Forget what the records have taken up."""
        self.ended.clear()
        self.judged.clear()
        self.reused = self.restarted = 0
        self.counters.clear()

    def pending(self) -> int:
        """Return the requests that stand in no segment yet."""
        return sum(map(len, self.buffers.values()))

    def outlook(self, unbegun: int) -> dict[str, Any]:
        """Return what the job's record keeps for its forecast, with `unbegun` items that have not begun."""
        live = Counter(item.program.turn for item in self._items.values())
        pending: Counter[str] = Counter()
        for (_, model), buffer in self.buffers.items():
            pending[model] += len(buffer)
        return outlook(self.turns, sorted(live.items()), pending, unbegun)

    def waits(self) -> bool:
        """True if an item waits for an answer or a judgement."""
        return any(self.out.values()) or self.judging > 0 or bool(self.calls)

    def _continue(self, live: _LiveItem, records: Records = NO_RECORDS) -> None:
        """Send what a turn has got, once it is complete, and go on to where the item has to wait, or to its end."""
        program = live.program
        while True:
            if program.result is not None:
                self._end(live)
                return
            if not live.outcomes:
                self._enter(live, records)
            if live.missing:
                return
            outcomes: list[Any] = live.outcomes
            if live.history is not None:
                live.history.append((program.wants, outcomes))
            self.turns[program.turn].complete += 1
            live.outcomes = []
            try:
                with self.step(live.position, program.item.life, program.turn):
                    program.send(outcomes)
            except RecipeError as error:
                self._drop(live)
                self._fail(live.position, program.item, program.turn, live.started_at, error)
                return

    def _enter(self, live: _LiveItem, records: Records) -> None:
        wants = live.program.wants
        if records is NO_RECORDS:  # others were counted before
            self.turns[live.program.turn].begun += 1
            self.turns[live.program.turn].requests.update(want.model for want in wants if isinstance(want, Request))
        live.outcomes, live.retries, live.missing = [None] * len(wants), [0] * len(wants), len(wants)
        for index, want in enumerate(wants):
            if isinstance(want, Request):
                self._ask(live, index, want, records)
            elif isinstance(want, Score | Check):
                self._call(live, index, want, records)

    def _ask(self, live: _LiveItem, index: int, request: Request, records: Records) -> None:
        item = live.program.item
        outcome = _judgement(live.program, live.position, index, records)
        if outcome is not None:
            self._settle(live, index, outcome)
            return
        prepared, issued = self._issued(item, live.position, request, records)
        if issued is not None:
            live.retries[index] = issued.retry
            if issued.answer is None:
                self._note_out(request.stage, issued.line, live.position, index, request.model)
                return
            answer = answer_of(*issued.answer, request)
            if not self._ask_again(live, index, request, answer):
                self._settle(live, index, answer)
        elif isinstance(prepared, Answer):
            self._note(live, index, prepared, "refused")
            self._settle(live, index, prepared)
        elif (reused := self._reuse(item, prepared)) is not None:
            self.reused += 1
            self._note(live, index, reused, "reused")
            self._settle(live, index, reused)
        else:
            self.buffers[request.stage, request.model].append(prepared)

    def _issued(
        self, item: Item, position: int, request: Request, records: Records
    ) -> tuple[Pending | Answer, Issued | None]:
        """Return a prepared request, and the record of it. Raises NotDeterministic if that is of another one."""
        prepared = self._prepare(item, position, request, 0)
        issued = records.request(position, request.stage, request.visit, request.sample)
        if issued is not None and (isinstance(prepared, Answer) or prepared.ask != issued.ask):
            raise NotDeterministic(item.custom_id, request.turn)
        return prepared, issued

    def _asks_the_same(self, position: int, item: Item, records: Records) -> bool:
        """True if an item's program asks all that was recorded of it. It is sent that, and nothing is noted."""
        used = 0
        try:
            with self.step(position, item.life, 0):
                program = Program(self._recipe, self._options, item, self._max_requests)
            while program.result is None:
                outcomes: list[Any] = []
                for index, want in enumerate(program.wants):
                    outcome = _judgement(program, position, index, records)
                    used += outcome is not None
                    if outcome is None and isinstance(want, Request):
                        _, issued = self._issued(item, position, want, records)
                        used += issued is not None
                        if issued is not None and issued.answer is not None:
                            answer = answer_of(*issued.answer, want)
                            again = issued.retry < self._options.retries and may_better(answer)
                            outcome = None if again else answer
                    if outcome is not None:
                        outcomes.append(outcome)
                if len(outcomes) < len(program.wants):
                    break
                with self.step(position, item.life, program.turn):
                    program.send(outcomes)
        except NotDeterministic:
            return False
        except RecipeError:
            pass  # the item may have ended so
        return used == records.count(position)

    def _next_life(self, item: Item) -> Item:
        """Return an item in its next life. Raises NotDeterministic after MOST_LIVES."""
        if item.life >= MOST_LIVES:
            raise NotDeterministic(item.custom_id, 1)
        self.restarted += 1
        return replace(item, life=item.life + 1)

    def _ask_again(self, live: _LiveItem, index: int, request: Request, answer: Answer) -> bool:
        """Put a request that failed for now into its buffer again, if it may be. Return True if it is there."""
        if live.retries[index] >= self._options.retries or not may_better(answer):
            return False
        live.retries[index] += 1
        prepared = self._prepare(live.program.item, live.position, request, live.retries[index])
        if isinstance(prepared, Answer):
            return False
        self.buffers[request.stage, request.model].append(prepared)
        return True

    def _call(self, live: _LiveItem, index: int, call: Call, records: Records) -> None:
        recorded = _judgement(live.program, live.position, index, records)
        if recorded is not None:
            self._settle(live, index, recorded)
            return
        outcome = self._inline(call, live.program.item)
        if outcome is None:
            self.calls.append((live.position, live.program.turn, index, call, live.program.item))
            return
        self._note(live, index, outcome)
        self._settle(live, index, outcome)

    def _note_out(self, stage: str, line: int, position: int, index: int, model: str) -> None:
        self.out[stage][line] = (position, index)
        self.unanswered[model] += 1

    def _note(self, live: _LiveItem, index: int, outcome: Outcome, kind: str | None = None) -> None:
        program = live.program
        value = orjson.dumps(asdict(outcome), default=str)
        kind = kind or ("score" if isinstance(outcome, Scored) else "check")
        self.judged.append(Judged(live.position, program.item.life, program.turn, index, kind, value))

    @staticmethod
    def _settle(live: _LiveItem, index: int, outcome: Outcome) -> None:
        live.outcomes[index] = outcome
        live.missing -= 1

    def _end(self, live: _LiveItem) -> None:
        self._drop(live)
        program, result = live.program, live.program.result
        assert result is not None
        if live.history is not None:
            self._check(live)
        try:
            value = orjson.dumps({"text": result.text, **result.values}, option=orjson.OPT_SERIALIZE_NUMPY)
        except TypeError as error:
            self._fail(live.position, program.item, program.turn, live.started_at, RecipeError(f"no JSON: {error}"))
            return
        for name, number in result.counters.items():
            self.counters[name] += number
        error_json = None if result.error is None else orjson.dumps(result.error, default=str)
        self._record(live.position, program.item, result.state, program.turn, value, error_json, live.started_at)

    def _fail(self, position: int, item: Item, turn: int, started_at: float, error: RecipeError) -> None:
        details = orjson.dumps({"code": error.code, "message": error.message})
        self._record(position, item, "failed", turn, b'{"text":null}', details, started_at)

    def _record(
        self, position: int, item: Item, state: str, turns: int, result: bytes, error: bytes | None, started_at: float
    ) -> None:
        number, custom_id = item.number, item.custom_id
        ended = Ended(position, number, custom_id, state, item.life, turns, result, error, started_at, time.time())
        self.ended.append(ended)

    def _drop(self, live: _LiveItem) -> None:
        del self._items[live.position]
        self.bytes -= live.bytes

    def _check(self, live: _LiveItem) -> None:
        """Run the item's program again with what it was sent, and compare. Raises NotDeterministic."""
        item, first = live.program.item, live.program
        again: Program | None = None
        turn = 1
        try:
            with self.step(live.position, item.life, 0):
                again = Program(self._recipe, self._options, item, self._max_requests)
            for turn, (wants, outcomes) in enumerate(live.history or [], start=1):
                if again.wants != wants:
                    raise NotDeterministic(item.custom_id, turn)
                with self.step(live.position, item.life, turn):
                    again.send(outcomes)  # type: ignore[arg-type]  # outcomes of the same turn
        except RecipeError as error:
            raise NotDeterministic(item.custom_id, turn) from error
        result, before = again.result, first.result
        if result is None or before is None or vars(result) != vars(before):
            raise NotDeterministic(item.custom_id, turn + 1)
        self._all_checked = True


def _judgement(program: Program, position: int, index: int, records: Records) -> Outcome | None:
    """Return the recorded outcome of what a program wants. Raises NotDeterministic if it is of another kind."""
    judgement = records.judgement(position, program.turn, index)
    if judgement is None:
        return None
    kind, values = judgement
    want = program.wants[index]
    outcome = next(kinds.get(kind) for wanted, kinds in _OUTCOMES.items() if isinstance(want, wanted))
    if outcome is None:
        raise NotDeterministic(program.item.custom_id, program.turn)
    return outcome(**values)
