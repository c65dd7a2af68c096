"""What an author has written ends within seconds, whatever it does, and harms no other request."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from batchyard.errors import RequestError
from jobs.intake import author_calls
from jobs.kinds import registry
from tasks.context import AppContext
from tests.support.rows import until
from tests.support.webapps import client_of

pytestmark = pytest.mark.long
FILE = """
import os, time
from batchyard.recipes import Ask, Child, CompositeOptions, Flow, Item, Options, Result, composite, recipe

class Odd(Options):
    hangs: str = ""

class Several(CompositeOptions):
    hangs: str = ""

def hang(name):
    def function(options):
        if options.hangs == name:
            with open(f"{__file__}.pid", "w") as file:
                file.write(str(os.getpid()))
        while options.hangs == name:
            pass
        if options.hangs == "raises":
            raise ValueError("hangs: the recipe says no")
        if options.hangs == f"{name} ends":
            time.sleep(0.5)  # so that the pool knows that this process has the call
            os._exit(3)
        probe = [Ask("ask", "a", model="echo")]
        return {"stages": ["ask"], "probe": probe, "expected": [1.0], "children": []}.get(name)
    return function

@recipe("odd", Odd, stages=hang("stages"), check=hang("check"), probe=hang("probe"), expected=hang("expected"))
def odd(item: Item, options: Odd) -> Flow:
    yield [Ask("ask", item.chat(), model="echo")]
    return Result(text="so")

@composite("several", Several)
def several(options: Several):
    return hang("children")(options)
"""


@pytest.fixture(scope="module")
def context(lasting: Callable[[str], AppContext]) -> AppContext:
    return lasting(FILE)


def refused(context: AppContext, recipe: str, hangs: str) -> RequestError:
    with pytest.raises(RequestError) as refusal:
        registry.check(context, recipe, {"hangs": hangs}, "24h")
    return refusal.value


# Those that are exhaustive are called as `children` is.
@pytest.mark.parametrize(
    "name", ["check", "children", *(pytest.param(name, marks=pytest.mark.exhaustive) for name in ("stages", "probe"))]
)
def test_a_function_that_hangs_is_stopped_and_named_with_its_recipe(
    context: AppContext, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    processes = author_calls.pool(context.settings)
    submit = processes.submit

    def limited(*call: Any) -> Any:
        """Give a second to the call that hangs. Those before may wait longer for their processor."""
        monkeypatch.setattr(processes, "_seconds", 1.0 if name in ("check", *call) else 600.0)
        return submit(*call)

    monkeypatch.setattr(processes, "submit", limited)
    recipe = "several" if name == "children" else "odd"
    error = refused(context, recipe, name)
    assert error.code == "recipe_hangs"
    assert error.message.startswith(f"The {name} of recipe '{recipe}' (odd.py, line ")
    assert "failed: ran longer than 1 seconds. It only reads options; its author has to" in error.message


def test_a_function_that_ends_its_process_is_named(context: AppContext) -> None:
    assert "its process ended with exit code 3" in refused(context, "odd", "check ends").message


def test_what_a_function_refuses_is_said_as_that_of_a_built_in_recipe(context: AppContext) -> None:
    error = refused(context, "odd", "raises")
    assert (error.code, error.param, error.status) == ("invalid_value", "options.hangs", 400), error.message
    assert error.message == "Invalid value for 'options.hangs': the recipe says no."
    configuration = registry.check(context, "odd", {}, "24h")
    assert [stage.name for stage in configuration.stages] == ["ask"] and configuration.expected == [1.0]


def test_a_hanging_check_delays_neither_the_same_recipe_nor_a_built_in_one(context: AppContext) -> None:
    client = client_of(context)
    rows = {"prompts": ["a"]}
    registry.check(context, "odd", {}, "24h")  # the processes run
    answers: list[Any] = []
    pid = Path(context.settings.recipes, "odd.py.pid")
    pid.unlink(missing_ok=True)

    def hang() -> None:
        body = {"recipe": "odd", "options": {"hangs": "check"}, "input": rows}
        answers.append(client_of(context).post("/v1/jobs?dry_run=true", json=body))

    thread = threading.Thread(target=hang)
    thread.start()
    until(lambda: pid.exists() and bool(pid.read_text()))
    for recipe, options in (("batch", {"model": "echo"}), ("odd", {})):
        body = {"recipe": recipe, "options": options, "input": rows}
        answer = client.post("/v1/jobs?dry_run=true", json=body)
        assert answer.status_code == 200, answer.text
    assert thread.is_alive(), "the others did not wait for it"
    os.kill(int(pid.read_text()), signal.SIGKILL)
    thread.join(timeout=60)
    assert answers[0].status_code == 400 and answers[0].json["error"]["code"] == "recipe_hangs"
