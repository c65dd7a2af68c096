"""The live items of a job: what they ask, what they are sent, and how they are built again after a crash."""

from __future__ import annotations

import functools
import itertools
import random
import zlib
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from batchyard.models import Adapter, ModelSpec
from batchyard.recipes import (
    Ask,
    Check,
    Checked,
    Flow,
    Item,
    Options,
    Peer,
    Recipe,
    Reply,
    Result,
    Score,
    Scored,
    Wait,
    recipe,
)
from jobs.intake.requests import PreparedRequest, Preparer
from jobs.running.live import PEERS, LiveItems
from jobs.running.programs import MOST_LIVES, NotDeterministic, Programs
from jobs.running.records import NO_RECORDS, Issued, Life
from store.formats.job_chunks import CALL, CALLED, RECIPE, UNENDED, WAITING

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


@recipe("three", Options, stages=("draft", "review", "vote", "final"), loops=True)
def changed(item: Item, options: Options) -> Flow:
    """The same after a change: who has reviews is asked for a vote instead, others see no difference."""
    drafts = yield [Ask("draft", f"{item.custom_id} draft {n}", model="echo", temperature=0.5) for n in range(3)]
    yield [Score("length", "words", draft.text, 5) for draft in drafts if draft.ok]
    votes = []
    if item.random("rounds").randint(0, 2):
        votes = yield [Ask("vote", f"{item.custom_id} vote {n}", model="echo") for n in range(2)]
    (final,) = yield [Ask("final", f"{item.custom_id} final", model="echo")]
    return Result(text=final.text, votes=[vote.text for vote in votes])


@recipe("gated", Options, stages=("draft", "review"), loops=True)
def gated(item: Item, options: Options) -> Flow:
    """Draft, have it reviewed beside another item's text, and wait for a verdict; three drafts at most."""
    message = item.hint
    for number in range(3):
        (draft,) = yield [Ask("draft", f"{item.custom_id} {number} {message}", model="echo")]
        peer = yield Peer()
        yield [Ask("review", text, model="echo") for text in (draft.text, peer) if text]
        reply = yield Wait("verdict", gate="house", text=draft.text)
        if reply.passed:
            return Result(text=draft.text)
        message = reply.message
    return item.stuck("refused")


FILES = {"a": three, "b": changed}
"""The recipe by what stands for the SHA-256 of its file."""


def items_of(flow: Recipe[Any] = three, recipe_sha256: str = "a", **options: Any) -> LiveItems:
    prepare = Preparer(MODELS).prepare
    return LiveItems(Programs(flow, Options(**options), prepare, recipe_sha256=recipe_sha256, created_sha256="a"))


def asking(words: Iterator[str]) -> Recipe[Any]:
    """Return a recipe that asks the next word each time it runs, whatever it was sent."""

    @recipe("words", Options, stages=("only",))
    def changing(item: Item, options: Options) -> Flow:
        yield [Ask("only", next(words), model="echo")]
        return Result()

    return changing


def an_item(position: int, life: int = 1) -> Item:
    return Item(position, f"item-{position}", {"prompt": "hello"}, life=life)


def output_line(text: str | None, status: int = 200) -> str:
    body: dict[str, Any] = {"choices": [{"message": {"content": text}, "finish_reason": "stop"}]}
    if text is None:
        body = {"error": {"code": "overloaded", "message": "try again"}}
    return orjson.dumps({"response": {"status_code": status, "body": body}, "error": None}).decode()


class Core:
    """Keeps what is committed, as the store does: requests by line, answers, judgements and ended items."""

    def __init__(self) -> None:
        self.requests: dict[str, list[PreparedRequest]] = {}
        self.answers: dict[tuple[str, int], str] = {}
        self.judgements: dict[tuple[int, int, int, int], tuple[str, Mapping[str, Any]]] = {}
        self.lives: dict[int, Life] = {}
        self.states: dict[int, tuple[str, int, int]] = {}
        self.replies: list[tuple[str, int, int, int]] = []
        self.restarted = 0
        self.ended: dict[int, tuple[str, bytes]] = {}
        self.admitted = 0

    def commit(self, items: LiveItems, admitted: int) -> None:
        self.admitted = admitted
        for (stage, _), buffer in items.requests.buffers.items():
            lines = self.requests.setdefault(stage, [])
            items.requests.issue(list(buffer), len(lines))
            lines.extend(buffer)
            buffer.clear()
        for judged in items.uncommitted.outcomes:
            key, value = (judged.position, judged.life, judged.turn, judged.index), orjson.loads(judged.value)
            if judged.kind == RECIPE:
                life = Life(judged.life, value["recipe_sha256"], value["hint"], value["restarts"])
                self.lives[judged.position] = life
                continue
            assert key not in self.judgements or (self.judgements[key][0], judged.kind) == (CALL, CALLED)
            self.judgements[key] = (judged.kind, value)
        self.restarted += items.uncommitted.restarted
        for change in [*items.uncommitted.moved, *items.uncommitted.ended]:
            state, life, _ = self.states.get(change.position, ("live", 0, 0))
            assert state in UNENDED or change.life > life, "an item ended twice"
            self.states[change.position] = (change.state, change.life, change.turns)
            self.ended.pop(change.position, None)
        for ended in items.uncommitted.ended:
            self.ended[ended.position] = (ended.state, ended.result)
            assert ended.life == self.life(ended.position).number
        items.clear_committed()

    def life(self, position: int) -> Life:
        return self.lives.get(position, Life(1, "a"))

    def waits(self, position: int) -> int | None:
        state, _, turns = self.states.get(position, ("live", 1, 0))
        return turns if state == WAITING else None

    def count(self, position: int) -> int:
        life = self.life(position).number
        requests = {
            (stage, request.visit, request.sample)
            for stage, requests in self.requests.items()
            for request in requests
            if (request.position, request.life) == (position, life)
        }
        judgements = [key for key in self.judgements if key[:2] == (position, life)]
        return len(requests) + len(judgements)

    def request(self, position: int, stage: str, visit: int, sample: int) -> Issued | None:
        place = (position, self.life(position).number, visit, sample)
        issued = [
            Issued(request.retry, line, request.ask, self._answer(stage, line))
            for line, request in enumerate(self.requests.get(stage, []))
            if (request.position, request.life, request.visit, request.sample) == place
        ]
        return max(issued, key=lambda attempt: attempt.retry, default=None)

    def _answer(self, stage: str, line: int) -> tuple[str, float | None] | None:
        text = self.answers.get((stage, line))
        return None if text is None else (text, None)

    def judgement(self, position: int, turn: int, index: int) -> tuple[str, Mapping[str, Any]] | None:
        return self.judgements.get((position, self.life(position).number, turn, index))

    def rebuild(self, recipe_sha256: str = "a", flow: Recipe[Any] | None = None) -> LiveItems:
        items = items_of(flow or FILES[recipe_sha256], recipe_sha256)
        for position in range(self.admitted):
            if position not in self.ended:
                items.begin(position, an_item(position), 0, self)
        for kind, position, life, turn in self.replies:
            if kind == "verdict" or self.states[position][1] == life:
                reply(items, kind, position, life, turn)
        return items


def run(draws: random.Random, *, crashes: float, files: Sequence[str] = ("a",)) -> Core:
    """Run 12 items with answers in any order; before a commit everything in memory may be lost.

    After a crash the recipe is one of `files`, which changes a few times.
    """
    core, items, admitted = Core(), items_of(), 0
    file, changes = "a", MOST_LIVES - 2
    for _ in range(10_000):
        if draws.random() < crashes:
            if changes and draws.random() < 0.5:
                file, changes = draws.choice(files), changes - 1
            items, admitted = core.rebuild(file), core.admitted
        while admitted < 12 and len(items) < 4:
            items.begin(admitted, an_item(admitted), 0)
            admitted += 1
        judge_calls(items)
        if draws.random() < 0.5:
            core.commit(items, admitted)
        waiting = [(stage, line) for stage, lines in items.requests.out.items() for line in lines]
        answer(core, items, draws.sample(waiting, min(len(waiting), 3)))
        if admitted == 12 and not len(items):
            core.commit(items, admitted)
            return core
    raise AssertionError("the items did not end")


def reply(items: LiveItems, kind: str, position: int, life: int, turn: int) -> None:
    """A verdict that depends on its place alone, or the item put back. Items get worse in their first life."""
    if kind == "requeue":
        items.put_back(position, replace(an_item(position, life + 1), hint=f"hint {life}"), 0, "stuck")
        return
    chance = zlib.crc32(f"{position} {life} {turn}".encode()) % (3 if life == 1 else 2)
    items.reply(position, life, turn, Reply(passed=chance == 1, message=f"said {position} {life} {turn}"))


def run_gated(draws: random.Random, *, crashes: float) -> Core:
    """Run 12 items of `gated`, with replies at any time; before a commit everything in memory may be lost."""
    core, items, admitted = Core(), items_of(gated), 0
    for _ in range(10_000):
        if draws.random() < crashes:
            items, admitted = core.rebuild(flow=gated), core.admitted
        while admitted < 12 and len(items) - len(items.waiting) < 4:
            items.begin(admitted, an_item(admitted), 0)
            admitted += 1
        if draws.random() < 0.5:
            core.commit(items, admitted)
        out = [(stage, line) for stage, lines in items.requests.out.items() for line in lines]
        answer(core, items, draws.sample(out, min(len(out), 3)))
        kinds = {WAITING: "verdict", "stuck": "requeue"}
        places = {
            (kinds[state], position, *place) for position, (state, *place) in core.states.items() if state in kinds
        }
        for place in sorted(places - {*core.replies}):
            if draws.random() < 0.2:
                core.replies.append(place)
                if draws.random() < 0.8:  # else it is read after a crash only
                    reply(items, *place)
        if admitted == 12 and not len(items) and len(core.ended) == 12:
            core.commit(items, admitted)
            if {state for state, _ in core.ended.values()} == {"completed"}:
                return core
        if draws.random() < 0.02:
            items, admitted = core.rebuild(flow=gated), core.admitted
    raise AssertionError("the items did not end")


def judge_calls(items: LiveItems) -> None:
    for call in items.take_calls():
        items.judge(call.position, call.turn, call.index, judged(call.call))


def answer(core: Core, items: LiveItems, places: list[tuple[str, int]]) -> None:
    """Answer requests by stage and line. One in five fails the first time."""
    for stage, line in places:
        request = core.requests[stage][line]
        fails = request.retry < 1 and zlib.crc32(request.custom_id.encode()) % 5 == 0
        text = orjson.loads(request.body)["messages"][-1]["content"]
        core.answers.setdefault((stage, line), output_line(None if fails else text, 503 if fails else 200))
        items.answer(stage, line, core.answers[stage, line], None)


def finish_turns(core: Core, items: LiveItems, admitted: int) -> None:
    """Go on until the items want what is in a new stage, wait for people, or have ended."""
    stages = {stage for stage, requests in core.requests.items() if requests}
    while len(items) > len(items.waiting) and stages == {name for name, asked in core.requests.items() if asked}:
        core.commit(items, admitted)
        answer(core, items, [(stage, line) for stage, lines in items.requests.out.items() for line in list(lines)])
        judge_calls(items)
        core.commit(items, admitted)


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


@functools.cache
def alone(recipe_sha256: str, position: int, life: int) -> tuple[frozenset[tuple[str, bytes]], bytes]:
    """What an item asks and gets in one life, without a crash."""
    core, items = Core(), items_of(FILES[recipe_sha256], recipe_sha256)
    core.lives[position] = Life(life, recipe_sha256)
    items.begin(position, an_item(position, life), 0)
    while len(items):
        finish_turns(core, items, 1)
    core.commit(items, position + 1)
    asked = {(request.custom_id, request.ask) for requests in core.requests.values() for request in requests}
    return frozenset(asked), core.ended[position][1]


@given(st.integers(0, 2**32), st.floats(0.02, 0.3))
def test_a_recipe_that_changes_gives_items_another_life_and_mixes_none(seed: int, crashes: float) -> None:
    core = run(random.Random(seed), crashes=crashes, files=("a", "b"))
    asked: dict[tuple[int, int], set[tuple[str, bytes]]] = defaultdict(set)
    for requests in core.requests.values():
        for request in requests:
            assert (request.custom_id, request.ask) not in asked[request.position, request.life], "asked twice"
            asked[request.position, request.life].add((request.custom_id, request.ask))
    assert len(core.ended) == 12
    for position, (_, result) in core.ended.items():
        last = core.life(position).number
        for life in range(1, last):
            assert any(asked[position, life] <= alone(file, position, life)[0] for file in FILES)
        assert (asked[position, last], result) in [alone(file, position, last) for file in FILES]
    assert core.restarted == sum(life.restarts for life in core.lives.values())


@functools.cache
def gated_without_crashes() -> Core:
    return run_gated(random.Random(0), crashes=0.0)


@given(st.integers(0, 2**32), st.floats(0.02, 0.4))
@pytest.mark.long
def test_crashes_while_items_wait_for_people_change_no_result_and_ask_nothing_twice(seed: int, crashes: float) -> None:
    undisturbed, core = gated_without_crashes(), run_gated(random.Random(seed), crashes=crashes)
    assert core.ended == undisturbed.ended
    assert max(life.number for life in core.lives.values()) > 1  # some were put back
    drafts = sorted((request.custom_id, request.ask) for request in core.requests["draft"])
    assert drafts == sorted((request.custom_id, request.ask) for request in undisturbed.requests["draft"])
    for requests in core.requests.values():
        names = [request.custom_id for request in requests]
        assert len(names) == len({*names}), "a request was issued twice"
    verdicts = [key for key, (kind, _) in core.judgements.items() if kind == "verdict"]
    assert sorted(verdicts) == sorted((*place, 0) for kind, *place in core.replies if kind == "verdict")


def test_a_peer_is_one_of_the_last_texts_of_completed_other_items() -> None:
    @recipe("curious", Options, stages=("only",))
    def curious(item: Item, options: Options) -> Flow:
        peer = yield Peer()
        if item.number == 1:
            return item.stuck("no_text", peer=peer)
        return Result(text=f"text {item.number}", peer=peer)

    items = items_of(curious)
    for position in range(PEERS + 3):
        items.begin(position, an_item(position), 0)
    peers = [orjson.loads(ended.result)["peer"] for ended in items.uncommitted.ended]
    assert peers[:3] == [None, "text 0", "text 0"]
    assert {*peers[3:]} <= {f"text {position}" for position in range(PEERS + 2) if position != 1}
    assert len({*peers}) > PEERS // 4
    first, last = [next(iter(items._accepted))[0], items._accepted[-1][0]]
    assert (first, last, len(items._accepted)) == (3, PEERS + 2, PEERS)
    assert [judged.kind for judged in items.uncommitted.outcomes] == ["peer"] * (PEERS + 3)


def test_requests_to_an_adapter_are_those_of_its_base_and_the_recipe_knows_them_by_its_name() -> None:
    @recipe("both", Options, stages=("only",))
    def both(item: Item, options: Options) -> Flow:
        answers = yield [Ask("only", name, model=name) for name in ("echo", "french")]
        return Result(models=[answer.model for answer in answers])

    models = {"echo": ModelSpec(name="echo", engine="echo", adapters={"french": Adapter()})}
    programs = Programs(both, Options(), Preparer(models).prepare, bases={"french": "echo"})
    items = LiveItems(programs)
    items.begin(0, an_item(0), 1)
    assert items.requests.pending() == {"echo": 2}
    items.requests.issue(list(items.requests.buffers.pop(("only", "echo"))), 1)
    for line in (1, 2):
        items.answer("only", line, output_line("a"), None)
    assert (items.requests.unanswered, items.requests.answered) == ({"echo": 0}, {"echo": 2})
    assert items.turns[1].requests == {"echo": 2}
    (ended,) = items.uncommitted.ended
    assert orjson.loads(ended.result)["models"] == ["echo", "french"]


def test_a_verdict_for_another_turn_or_life_is_ignored() -> None:
    core, items = Core(), items_of(gated)
    items.begin(0, an_item(0), 0)
    finish_turns(core, items, 1)
    finish_turns(core, items, 1)
    assert core.states[0] == (WAITING, 1, 4)
    for place in ((1, 1, 4), (0, 2, 4), (0, 1, 3)):
        items.reply(*place, Reply(passed=True))
    assert (list(items.waiting), items.uncommitted.outcomes) == ([0], [])
    items.reply(0, 1, 4, Reply(passed=True))
    items.reply(0, 1, 4, Reply(passed=False))
    core.commit(items, 1)
    assert core.states[0] == ("completed", 1, 4)


def test_an_item_whose_changed_recipe_waits_no_more_is_live_again() -> None:
    core, items = Core(), items_of(gated)
    items.begin(0, an_item(0), 0)
    finish_turns(core, items, 1)
    finish_turns(core, items, 1)
    core.commit(items, 1)
    assert core.waits(0) == 4

    @recipe("gated", Options, stages=("draft", "review", "final"), loops=True)
    def without(item: Item, options: Options) -> Flow:
        (draft,) = yield [Ask("draft", f"{item.custom_id} 0 None", model="echo")]
        yield Peer()
        yield [Ask("review", draft.text, model="echo")]
        (final,) = yield [Ask("final", "now", model="echo")]
        return Result(text=final.text)

    resumed = items_of(without, "b")
    resumed.begin(0, an_item(0), 0, core)
    core.commit(resumed, 1)
    assert (core.states[0][0], resumed.uncommitted.restarted, resumed.waiting) == ("live", 0, {})
    assert len(core.requests["final"]) == 1


def test_an_item_goes_on_in_its_life_if_the_change_makes_no_difference_to_it() -> None:
    core, items = Core(), items_of()
    for position in range(12):
        items.begin(position, an_item(position), 0)
    core.commit(items, 12)
    assert core.rebuild("b").uncommitted.restarted == 0


def test_an_item_whose_recorded_requests_the_changed_recipe_does_not_ask_begins_again_without_them() -> None:
    core, items = Core(), items_of()
    position = next(number for number in range(12) if an_item(number).random("rounds").randint(0, 2))
    items.begin(position, an_item(position), 0)
    finish_turns(core, items, 1)
    core.commit(items, 0)
    assert [request.stage for request in core.requests["review"]] == ["review"]
    resumed = items_of(changed, "b")
    resumed.begin(position, an_item(position), 0, core)
    assert resumed.uncommitted.restarted == 1 and not any(resumed.requests.out.values())
    drafts = resumed.requests.buffers["draft", "echo"]
    assert [request.custom_id for request in drafts] == [f"item-{position}#2/draft.1.{n}" for n in range(3)]
    assert {request.ask for request in drafts}.isdisjoint(request.ask for request in core.requests["draft"])


def test_a_changed_recipe_that_takes_another_way_each_time_ends_its_job() -> None:
    changing = asking(map(str, itertools.count()))
    core, items = Core(), items_of(changing)
    items.begin(0, an_item(0), 0)
    core.commit(items, 1)
    resumed = items_of(changing, "b")
    resumed.begin(0, an_item(0), 0, core)
    core.commit(resumed, 1)
    assert core.life(0)[:2] == (2, "b")
    with pytest.raises(NotDeterministic, match="turn 1"):
        items_of(changing, "b").begin(0, an_item(0), 0, core)
    for life in range(3, MOST_LIVES + 1):
        resumed = items_of(changing, f"file {life}")
        resumed.begin(0, an_item(0), 0, core)
        core.commit(resumed, 1)
        assert core.life(0)[0] == life
    with pytest.raises(NotDeterministic):
        items_of(changing, "one more").begin(0, an_item(0), 0, core)


def test_an_item_that_hangs_fails_without_another_step() -> None:
    begun = []

    @recipe("slow", Options, stages=("only",))
    def slow(item: Item, options: Options) -> Flow:
        begun.append(item.custom_id)
        yield [Ask("only", "x", model="echo")]
        return Result()

    items = LiveItems(Programs(slow, Options(), Preparer(MODELS).prepare, hung={(1, 1): (3, "took too long")}))
    for position in range(3):
        items.begin(position, an_item(position), 0)
    assert begun == ["item-0", "item-2"]
    (ended,) = items.uncommitted.ended
    assert (ended.custom_id, ended.state, ended.life, ended.turns) == ("item-1", "failed", 1, 3)
    assert orjson.loads(ended.error or b"") == {"code": "recipe_hangs", "message": "took too long"}


def test_every_step_of_a_recipe_is_watched() -> None:
    steps: list[tuple[int, int, int]] = []

    @contextmanager
    def step(position: int, life: int, turn: int) -> Iterator[None]:
        steps.append((position, life, turn))
        yield

    core, items = Core(), items_of()
    items.programs.watch = step
    items.begin(0, an_item(0), 0)
    while len(items):
        finish_turns(core, items, 1)
    turns = max(turn for _, _, turn in steps)
    once = [(0, 1, turn) for turn in range(turns + 1)]
    assert turns > 1 and steps == once + once  # the first item that ends is run again
    steps.clear()
    resumed = items_of(three, "b")
    resumed.programs.watch = step
    resumed.begin(0, an_item(0), 0, core)
    assert steps == [*once, *once, *once]  # whether its recipe has changed, its replay, and the check again


def test_a_request_that_failed_for_now_is_asked_again_with_the_same_body() -> None:
    core, items = Core(), items_of(retries=1)
    items.begin(0, an_item(0), 0)
    core.commit(items, 1)
    items.answer("draft", 0, output_line(None, 503), None)
    (again,) = items.requests.buffers["draft", "echo"]
    assert again.custom_id == "item-0/draft.1.0~1"
    assert (again.body, again.ask) == (core.requests["draft"][0].body, core.requests["draft"][0].ask)


@pytest.mark.parametrize("status", [400, 404, 422])
def test_a_request_that_is_refused_is_not_asked_again(status: int) -> None:
    core, items = Core(), items_of()
    items.begin(0, an_item(0), 0)
    core.commit(items, 1)
    items.answer("draft", 0, output_line(None, status), None)
    assert items.requests.pending().total() == 0


def test_a_body_that_the_engine_refuses_is_never_issued_and_the_recipe_hears_why() -> None:
    @recipe("wrong", Options, stages=("only",))
    def wrong(item: Item, options: Options) -> Flow:
        (answer,) = yield [Ask("only", item.chat(), model="echo", temperature="hot")]
        return item.failed("refused", answer.error["message"])

    items = items_of(wrong)
    items.begin(0, an_item(0), 0)
    (ended,) = items.uncommitted.ended
    assert items.requests.pending().total() == 0
    assert ended.state == "failed"
    assert "temperature" in orjson.loads(ended.error or b"")["message"]
    assert [judged.kind for judged in items.uncommitted.outcomes] == ["refused"]


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
    changing = asking(iter(["first", "second"]))
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
    assert items.uncommitted.ended[0].state == "failed"
    assert orjson.loads(items.uncommitted.ended[0].error or b"")["code"] == "recipe_error"


def test_an_answer_that_came_before_is_ignored() -> None:
    core, items = Core(), items_of()
    items.begin(0, an_item(0), 0, NO_RECORDS)
    core.commit(items, 1)
    items.answer("draft", 0, output_line("x"), None)
    items.answer("draft", 0, output_line("y"), None)
    assert items.requests.unanswered["echo"] == 2
