"""What a recipe asks first is said within seconds, whatever its author has written."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest

from batchyard.errors import RequestError
from jobs.catalogue import catalogue_of
from jobs.intake import author_calls
from jobs.kinds.item_checks import FirstTurns, first_turns
from store.records import Job
from tasks.context import AppContext

ROWS: list[dict[str, Any]] = [{"prompt": "a"}, {"prompt": "b", "custom_id": ""}, {"prompt": "c"}]
FILE = """
import os
import re
import time
from batchyard.recipes import Ask, Flow, Item, Options, Result, recipe

@recipe("odd", Options, stages=("ask",))
def odd(item: Item, options: Options) -> Flow:
    what = options.system
    if what == "searches":
        re.match("(a+)+$", "a" * 60 + "b")
    if what == "ends":
        time.sleep(0.5)  # so that the pool knows that this process has the call
        os._exit(3)
    yield [Ask("ask", item.chat(), model="echo")]
    return Result(text="so")
"""


@pytest.fixture(scope="module")
def context(lasting: Callable[[str], AppContext]) -> AppContext:
    return lasting(FILE)


def first(context: AppContext, recipe: str, **options: Any) -> FirstTurns:
    models = {"echo": context.models["echo"].model_dump(mode="json")}
    job = Job(options=options, seed=7, models=models, post_process=[])
    flow: Any = catalogue_of(context).recipe(recipe)
    return first_turns(context, flow, job, ROWS)


@pytest.mark.parametrize(("recipe", "options"), [("odd", {}), ("batch", {"model": "echo"})])
@pytest.mark.long
def test_the_requests_of_each_first_turn_and_the_errors_of_rows_are_said(
    context: AppContext, recipe: str, options: dict[str, Any]
) -> None:
    turns, errors = first(context, recipe, **options)
    assert [[request.model for request in turn] for turn in turns] == [["echo"], [], []]
    assert [(error["line"], error["code"]) for error in errors] == [(2, "invalid_custom_id")]


@pytest.mark.long
def test_a_recipe_that_does_not_come_to_its_first_question_is_stopped_and_named(
    context: AppContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    processes = author_calls.pool(context.settings)
    refusals: list[RequestError] = []

    def look() -> None:
        for what, seconds in (("searches", 1.0), ("ends", 600.0)):
            monkeypatch.setattr(processes, "_seconds", seconds)
            try:
                first(context, "odd", system=what)
            except RequestError as error:
                refusals.append(error)

    thread = threading.Thread(target=look)  # as a web server's, which nothing can interrupt
    thread.start()
    thread.join(timeout=360)
    reasons = ("ran longer than 1 seconds", "its process ended with exit code 3")
    for error, reason in zip(refusals, reasons, strict=True):
        assert error.code == "recipe_hangs"
        assert error.message.startswith(f"The first turn of recipe 'odd' (odd.py, line 7) failed: {reason}.")
        assert "its author has to" in error.message
    turns, _ = first(context, "odd")
    assert turns[0]
