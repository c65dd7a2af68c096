"""A recipe's generator, run for one item without a stack."""

from __future__ import annotations

import re
from typing import Any

import pytest
from pydantic import Field

from batchyard.recipes import (
    Answer,
    Ask,
    Flow,
    InvalidItem,
    Item,
    Options,
    Peer,
    Reply,
    Result,
    Score,
    Scored,
    Wait,
    messages_of,
    recipe,
    scored,
)
from batchyard.recipes.program import Program, RecipeError, Request, play

SEED = 1471203476735256


class Debate(Options):
    model: str = "mini"
    n: int = Field(3, ge=2, le=9)


@recipe("debate", Debate, stages=("argue", "judge"))
def debate(item: Item, options: Debate) -> Flow:
    """Let several answers compete.

    More is said here.
    """
    answers = yield [Ask("argue", item.chat(), model=options.model, temperature=0.8) for _ in range(options.n)]
    texts = [answer.text for answer in answers if answer.ok]
    if not texts:
        return item.failed("no_answer")
    (verdict,) = yield [Ask("judge", item.chat("Which?"), model="judge", choice=["0", "1"], temperature=0)]
    return Result(text=texts[int(verdict.text)], votes=len(texts))


def flow_of(yielded: Any, **terms: Any) -> Any:
    @recipe("other", Options, stages=("first", "second"), **terms)
    def other(item: Item, options: Options) -> Flow:
        for turn in yielded:  # noqa: UP028  `yield from` would send the outcomes to the list
            yield turn
        return Result()

    return other


def ask(stage: str) -> Ask:
    return Ask(stage, "hello", model="mini")


def item(**values: Any) -> Item:
    return Item(**{"number": 0, "custom_id": "a", "columns": {"prompt": "2 + 2?"}, **values})


def test_play_sends_the_answers_and_returns_the_result() -> None:
    texts = iter(["four", "five", "six", "1"])
    result = play(debate, item(), Debate(), lambda request: next(texts))
    assert (result.state, result.text, result.values) == ("completed", "five", {"votes": 3})


def test_an_item_fails_with_a_code_of_the_recipes_own() -> None:
    result = play(debate, item(), Debate(), lambda request: Answer(ok=False))
    assert (result.state, result.error) == ("failed", {"code": "no_answer", "message": None})


def test_the_summary_is_the_first_line_of_the_docstring() -> None:
    assert debate.summary == "Let several answers compete."


def test_requests_have_unique_names_and_seeds_of_their_own() -> None:
    requests = Program(debate, Debate(), item(custom_id="q/7")).wants
    assert [request.custom_id(item(custom_id="q/7")) for request in requests if isinstance(request, Request)] == [
        "q/7/argue.1.0",
        "q/7/argue.1.1",
        "q/7/argue.1.2",
    ]
    seeds = [request.seed for request in requests if isinstance(request, Request)]
    assert len({*seeds}) == 3
    assert seeds[1] == item(custom_id="q/7").seed("argue", 1, 1)


def test_a_request_at_temperature_0_has_no_seed() -> None:
    program = Program(debate, Debate(), item())
    program.send([Answer(ok=True, text="x")] * 3)
    (request,) = program.wants
    assert isinstance(request, Request)
    assert "seed" not in request.body
    assert request.structure == {"choice": ["0", "1"]}


def test_no_request_has_a_seed_if_the_options_say_none() -> None:
    requests = Program(debate, Debate(seeds="none"), item()).wants
    assert all(isinstance(request, Request) and "seed" not in request.body for request in requests)


def test_seeds_have_53_bits_and_follow_from_job_item_and_life() -> None:
    # The value was computed once from the definition: BLAKE2b of '[7,"ä","sample",0]', 8 bytes, shifted by 11.
    assert item(custom_id="ä", job_seed=7).seed("sample", 0) == SEED
    others = [item(custom_id="ä", job_seed=8), item(custom_id="b", job_seed=7), item(custom_id="ä", job_seed=7, life=2)]
    seeds = {other.seed("sample", 0) for other in others}
    assert len(seeds) == 3 and SEED not in seeds
    assert all(0 <= seed < 2**53 for seed in seeds)


@pytest.mark.parametrize(
    ("yielded", "reason"),
    [
        ([[]], "turn 1: the recipe yielded list, not a list with something in it"),
        ([[ask("first")], "no"], "turn 2: the recipe yielded str, not a list"),
        ([[ask("frist")]], "no stage is named 'frist'; did you mean 'first'?"),
        ([[ask("second")], [ask("first")]], "in stage 'first' after 'second'; declare the recipe with loops=True"),
        ([[ask("first"), Score("exact", "", "", "")]], "a list of Ask, Score; one turn has one kind"),
    ],
)
def test_a_recipe_that_yields_what_it_may_not_fails_its_item(yielded: list[Any], reason: str) -> None:
    with pytest.raises(RecipeError, match=re.escape(reason)):
        play(flow_of(yielded), item(), Options(), lambda request: "x")


def test_a_recipe_with_loops_may_ask_in_an_earlier_stage() -> None:
    visits = []

    def answer(request: Request) -> str:
        visits.append((request.stage, request.visit))
        return "x"

    play(flow_of([[ask("second")], [ask("first")], [ask("second")]], loops=True), item(), Options(), answer)
    assert visits == [("second", 1), ("first", 1), ("second", 2)]


def test_a_recipe_that_raises_is_named_with_its_line() -> None:
    with pytest.raises(RecipeError, match=r"ValueError: invalid literal .*\(test_program.py, line \d+\)"):
        play(debate, item(), Debate(), lambda request: "x")


def test_an_item_may_ask_only_so_many_times() -> None:
    with pytest.raises(RecipeError, match="the item asked 4 times, the most is 3") as error:
        Program(debate, Debate(n=4), item(), max_requests=3)
    assert error.value.code == "too_many_requests"


def test_messages_come_from_messages_then_prompt_then_the_template() -> None:
    chat = [{"role": "user", "content": "hi"}]
    assert messages_of({"messages": chat, "prompt": "no"}) == chat
    assert messages_of({"prompt": "hi"}) == messages_of({"prompt": chat}) == chat
    assert messages_of({"word": "hi"}, "{word}") == chat


@pytest.mark.parametrize(
    ("columns", "template", "code"),
    [
        ({"text": "x"}, None, "missing_prompt"),
        ({"text": "x"}, "{txt}", "missing_prompt"),
        ({"text": None}, "{text}", "empty_value"),
        ({"text": b"x"}, "{text}", "invalid_value"),
        ({"text": "x"}, "{text", "invalid_template"),
        ({"messages": []}, None, "invalid_messages"),
        ({"prompt": [{"content": "x"}]}, None, "invalid_messages"),
        ({"prompt": 5}, None, "invalid_messages"),
    ],
)
def test_a_row_without_messages_is_refused(columns: dict[str, Any], template: str | None, code: str) -> None:
    with pytest.raises(InvalidItem) as error:
        messages_of(columns, template)
    assert error.value.code == code


def test_a_chat_holds_system_message_hint_and_texts() -> None:
    messages = item(system="Be brief.", hint="Look again.").chat("Which?")
    assert [message["content"] for message in messages] == ["Be brief.", "2 + 2?", "Look again.", "Which?"]


def test_a_reward_returns_a_number_or_a_dict_with_a_score() -> None:
    assert scored(1) == Scored(1.0, values={"score": 1})
    assert scored({"score": 0.5, "acc": True, "pred": 7}).pred == "7"
    with pytest.raises(TypeError, match="a number as 'score'"):
        scored({"acc": 1})


def test_a_wait_and_a_peer_are_turns_of_their_own_whose_outcomes_come_alone() -> None:
    @recipe("gated", Options, stages=("draft",))
    def gated(item: Item, options: Options) -> Flow:
        (draft,) = yield [ask("draft")]
        peer = yield Peer()
        reply = yield Wait("verdict", gate="house", text=draft.text)
        return Result(text=draft.text, peer=peer, passed=reply.passed, message=reply.message)

    def reply(wait: Wait) -> Reply:
        return Reply(wait.data["text"] == "hi", message=wait.data["gate"])

    item = Item(0, "a", {"prompt": "x"})
    result = play(gated, item, Options(), lambda request: "hi", reply=reply, peer=lambda: "other")
    assert (result.text, result.values) == ("hi", {"peer": "other", "passed": True, "message": "house"})
    assert play(gated, item, Options(), lambda request: "no", reply=reply).values["peer"] is None
    with pytest.raises(ValueError, match="`reply` was not passed"):
        play(gated, item, Options(), lambda request: "hi")


@pytest.mark.parametrize(
    ("yielded", "says"),
    [
        ([Wait("verdict", gate="a")], "yield a Wait or a Peer alone"),
        ([Peer(), ask("first")], "yield a Wait or a Peer alone"),
        (Wait("sleep", gate="a"), "nobody replies to a Wait of kind 'sleep'"),
        (Wait("verdict"), "names its gate"),
        (Wait("verdict", gate=""), "names its gate"),
        (Wait("verdict", gate="a", item=object()), "no JSON"),
        (Wait("verdict", gate="a", text="\ud800"), "no JSON"),
        (Wait("verdict", gate="a", score=float("nan")), "no JSON"),
    ],
)
def test_a_wait_that_nobody_can_reply_to_is_an_error_of_the_recipe(yielded: Any, says: str) -> None:
    with pytest.raises(RecipeError, match=re.escape(says)):
        Program(flow_of([yielded]), Options(), Item(0, "a", {}))
