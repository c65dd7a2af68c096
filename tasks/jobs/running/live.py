"""The items of a job that have begun and not ended: their programs in memory, without a database.

Each item's program says what it wants, and waits here until that has come. What a program is sent is noted at the same
time as what follows from it. So whoever writes both in one transaction can build the same state again.
"""

from __future__ import annotations

import json
import time
import zlib
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any, NamedTuple, Protocol, TypeAlias

import orjson

from batchyard.recipes import Answer, Check, Checked, FlowRecipe, Item, Options, Peer, Reply, Score, Scored, Wait
from batchyard.recipes.program import Chosen, Program, RecipeError, Request, Wants
from store.formats.job_chunks import LIVE, RECIPE, WAITING
from tasks.jobs.intake.requests import Pending, answer_of, may_better
from tasks.jobs.running.turns import Turns, outlook

Call: TypeAlias = Score | Check
Outcome: TypeAlias = Answer | Scored | Checked | Reply | Chosen
Step: TypeAlias = Callable[[int, int, int], AbstractContextManager[object]]
CHECKED_ITEMS = 100
"""One item in so many is run again when it ends, to see whether its recipe depends on what it is sent alone."""
MOST_LIVES = 10
"""A recipe takes another way whenever its file has changed. After so many lives it is not the file."""
PEERS = 64
"""The texts of completed items that a Peer may get."""
WAITING_BYTES = 4096
"""The memory of an item that waits for a verdict, beside its texts: a small program was measured at half of that."""


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
    """An outcome that no batch keeps, for the records: of all that is no request, or of one that no engine will run."""

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


class Records(Protocol):
    """What was recorded of items before their programs were lost, each in its present life."""

    def life(self, position: int) -> Life:
        """Return the present life of an item."""

    def waits(self, position: int) -> int | None:
        """Return the turn in which an item waits for a verdict, None if it waits for none or has it."""

    def count(self, position: int) -> int:
        """Return how many requests and judgements of an item there are."""

    def request(self, position: int, stage: str, visit: int, sample: int) -> Issued | None:
        """Return the last attempt at a request."""

    def judgement(self, position: int, turn: int, index: int) -> tuple[str, Mapping[str, Any]] | None:
        """Return kind and value of an outcome."""


class NoRecords:
    """The records of an item that begins."""

    def life(self, position: int) -> Life:
        return Life(1, "")

    def waits(self, position: int) -> int | None:
        return None

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
    Wait: {"verdict": Reply},
    Peer: {"peer": Chosen},
}
"""What the kinds of judgements are, by what a program may want."""
_KINDS = {Scored: "score", Checked: "check", Reply: "verdict", Chosen: "peer"}


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
        waiting: what items wait for that nobody has replied to, by position.
        ended, moved, judged: what the records have to take up, see `taken`: the ends of items, their other changes of
            state, which come before these, and outcomes.
        reopened: items that were put back since the last `taken`, by the state in which they had ended.
        counters: what results have counted since the last `taken`.
        reused, restarted: requests that another job had answered, and items that began a new life, since the last
            `taken`.
        step: opens the `with` block of each step, of (position, life, turn).
        turns: how far items have gone, for the outlook.
        bytes: approximate size of the texts in memory.
    """

    def __init__(
        self,
        recipe: FlowRecipe[Any],
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
        self.waiting: dict[int, Wait] = {}
        self._accepted: deque[tuple[int, str]] = deque(maxlen=PEERS)
        self.ended: list[Change] = []
        self.moved: list[Change] = []
        self.reopened: Counter[str] = Counter()
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

    def item(self, position: int) -> Item:
        """Return a live item."""
        return self._items[position].program.item

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
        life = Life(item.life, self._created_sha256)
        if records is not NO_RECORDS:
            life = records.life(position)
            item = replace(item, life=life.number, hint=life.hint)
        waited, restarts = records.waits(position) is not None, life.restarts
        if life.recipe_sha256 != self._recipe_sha256 and (position, item.life) not in self._hung:
            if records is not NO_RECORDS and not self._asks_the_same(position, item, records):
                item, records, restarts = self._next_life(item, restarts), NO_RECORDS, restarts + 1
            self._note_life(position, item, restarts, started_at)
        self._start(position, item, size, started_at, records)
        if waited and position not in self.waiting:
            self._move(position, item, LIVE, 0, {}, started_at)

    def put_back(self, position: int, item: Item, size: int, state: str) -> None:
        """Begin the next life, that of `item`, of an item that has ended in this state. Raises as `begin`."""
        started_at = time.time()
        self.reopened[state] += 1
        self._move(position, item, LIVE, 0, {}, started_at)
        self._note_life(position, item, 0, started_at)
        self._start(position, item, size, started_at, NO_RECORDS)

    def _start(self, position: int, item: Item, size: int, started_at: float, records: Records) -> None:
        if (position, item.life) in self._hung:
            turn, message = self._hung[position, item.life]
            self._fail(position, item, turn, started_at, RecipeError(message, "recipe_hangs"))
            return
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
        self._grow(live, len(answer.text))
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

    def reply(self, position: int, life: int, turn: int, reply: Reply) -> None:
        """Take a verdict. One for a turn that waits for none is ignored. Raises NotDeterministic as `begin` does."""
        live = self._items.get(position)
        if live is None or position not in self.waiting or (live.program.item.life, live.program.turn) != (life, turn):
            return
        del self.waiting[position]
        self._grow(live, -WAITING_BYTES)
        self._note(live, 0, reply)
        self._settle(live, 0, reply)
        self._move(position, live.program.item, LIVE, turn, {}, live.started_at)
        self._continue(live)

    def taken(self) -> None:
        """Forget what the records have taken up."""
        self.ended.clear()
        self.moved.clear()
        self.judged.clear()
        self.reopened.clear()
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
            elif isinstance(want, Wait):
                self._wait(live, want, records)
            else:
                self._look_at_peer(live, records)

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

    def _next_life(self, item: Item, restarts: int) -> Item:
        """Return an item in its next life. Raises NotDeterministic after MOST_LIVES."""
        if restarts >= MOST_LIVES - 1:
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

    def _wait(self, live: _LiveItem, wait: Wait, records: Records) -> None:
        recorded = _judgement(live.program, live.position, 0, records)
        if recorded is not None:
            self._settle(live, 0, recorded)
            return
        self.waiting[live.position] = wait
        self._grow(live, WAITING_BYTES)
        program = live.program
        if records.waits(live.position) != program.turn:
            self._move(live.position, program.item, WAITING, program.turn, wait.data, live.started_at)

    def _look_at_peer(self, live: _LiveItem, records: Records) -> None:
        program = live.program
        outcome = _judgement(program, live.position, 0, records)
        if outcome is None:
            texts = [text for position, text in self._accepted if position != live.position]
            outcome = Chosen(program.item.random("peer", program.turn).choice(texts) if texts else None)
            self._note(live, 0, outcome)
        self._settle(live, 0, outcome)

    def _note_out(self, stage: str, line: int, position: int, index: int, model: str) -> None:
        self.out[stage][line] = (position, index)
        self.unanswered[model] += 1

    def _note(self, live: _LiveItem, index: int, outcome: Outcome, kind: str | None = None) -> None:
        program = live.program
        value = orjson.dumps(outcome, default=str)
        kind = kind or _KINDS[type(outcome)]
        self.judged.append(Judged(live.position, program.item.life, program.turn, index, kind, value))

    def _note_life(self, position: int, item: Item, restarts: int, at: float) -> None:
        values = {"recipe_sha256": self._recipe_sha256, "hint": item.hint, "restarts": restarts, "at": at}
        self.judged.append(Judged(position, item.life, 0, 0, RECIPE, orjson.dumps(values)))

    def _grow(self, live: _LiveItem, size: int) -> None:
        live.bytes += size
        self.bytes += size

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
        if result.state == "completed" and result.text is not None:
            self._accepted.append((live.position, result.text))
        error_json = None if result.error is None else orjson.dumps(result.error, default=str)
        self._record(live.position, program.item, result.state, program.turn, value, error_json, live.started_at)

    def _fail(self, position: int, item: Item, turn: int, started_at: float, error: RecipeError) -> None:
        details = orjson.dumps({"code": error.code, "message": error.message})
        self._record(position, item, "failed", turn, b'{"text":null}', details, started_at)

    def _record(
        self, position: int, item: Item, state: str, turns: int, result: bytes, error: bytes | None, started_at: float
    ) -> None:
        number, custom_id = item.number, item.custom_id
        ended = Change(position, number, custom_id, state, item.life, turns, result, error, started_at, time.time())
        self.ended.append(ended)

    def _move(
        self, position: int, item: Item, state: str, turns: int, values: Mapping[str, Any], started_at: float
    ) -> None:
        result = json.dumps(values, ensure_ascii=False).encode()
        number, custom_id = item.number, item.custom_id
        self.moved.append(Change(position, number, custom_id, state, item.life, turns, result, None, started_at, None))

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
