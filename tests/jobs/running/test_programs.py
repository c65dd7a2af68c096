"""Programs: which are run again, and what is said of those that take another way."""

from __future__ import annotations

import itertools
from typing import Any

import pytest

from batchyard.recipes import Answer, Ask, Flow, Item, Options, Result, recipe
from batchyard.recipes.program import Program
from jobs.running.programs import MOST_LIVES, NotDeterministic, Programs

NOW_BAD = {"code": "overloaded", "message": "try again"}


@recipe("once", Options, stages=("only",))
def once(item: Item, options: Options) -> Flow:
    (answer,) = yield [Ask("only", item.custom_id, model="echo")]
    return Result(text=answer.text)


def never(*_: Any) -> Any:
    raise AssertionError("nothing is prepared")


def ended(programs: Programs, item: Item) -> tuple[Program, list[Any]]:
    """Return a program that was sent an answer, and what it was sent."""
    program = programs.start(0, item)
    wants, outcomes = program.wants, [Answer(ok=True, text="a")]
    programs.send(0, program, outcomes)
    return program, [(wants, outcomes)]


def test_a_program_that_takes_the_same_way_again_is_checked_once_and_then_now_and_then() -> None:
    programs, item = Programs(once, Options(), never), Item(0, "item-0", {})
    assert programs.is_sampled(item)
    programs.check(0, *ended(programs, item))
    sampled = sum(programs.is_sampled(Item(number, f"item-{number}", {})) for number in range(10_000))
    assert 50 < sampled < 200


def test_a_program_that_takes_another_way_is_refused_with_its_turn() -> None:
    words = itertools.count()

    @recipe("changing", Options, stages=("only",))
    def changing(item: Item, options: Options) -> Flow:
        yield [Ask("only", f"{next(words)}", model="echo")]
        return Result()

    programs = Programs(changing, Options(), never)
    with pytest.raises(NotDeterministic, match=r"^item 'item-0', turn 1: the recipe did something else"):
        programs.check(0, *ended(programs, Item(0, "item-0", {})))


@pytest.mark.parametrize(
    ("answer", "retries", "again"),
    [
        (Answer(ok=False, error=NOW_BAD, status_code=503), 0, True),
        (Answer(ok=False, error=NOW_BAD, status_code=503), 2, False),
        (Answer(ok=False, error={"code": "engine_died"}, status_code=500), 0, False),
        (Answer(ok=False, error={"code": "invalid_request"}, status_code=400), 0, False),
        (Answer(ok=True, text="a"), 0, False),
    ],
)
def test_a_request_that_failed_for_now_is_asked_again_as_often_as_the_options_say(
    answer: Answer, retries: int, again: bool
) -> None:
    assert Programs(once, Options(retries=2), never).asks_again(answer, retries) is again


def test_an_item_has_no_more_lives_than_changes_of_a_file_explain() -> None:
    programs, item = Programs(once, Options(), never), Item(0, "item-0", {}, life=3)
    assert programs.next_life(item, MOST_LIVES - 2).life == 4
    with pytest.raises(NotDeterministic):
        programs.next_life(item, MOST_LIVES - 1)


def test_each_step_is_watched_with_its_place() -> None:
    steps: list[tuple[int, int, int]] = []

    def watch(position: int, life: int, turn: int) -> Any:
        steps.append((position, life, turn))
        return pytest.MonkeyPatch.context()

    programs = Programs(once, Options(), never, watch=watch)
    program = programs.start(7, Item(7, "item-7", {}, life=2))
    programs.send(7, program, [Answer(ok=True)])
    assert steps == [(7, 2, 0), (7, 2, 1)]
