"""Options of a job: what is refused, where the refusal points, and what the names in them need."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import Field

from batchyard.errors import RequestError
from batchyard.recipes import Ask, Flow, Item, Options, Result, recipe
from jobs.intake import options as job_options
from jobs.intake.drafts import JobDraft
from recipes import registry
from store.records import Job
from tasks.context import AppContext
from tests.support.webapps import on_sqlite

pytestmark = on_sqlite


class Debate(Options):
    """Options of a recipe of this test."""

    model: str
    rounds: int = Field(1, ge=1)


def check(options: Debate) -> None:
    if options.rounds == 13:
        raise ValueError("rounds: 13 brings bad luck.")
    if options.rounds == 14:
        raise RuntimeError("a fault of the recipe")


def probe(options: Debate) -> list[Ask]:
    return [Ask("argue", "a", model=name) for name in ("echo", "echo", "other")] + [Ask("judge", "a", model="echo")]


@recipe("debate", Debate, stages=("argue", "judge", "last"), check=check, probe=probe, expected=lambda _: [3.0])
def debate(item: Item, options: Debate) -> Flow:
    """Debate."""
    yield [Ask("argue", "a", model=options.model)]
    return Result()


@pytest.fixture(autouse=True)
def known(monkeypatch: pytest.MonkeyPatch) -> None:
    """These recipes run in this process: they stand in no file that another could import."""
    monkeypatch.setattr(registry.RECIPES, "built_in", {"debate": "", "none": ""})


@pytest.mark.parametrize(
    ("values", "code", "param", "message"),
    [
        ({}, "missing_required_parameter", "options.model", "Missing required parameter: 'options.model'."),
        ({"model": "echo", "round": 1}, "unknown_parameter", "options.round", "Did you mean 'options.rounds'?"),
        ({"model": "echo", "rounds": 0}, "invalid_value", "options.rounds", "0 is not a whole number, at least 1."),
        ({"model": "echo", "rounds": 13}, "invalid_value", "options.rounds", "'options.rounds': 13 brings bad luck."),
        ({"model": "echo", "rounds": 14}, "recipe_error", "options", "its author has to look"),
    ],
)
def test_options_that_cannot_be_are_refused_at_their_place(
    context: AppContext, values: dict[str, Any], code: str, param: str, message: str
) -> None:
    with pytest.raises(RequestError) as refused:
        job_options.parse(context, debate, values)
    assert (refused.value.code, refused.value.param) == (code, param)
    assert message in refused.value.message


def test_all_errors_are_named_but_no_more_than_a_few(context: AppContext) -> None:
    unknown = {f"unknown_{number}": 1 for number in range(job_options.MAX_ERRORS + 2)}
    with pytest.raises(RequestError, match="There are 8 errors in all") as refused:
        job_options.parse(context, debate, unknown)
    assert refused.value.message.count("'options.") == job_options.MAX_ERRORS


def test_a_stage_asks_each_model_as_often_as_the_examples_do(context: AppContext) -> None:
    options = job_options.parse(context, debate, {"model": "echo"})
    stages = job_options.stages(context, debate, options)

    def shares(models: dict[str, Any]) -> list[dict[str, float]]:
        return job_options.shares(context, debate, options, JobDraft(Job(models=models), None, stages, ()))

    first, second, last = shares({"echo": {}, "other": {}})
    assert first == {"echo": pytest.approx(2 / 3), "other": pytest.approx(1 / 3)}
    assert second == last == {"echo": 1.0}
    assert shares({"echo": {"adapters": {"other": {}}}})[0] == {"echo": 1.0}


def test_a_stage_whose_requests_the_recipe_does_not_count_has_none_expected(context: AppContext) -> None:
    options = job_options.parse(context, debate, {"model": "echo"})
    stages = job_options.stages(context, debate, options)
    assert job_options.expected(context, debate, options, stages) == [3.0, None, None]


def test_a_recipe_without_stages_is_a_fault_of_its_author(context: AppContext) -> None:
    @recipe("none", Debate, stages=())
    def none(item: Item, options: Debate) -> Flow:
        yield [Ask("argue", "a", model=options.model)]
        return Result()

    with pytest.raises(RequestError, match="no stage, or one twice; its author has to look"):
        job_options.stages(context, none, Debate(model="echo"))
