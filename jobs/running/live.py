"""The items of a job that have begun and not ended: their programs in memory, without a database.

What a program is sent is noted at the same time as what follows from it. So whoever writes both in one transaction can
build the same state again.
"""

import time
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import orjson

from batchyard import json_lines
from batchyard.recipes import Answer, Call, Called, Check, Checked, Item, Reply, Score, Scored, Wait
from batchyard.recipes.program import Chosen, RecipeError, Request
from jobs.intake.requests import PreparedRequest
from jobs.running.live_item import JudgeInline, LiveItem, OpenRequests, PendingCall
from jobs.running.programs import Outcome, Programs
from jobs.running.records import NO_RECORDS, Life, Records, Uncommitted
from jobs.running.turns import Turns, outlook
from recipes.answers import answer_of
from store.formats.job_chunks import CALL, CALLED, LIVE, WAITING

PEERS = 64
"""The texts of completed items that a Peer may get."""
WAITING_BYTES = 4096
"""The memory of an item that waits for a verdict, beside its texts: a small program was measured at half of that."""
_KINDS = {Scored: "score", Checked: "check", Called: CALLED, Reply: "verdict", Chosen: "peer"}


class LiveItems:
    """The live items of one job, with what they wait for by position and the approximate bytes of their texts."""

    def __init__(
        self,
        programs: Programs,
        *,
        inline: JudgeInline = lambda call, item: None,
        reuse: Callable[[Item, PreparedRequest], Answer | None] = lambda item, request: None,
        turns: Turns | None = None,
    ) -> None:
        """`reuse` returns the answer that another job has to a request, None if it has none."""
        self.programs = programs
        self._inline = inline
        self._reuse = reuse
        self._items: dict[int, LiveItem] = {}
        self.requests = OpenRequests()
        self._calls: list[PendingCall] = []
        self._judging = 0
        self.waiting: dict[int, Wait] = {}
        self._accepted: deque[tuple[int, str]] = deque(maxlen=PEERS)
        self.uncommitted = Uncommitted()
        self.turns = turns or Turns()
        self.bytes = 0

    def __len__(self) -> int:
        return len(self._items)

    def item(self, position: int) -> Item:
        return self._items[position].item

    def begin(self, position: int, item: Item, size: int, records: Records = NO_RECORDS) -> None:
        """Begin an item, or resume it: its program is sent what was recorded.

        If the recipe's file has changed, and the program does not ask what was recorded, the item begins its next life.

        Raises NotDeterministic: the program asks something else than it did before, and the file is the same.
        """
        started_at = time.time()
        life = Life(item.life, self.programs.created_sha256)
        if records is not NO_RECORDS:
            life = records.life(position)
            item = replace(item, life=life.number, hint=life.hint)
        waited, restarts = records.waits(position) is not None, life.restarts
        if life.recipe_sha256 != self.programs.recipe_sha256 and (position, item.life) not in self.programs.hung:
            if records is not NO_RECORDS and not self.programs.asks_the_same(position, item, records):
                item, records, restarts = self.programs.next_life(item, restarts), NO_RECORDS, restarts + 1
                self.uncommitted.restarted += 1
            self.uncommitted.begin_life(position, item, self.programs.recipe_sha256, restarts, started_at)
        self._start(position, item, size, started_at, records)
        if waited and position not in self.waiting:
            self.uncommitted.move(position, item, LIVE, 0, {}, started_at)

    def put_back(self, position: int, item: Item, size: int, state: str) -> None:
        """Begin the next life, that of `item`, of an ended item. Raises as `begin`."""
        started_at = time.time()
        self.uncommitted.reopened[state] += 1
        self.uncommitted.move(position, item, LIVE, 0, {}, started_at)
        self.uncommitted.begin_life(position, item, self.programs.recipe_sha256, 0, started_at)
        self._start(position, item, size, started_at, NO_RECORDS)

    def _start(self, position: int, item: Item, size: int, started_at: float, records: Records) -> None:
        if (position, item.life) in self.programs.hung:
            turn, message = self.programs.hung[position, item.life]
            self.uncommitted.fail(position, item, turn, RecipeError(message, "recipe_hangs"), started_at)
            return
        try:
            program = self.programs.start(position, item)
        except RecipeError as error:
            self.uncommitted.fail(position, item, 0, error, started_at)
            return
        live = LiveItem(position, program, started_at, size, [] if self.programs.is_sampled(item) else None)
        self._items[position] = live
        self.bytes += live.bytes
        self._continue(live, records)

    def answer(self, stage: str, line: int, output_line: str, seconds: float | None) -> None:
        """Take the answer of a request, unless it was taken before. Raises NotDeterministic as `begin`."""
        place = self.requests.take(stage, line)
        if place is None:
            return
        position, index = place
        live = self._items[position]
        request = live.program.wants[index]
        assert isinstance(request, Request)
        self.requests.note_answer(self.programs.model_of(request))
        answer = answer_of(output_line, seconds, request)
        if self._ask_again(live, index, request, answer):
            return
        self._grow(live, len(answer.text))
        live.set_outcome(index, answer)
        self._continue(live)

    def judge(self, position: int, turn: int, index: int, outcome: Scored | Checked | Called) -> None:
        """Take the outcome of a call, of a judge or a tool. Raises NotDeterministic as `begin` does."""
        self._judging -= 1
        live = self._items.get(position)
        if live is None or live.program.turn != turn or live.outcomes[index] is not None:
            return
        self._record_outcome(live, index, outcome)
        self._continue(live)

    def reply(self, position: int, life: int, turn: int, reply: Reply) -> None:
        """Take a verdict. One for a turn that waits for none is ignored. Raises NotDeterministic as `begin` does."""
        live = self._items.get(position)
        if live is None or position not in self.waiting or (live.item.life, live.program.turn) != (life, turn):
            return
        del self.waiting[position]
        self._grow(live, -WAITING_BYTES)
        self._record_outcome(live, 0, reply)
        self.uncommitted.move(position, live.item, LIVE, turn, {}, live.started_at)
        self._continue(live)

    def take_calls(self) -> list[PendingCall]:
        """Return the judgements and the calls of tools to make, these when the records say that they begin.

        Each outcome is to come, by `judge`.
        """
        calls, self._calls = self._calls, []
        self._judging += len(calls)
        return calls

    def clear_committed(self) -> None:
        """Forget what the records have taken up."""
        self.uncommitted = Uncommitted()

    def outlook(self, unbegun: int) -> dict[str, Any]:
        """Return what the job's record keeps for its forecast, with `unbegun` items that have not begun."""
        live = Counter(item.program.turn for item in self._items.values())
        return outlook(self.turns, sorted(live.items()), self.requests.pending(), unbegun)

    def waits(self) -> bool:
        """True if an item waits for an answer, a judgement or a tool."""
        return any(self.requests.out.values()) or self._judging > 0 or bool(self._calls)

    def _continue(self, live: LiveItem, records: Records = NO_RECORDS) -> None:
        """Send each complete turn, and go on until the item waits or ends."""
        program = live.program
        while True:
            if program.result is not None:
                self._end(live)
                return
            if not live.outcomes:
                self._enter(live, records)
            if live.missing:
                return
            self.turns[program.turn].complete += 1
            try:
                self.programs.send(live.position, program, live.take_turn())
            except RecipeError as error:
                self._drop(live)
                self.uncommitted.fail(live.position, live.item, program.turn, error, live.started_at)
                return

    def _enter(self, live: LiveItem, records: Records) -> None:
        wants = live.program.wants
        if records is NO_RECORDS:  # others were counted before
            self.turns[live.program.turn].begun += 1
            models = (self.programs.model_of(want) for want in wants if isinstance(want, Request))
            self.turns[live.program.turn].requests.update(models)
        live.enter_turn()
        for index, want in enumerate(wants):
            recorded = self.programs.recorded_outcome(live.program, live.position, index, records)
            if recorded is not None:
                live.set_outcome(index, recorded)
            elif isinstance(want, Request):
                self._ask(live, index, want, records)
            elif isinstance(want, Score | Check):
                outcome = self._inline(want, live.item)
                if outcome is None:
                    self._calls.append(PendingCall(live.position, live.program.turn, index, want, live.item))
                else:
                    self._record_outcome(live, index, outcome)
            elif isinstance(want, Call):
                self._call_tool(live, index, want, records)
            elif isinstance(want, Wait):
                self.waiting[live.position] = want
                self._grow(live, WAITING_BYTES)
                turn = live.program.turn
                if records.waits(live.position) != turn:
                    self.uncommitted.move(live.position, live.item, WAITING, turn, want.data, live.started_at)
            else:
                texts = [text for position, text in self._accepted if position != live.position]
                peer = live.item.random("peer", live.program.turn).choice(texts) if texts else None
                self._record_outcome(live, 0, Chosen(peer))

    def _ask(self, live: LiveItem, index: int, request: Request, records: Records) -> None:
        item = live.item
        issued = self.programs.issued(live.position, item, request, records)
        if issued is not None:
            live.retries[index] = issued.retry
            if issued.answer is None:
                model = self.programs.model_of(request)
                self.requests.note_out(request.stage, issued.line, live.position, index, model)
                return
            answer = answer_of(*issued.answer, request)
            if not self._ask_again(live, index, request, answer):
                live.set_outcome(index, answer)
            return
        prepared = self.programs.prepare(item, live.position, request, 0)
        if isinstance(prepared, Answer):
            self._record_outcome(live, index, prepared, "refused")
        elif (reused := self._reuse(item, prepared)) is not None:
            self.uncommitted.reused += 1
            self._record_outcome(live, index, reused, "reused")
        else:
            self.requests.add(prepared)

    def _ask_again(self, live: LiveItem, index: int, request: Request, answer: Answer) -> bool:
        """Buffer a request that failed for now once more. Return False if it may not be."""
        if not self.programs.asks_again(answer, live.retries[index]):
            return False
        live.retries[index] += 1
        prepared = self.programs.prepare(live.item, live.position, request, live.retries[index])
        if isinstance(prepared, Answer):
            return False
        self.requests.add(prepared)
        return True

    def _call_tool(self, live: LiveItem, index: int, call: Call, records: Records) -> None:
        program, tools = live.program, self.programs.tools
        key = tools.key(live.item, program.turn, index, call)
        has_begun = self.programs.has_begun(program, live.position, index, records)
        outcome = tools.interruption(call, key) if has_begun else tools.refusal(call)
        if outcome is not None:
            self._record_outcome(live, index, outcome)
            return
        if not has_begun:
            value = json_lines.dumps({"key": key, "tool": call.tool, "arguments": call.arguments})
            self.uncommitted.note(live.position, live.item, program.turn, index, CALL, value)
        place = (live.position, program.turn, index)
        self._calls.append(PendingCall(*place, call, live.item, key, tools.is_retriable(call)))

    def _record_outcome(self, live: LiveItem, index: int, outcome: Outcome, kind: str | None = None) -> None:
        program, want = live.program, live.program.wants[index]
        values: Any = outcome
        if isinstance(want, Call):
            key = self.programs.tools.key(live.item, program.turn, index, want)
            values = {"key": key, **vars(outcome)}
            self.uncommitted.called.append(key)
        value = json_lines.dumps(values, default=str)
        self.uncommitted.note(live.position, live.item, program.turn, index, kind or _KINDS[type(outcome)], value)
        live.set_outcome(index, outcome)

    def _grow(self, live: LiveItem, size: int) -> None:
        live.bytes += size
        self.bytes += size

    def _end(self, live: LiveItem) -> None:
        self._drop(live)
        program, result = live.program, live.program.result
        assert result is not None
        if live.history is not None:
            self.programs.check(live.position, program, live.history)
        try:
            value = json_lines.dumps({"text": result.text, **result.values}, option=orjson.OPT_SERIALIZE_NUMPY)
        except TypeError as error:
            no_json = RecipeError(f"no JSON: {error}")
            self.uncommitted.fail(live.position, live.item, program.turn, no_json, live.started_at)
            return
        for name, number in result.counters.items():
            self.uncommitted.counters[name] += number
        if result.state == "completed" and result.text is not None:
            self._accepted.append((live.position, result.text))
        error_json = None if result.error is None else json_lines.dumps(result.error, default=str)
        self.uncommitted.end(live.position, live.item, result.state, program.turn, value, error_json, live.started_at)

    def _drop(self, live: LiveItem) -> None:
        del self._items[live.position]
        self.bytes -= live.bytes
