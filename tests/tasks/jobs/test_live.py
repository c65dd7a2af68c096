"""The live items of a job: what they ask, what they are sent, and how they are built again after a crash."""

from __future__ import annotations

import functools
import random
import zlib
from collections.abc import Mapping
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from batchyard.models import ModelSpec
from batchyard.recipes import Ask, Check, Checked, Flow, Item, Options, Recipe, Result, Score, Scored, recipe
from tasks.jobs.live import NO_RECORDS, Issued, LiveItems, NotDeterministic
from tasks.jobs.requests import Pending, Preparer

MODELS = {"echo": ModelSpec(name="echo", engine="echo")}


@recipe("three", Options, stages=("draft", "review", "final"), loops=True)
def three(item: Item, options: Options) -> Flow:
    """Draft three times, score, review while the draws say so, and end."""
    drafts = yield [Ask("draft", f"{item.custom_id} draft {n}", model="echo", temperature=0.5) for n in range(3)]
    scores = yield [Score("length", "words", draft.text, 5) for draft in drafts if draft.ok]
    rounds = item.random("rounds").randint(0, 2)
    for number in range(rounds):
        (review,) = yield [Ask("review", f"{item.custom_id} review {number}", model="echo")]
        (checked,) = yield [Check("polite", review.text)]
        if not checked.passed:
            return item.stuck("impolite")
    (final,) = yield [Ask("final", f"{item.custom_id} final", model="echo")]
    return Result(text=final.text, counters={"rounds": rounds}, scores=[score.score for score in scores])


def items_of(flow: Recipe[Any] = three, **options: Any) -> LiveItems:
    return LiveItems(flow, Options(**options), Preparer(MODELS, 100).prepare)


def an_item(position: int) -> Item:
    return Item(position, f"item-{position}", {"prompt": "hello"})


def output_line(text: str | None, status: int = 200) -> str:
    body: dict[str, Any] = {"choices": [{"message": {"content": text}, "finish_reason": "stop"}]}
    if text is None:
        body = {"error": {"code": "overloaded", "message": "try again"}}
    return orjson.dumps({"response": {"status_code": status, "body": body}, "error": None}).decode()


class Core:
    """Keeps what is committed, as the store does: requests by line, answers, judgements and ended items."""

    def __init__(self) -> None:
        self.requests: dict[str, list[Pending]] = {}
        self.answers: dict[tuple[str, int], str] = {}
        self.judgements: dict[tuple[int, int, int], tuple[str, Mapping[str, Any]]] = {}
        self.ended: dict[int, tuple[str, bytes]] = {}
        self.admitted = 0

    def commit(self, items: LiveItems, admitted: int) -> None:
        self.admitted = admitted
        for (stage, _), buffer in items.buffers.items():
            lines = self.requests.setdefault(stage, [])
            items.issue(list(buffer), len(lines))
            lines.extend(buffer)
            buffer.clear()
        for judged in items.judged:
            key = (judged.position, judged.turn, judged.index)
            assert key not in self.judgements
            self.judgements[key] = (judged.kind, orjson.loads(judged.value))
        for ended in items.ended:
            assert ended.position not in self.ended, "an item ended twice"
            self.ended[ended.position] = (ended.state, ended.result)
        items.taken()

    def request(self, position: int, stage: str, visit: int, sample: int) -> Issued | None:
        place = (position, visit, sample)
        issued = [
            Issued(request.retry, line, request.ask, self._answer(stage, line))
            for line, request in enumerate(self.requests.get(stage, []))
            if (request.position, request.visit, request.sample) == place
        ]
        return max(issued, key=lambda attempt: attempt.retry, default=None)

    def _answer(self, stage: str, line: int) -> tuple[str, float | None] | None:
        text = self.answers.get((stage, line))
        return None if text is None else (text, None)

    def judgement(self, position: int, turn: int, index: int) -> tuple[str, Mapping[str, Any]] | None:
        return self.judgements.get((position, turn, index))

    def rebuild(self) -> LiveItems:
        items = items_of()
        for position in range(self.admitted):
            if position not in self.ended:
                items.begin(position, an_item(position), 0, self)
        return items


def run(draws: random.Random, *, crashes: float) -> Core:
    """Run 12 items with answers in any order; before a commit everything in memory may be lost."""
    core, items, admitted = Core(), items_of(), 0
    for _ in range(10_000):
        if draws.random() < crashes:
            items, admitted = core.rebuild(), core.admitted
        while admitted < 12 and len(items) < 4:
            items.begin(admitted, an_item(admitted), 0)
            admitted += 1
        for position, turn, index, call, _ in items.calls:
            items.judging += 1
            items.judge(position, turn, index, judged(call))
        items.calls = []
        if draws.random() < 0.5:
            core.commit(items, admitted)
        waiting = [(stage, line) for stage, lines in items.out.items() for line in lines]
        for stage, line in draws.sample(waiting, min(len(waiting), 3)):
            request = core.requests[stage][line]
            fails = request.retry < 1 and zlib.crc32(request.custom_id.encode()) % 5 == 0
            text = orjson.loads(request.body)["messages"][-1]["content"]
            core.answers.setdefault((stage, line), output_line(None if fails else text, 503 if fails else 200))
            items.answer(stage, line, core.answers[stage, line], None)
        if admitted == 12 and not len(items):
            core.commit(items, admitted)
            return core
    raise AssertionError("the items did not end")


def judged(call: Score | Check) -> Scored | Checked:
    return Scored(float(len(call.solution_str))) if isinstance(call, Score) else Checked("1" not in call.text)


@functools.cache
def without_crashes() -> Core:
    return run(random.Random(0), crashes=0.0)


@given(st.integers(0, 2**32), st.floats(0.02, 0.4))
def test_crashes_change_no_result_and_ask_nothing_twice(seed: int, crashes: float) -> None:
    undisturbed = without_crashes()
    core = run(random.Random(seed), crashes=crashes)
    assert core.ended == undisturbed.ended
    for stage, requests in core.requests.items():
        names = [request.custom_id for request in requests]
        assert len(names) == len({*names}), "a request was issued twice"
        assert sorted(names) == sorted(request.custom_id for request in undisturbed.requests[stage])


def test_a_request_that_failed_for_now_is_asked_again_with_the_same_body() -> None:
    core, items = Core(), items_of(retries=1)
    items.begin(0, an_item(0), 0)
    core.commit(items, 1)
    items.answer("draft", 0, output_line(None, 503), None)
    (again,) = items.buffers["draft", "echo"]
    assert again.custom_id == "item-0/draft.1.0~1"
    assert (again.body, again.ask) == (core.requests["draft"][0].body, core.requests["draft"][0].ask)


@pytest.mark.parametrize("status", [400, 404, 422])
def test_a_request_that_is_refused_is_not_asked_again(status: int) -> None:
    core, items = Core(), items_of()
    items.begin(0, an_item(0), 0)
    core.commit(items, 1)
    items.answer("draft", 0, output_line(None, status), None)
    assert items.pending() == 0


def test_a_body_that_the_engine_refuses_is_never_issued_and_the_recipe_hears_why() -> None:
    @recipe("wrong", Options, stages=("only",))
    def wrong(item: Item, options: Options) -> Flow:
        (answer,) = yield [Ask("only", item.chat(), model="echo", temperature="hot")]
        return item.failed("refused", answer.error["message"])

    items = items_of(wrong)
    items.begin(0, an_item(0), 0)
    (ended,) = items.ended
    assert items.pending() == 0
    assert ended.state == "failed"
    assert "temperature" in orjson.loads(ended.error or b"")["message"]
    assert [judged.kind for judged in items.judged] == ["refused"]


def test_a_recipe_that_depends_on_chance_is_named_with_item_and_turn() -> None:
    draws = random.Random(1)

    @recipe("dice", Options, stages=("only",))
    def dice(item: Item, options: Options) -> Flow:
        yield [Ask("only", f"{draws.random()}", model="echo")]
        return Result()

    items = items_of(dice)
    items.begin(0, an_item(0), 0)
    Core().commit(items, 1)
    with pytest.raises(NotDeterministic, match="item 'item-0', turn 1"):
        items.answer("only", 0, output_line("x"), None)


def test_a_resumed_recipe_that_asks_something_else_is_named() -> None:
    words = iter(["first", "second"])

    @recipe("words", Options, stages=("only",))
    def changing(item: Item, options: Options) -> Flow:
        yield [Ask("only", next(words), model="echo")]
        return Result()

    core, items = Core(), items_of(changing)
    items.begin(0, an_item(0), 0)
    core.commit(items, 1)
    with pytest.raises(NotDeterministic, match="turn 1"):
        items_of(changing).begin(0, an_item(0), 0, core)


def test_a_result_that_is_no_json_fails_its_item() -> None:
    @recipe("odd", Options, stages=("only",))
    def odd(item: Item, options: Options) -> Flow:
        yield [Ask("only", "x", model="echo")]
        return Result(value=object)

    core, items = Core(), items_of(odd)
    items.begin(0, an_item(0), 0)
    core.commit(items, 1)
    items.answer("only", 0, output_line("x"), None)
    assert items.ended[0].state == "failed"
    assert orjson.loads(items.ended[0].error or b"")["code"] == "recipe_error"


def test_an_answer_that_came_before_is_ignored() -> None:
    core, items = Core(), items_of()
    items.begin(0, an_item(0), 0, NO_RECORDS)
    core.commit(items, 1)
    items.answer("draft", 0, output_line("x"), None)
    items.answer("draft", 0, output_line("y"), None)
    assert items.unanswered["echo"] == 2
