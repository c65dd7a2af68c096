"""Calls of tools: recorded before and after, made again or interrupted after a crash, and refused before they begin."""

from __future__ import annotations

import functools
import random
from collections import Counter
from collections.abc import Callable
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from batchyard.recipes import Ask, Call, Called, Flow, Item, Options, Recipe, Result, Tool, recipe, tool
from jobs.intake.requests import Preparer
from jobs.running.calling import Tools
from jobs.running.live import LiveItems
from jobs.running.programs import NotDeterministic, Programs
from tests.jobs.running.test_live import MODELS, Core, an_item, answer


@tool("look", "retriable")
def look(query: str) -> str:
    return query


@tool("book", "once")
def book(seat: int) -> str:
    return str(seat)


TOOLS: dict[str, Tool] = {each.name: each for each in (look, book)}


@recipe("caller", Options, stages=("plan", "end"), loops=True)
def caller(item: Item, options: Options) -> Flow:
    """Ask, look two things up side by side, book one, and say what came of it."""
    (plan,) = yield [Ask("plan", f"{item.custom_id} plan", model="echo")]
    found = yield [Call("look", query=f"{plan.text} {number}") for number in range(2)]
    booked = yield Call("book", seat=item.number)
    (end,) = yield [Ask("end", " ".join(called.text for called in found), model="echo")]
    return Result(end.text, found=[called.value for called in found], booked=booked.value, error=booked.error)


def live_items(flow: Recipe[Any], tools: Tools) -> LiveItems:
    prepare = Preparer(MODELS).prepare
    return LiveItems(Programs(flow, Options(), prepare, recipe_sha256="a", created_sha256="a", tools=tools))


class Deployment:
    """Makes calls, and counts how often each was made. What runs when it crashes is lost."""

    def __init__(self) -> None:
        self.made: Counter[tuple[str, str]] = Counter()
        self.under_way: dict[str, Callable[[], None]] = {}

    def items(self) -> LiveItems:
        tools = Tools(TOOLS, "job-1", self.under_way.__contains__)
        return live_items(caller, tools)

    def begin(self, items: LiveItems) -> None:
        for call in items.take_calls():
            self.made[call.key, call.call.tool] += 1
            outcome = Called(True, f"{call.call.tool} {orjson.dumps(call.call.arguments).decode()}")
            self.under_way[call.key] = functools.partial(items.judge, call.position, call.turn, call.index, outcome)

    def end(self, draws: random.Random) -> None:
        for key in draws.sample(sorted(self.under_way), min(len(self.under_way), 2)):
            self.under_way.pop(key)()


def run(draws: random.Random, crashes: float) -> tuple[Core, Deployment, int]:
    """Run 8 items. Return the records, the calls made, and how many were made and not recorded as ended at a crash."""
    core, deployment, lost = Core(), Deployment(), 0
    items = deployment.items()
    for position in range(8):
        items.begin(position, an_item(position), 0)
    core.commit(items, 8)
    for _ in range(10_000):
        if draws.random() < crashes:
            begun = [value["key"] for kind, value in core.judgements.values() if kind == "call"]
            lost += sum(key in {made for made, _ in deployment.made} for key in begun)
            deployment.under_way.clear()
            items = deployment.items()
            for position in range(8):
                if position not in core.ended:
                    items.begin(position, an_item(position), 0, core)
        out = [(stage, line) for stage, lines in items.requests.out.items() for line in lines]
        answer(core, items, draws.sample(out, min(len(out), 2)))
        deployment.end(draws)
        if draws.random() < 0.7:
            core.commit(items, 8)
            deployment.begin(items)
        if len(core.ended) == 8:
            return core, deployment, lost
    raise AssertionError("the items did not end")


@given(st.integers(0, 2**32), st.floats(0.02, 0.3))
def test_crashes_repeat_what_may_be_repeated_at_most_and_interrupt_what_is_to_be_made_once(
    seed: int, crashes: float
) -> None:
    undisturbed, calm, _ = run(random.Random(0), 0.0)
    core, deployment, lost = run(random.Random(seed), crashes)
    assert deployment.made.keys() <= calm.made.keys(), "a call was made up"
    assert all(number == 1 for (_, name), number in deployment.made.items() if name == "book"), "booked twice"
    assert sum(number - 1 for number in deployment.made.values()) <= lost, "more was repeated than was cut off"
    for position, (state, text) in core.ended.items():
        result, expected = orjson.loads(text), orjson.loads(undisturbed.ended[position][1])
        if result["error"] is not None:
            assert (state, result["error"]["code"], result["booked"]) == ("completed", "interrupted", None)
            result |= {"error": None, "booked": expected["booked"]}
        assert result == expected


def test_a_call_begins_only_when_its_record_is_committed_and_goes_on_if_only_memory_was_lost() -> None:
    core, deployment = Core(), Deployment()
    items = deployment.items()
    items.begin(0, an_item(0), 0)
    core.commit(items, 1)
    answer(core, items, [("plan", 0)])
    kinds = [noted.kind for noted in items.uncommitted.outcomes]
    assert kinds == ["call", "call"]
    core.commit(items, 1)
    deployment.begin(items)
    assert len(deployment.made) == 2
    resumed = deployment.items()
    resumed.begin(0, an_item(0), 0, core)
    assert resumed.uncommitted.outcomes == []
    assert [call.key for call in resumed.take_calls()] == list(deployment.under_way)


@pytest.mark.parametrize(
    ("call", "code", "message"),
    [
        (Call("lok", query="x"), "tool_not_found", "No tool is named 'lok'. Did you mean 'look'?"),
        (Call("look", query=3), "invalid_arguments", "3 is not of type 'string' at $.query"),
        (Call("look", question="x"), "invalid_arguments", "'question' was unexpected"),
    ],
)
def test_a_call_that_cannot_be_made_is_never_made_and_the_recipe_hears_why(call: Call, code: str, message: str) -> None:
    @recipe("wrong", Options, stages=("only",))
    def wrong(item: Item, options: Options) -> Flow:
        called = yield call
        return item.failed(called.error["code"], called.text)

    items = live_items(wrong, Tools(TOOLS))
    items.begin(0, an_item(0), 0)
    (ended,) = items.uncommitted.ended
    error = orjson.loads(ended.error or b"")
    assert error["code"] == code and message in error["message"]
    assert items.take_calls() == []
    assert [noted.kind for noted in items.uncommitted.outcomes] == ["called"]


def test_a_recipe_that_calls_something_else_when_it_is_run_again_is_named() -> None:
    seats = iter([1, 2])

    @recipe("dice", Options, stages=("only",))
    def dice(item: Item, options: Options) -> Flow:
        yield Call("book", seat=next(seats))
        return Result()

    def items() -> LiveItems:
        return live_items(dice, Tools(TOOLS))

    core, first = Core(), items()
    first.begin(0, an_item(0), 0)
    core.commit(first, 1)
    with pytest.raises(NotDeterministic, match="item 'item-0', turn 1"):
        items().begin(0, an_item(0), 0, core)


def test_calls_of_other_items_lives_turns_and_arguments_have_other_keys() -> None:
    tools = Tools(TOOLS, "job-1")
    places = [(0, 1, 1, 0), (1, 1, 1, 0), (0, 2, 1, 0), (0, 1, 2, 0), (0, 1, 1, 1)]
    keys = {
        tools.key(an_item(position, life), turn, index, Call("book", seat=seat))
        for position, life, turn, index in places
        for seat in range(2)
    }
    assert len(keys) == 10
    assert tools.key(an_item(0), 1, 0, Call("look", a=1, b=2)) == tools.key(an_item(0), 1, 0, Call("look", b=2, a=1))
