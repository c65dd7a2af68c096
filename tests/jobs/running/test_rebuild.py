"""A job is built from its records as it was: its items, their hints, and what nobody has answered."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from batchyard.errors import UnavailableError
from jobs.kinds.flow import FLOW
from jobs.running import rebuild
from jobs.running.memory import LiveJob
from jobs.running.programs import Programs
from tasks.context import AppContext
from tests.support.running_jobs import Running
from tests.support.webapps import on_sqlite

pytestmark = [pytest.mark.usefixtures("alone"), on_sqlite]

TWO = """
@recipe("two", Options, stages=("draft", "final"))
def two(item: Item, options: Options) -> Flow:
    (draft,) = yield [Ask("draft", item.chat(), model="echo")]
    (final,) = yield [Ask("final", "final " + draft.text, model="echo")]
    return Result(text=final.text)
"""


def rebuilt(running: Running) -> LiveJob:
    return rebuild.rebuilt(running.context, running.job, Programs.watch, FLOW.jobs.tools(running.context))


@pytest.fixture
def running(deployed: Callable[[str], AppContext], project: str) -> Running:
    """A job of three items: one has ended, one waits for its second answer, one for its first."""
    running = Running(deployed(TWO), project, ["a", "b", "c"])
    running.tick()
    running.answer("draft", 0, 1)
    running.tick()
    running.answer("final", 0)
    running.tick()
    return running


def test_the_items_that_have_not_ended_wait_where_they_waited(running: Running) -> None:
    live = rebuilt(running)
    assert list(live.items._items) == [1, 2]
    programs = [item.program for item in live.items._items.values()]
    assert [(program.turn, program.wants[0].stage) for program in programs] == [(2, "final"), (1, "draft")]
    assert (live.items.requests.unanswered, live.items.requests.pending().total()) == ({"echo": 2}, 0)
    assert live.admitted == 3


def test_the_lines_of_each_stage_go_on_behind_those_that_were_given(running: Running) -> None:
    assert rebuilt(running).lines == {"draft": 4, "final": 3}


def test_a_job_of_a_recipe_that_is_gone_waits_for_it(running: Running, deployed: Callable[[str], AppContext]) -> None:
    running.context = deployed('@recipe("other", Options, stages=("a",))\ndef other(item, options):\n    yield []\n')
    with pytest.raises(UnavailableError, match="the recipe 'two' is not there any more"):
        rebuilt(running)


def test_the_memory_of_a_row_is_that_of_its_texts(running: Running) -> None:
    (row,) = rebuilt(running).reader.read(0, 1)
    assert rebuild.size_of(row) == len("a")
