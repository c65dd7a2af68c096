"""Rows that become a job's items: each bad one is reported with its number, whatever the recipe does."""

from __future__ import annotations

import io
import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest

from batchyard.recipes import Ask, Flow, FlowRecipe, Item, Options, Result, recipe
from batchyard.settings import Settings
from jobs.kinds.item_checks import ItemChecker
from store.artifacts import Artifacts
from store.formats.items import ItemsWriter, Reader
from store.records import Job
from tasks.intake.validation import ValidationReport
from tests.support.stacks import ROOT

Errors = list[tuple[int | None, str]]


def columns(options: Options, row: Mapping[str, Any]) -> Sequence[str]:
    if row["prompt"] == "hang":
        time.sleep(120)
    return ["answer.text"]


@recipe("plain", Options, stages=("ask",))
def plain(item: Item, options: Options) -> Flow:
    """Answer once."""
    model = "nobody" if item.columns["prompt"] == "other" else "echo"
    yield [Ask("ask", item.chat(), model=model)]
    return Result(text="so")


@pytest.fixture
def check(artifacts: Artifacts) -> Callable[..., tuple[list[str], list[dict[str, Any]]]]:
    """Checks the lines of an input. Returns the custom_ids of the items, and the errors."""

    def make(*rows: str, of: FlowRecipe[Any] = plain, **changes: Any) -> tuple[list[str], list[dict[str, Any]]]:
        limits = {"max_items": 100, "judge_seconds": 600} | changes.pop("settings", {})
        settings = Settings().model_copy(update=limits)
        report = ValidationReport()
        models = {"echo": {"name": "echo", "engine": "echo"} | changes.pop("model", {})}
        sample_rows = changes.pop("sample_rows", None)
        job = Job(options=changes, seed=7, models=models, post_process=[], sample_rows=sample_rows)
        checker = ItemChecker(settings, job, of, report)
        with artifacts.create() as file:
            writer = ItemsWriter(file)
            checker.write(io.BytesIO("\n".join(rows).encode()), "in.jsonl", writer)
            writer.close()
        checker.check_size(writer.total)
        items = Reader(artifacts, file.sha256).read(0, 100) if writer.total else []
        return [item.custom_id for item in items], report.errors

    return make


def places(errors: list[dict[str, Any]]) -> Errors:
    return [(error["line"], error["code"]) for error in errors]


def test_an_item_is_named_by_its_row_or_by_its_custom_id(check: Callable[..., Any]) -> None:
    rows = '{"prompt": "a"}', '{"prompt": "b", "custom_id": 17}', '{"prompt": "c", "custom_id": "c"}'
    assert check(*rows) == (["item-1", "17", "c"], [])


def test_a_row_that_is_too_long_for_a_model_is_an_item_and_any_other_refusal_is_reported(
    check: Callable[..., Any],
) -> None:
    model = {"engine": "transformers", "source": str(ROOT / "examples/models/nano")}
    ids, errors = check(json.dumps({"prompt": "word " * 3000}), '{"prompt": "a"}', model=model)
    assert (ids, errors) == (["item-1", "item-2"], [])
    assert places(check('{"prompt": "other"}')[1]) == [(1, "model_not_found")]


def test_the_items_of_a_plan_come_first_and_each_row_is_checked_once(check: Callable[..., Any]) -> None:
    rows = [json.dumps({"prompt": "a" * number}) for number in range(1, 41)]
    ids, errors = check(*rows, sample_rows=4)
    assert not errors and sorted(ids) == sorted(check(*rows)[0])
    first = [int(name.removeprefix("item-")) for name in ids[:4]]
    assert sorted((number - 1) // 10 for number in first) == [0, 1, 2, 3], "one of each stratum of lengths"
    others = [int(name.removeprefix("item-")) for name in ids[4:]]
    assert others == sorted(others)
    assert check(*rows, sample_rows=4, shuffle=3)[0][:4] == ids[:4]
    assert check(*rows, sample_rows=40) == check(*rows), "no fewer rows than the sample: no plan"
    _, errors = check(*rows, '{"prompt": null}', sample_rows=4, settings={"max_items": 41})
    assert [error["line"] for error in errors] == [41]


def test_a_name_that_repeats_is_reported_at_each_repeat_with_the_first_row(check: Callable[..., Any]) -> None:
    row = '{"prompt": "a", "custom_id": "x"}'
    _, errors = check(row, '{"prompt": "b", "custom_id": "item-5"}', row, row, '{"prompt": "c"}')
    assert places(errors) == [(3, "duplicate_custom_id"), (4, "duplicate_custom_id"), (5, "duplicate_custom_id")]
    assert "is that of row 1" in errors[0]["message"] and "is that of row 2" in errors[2]["message"]


def test_a_column_that_is_missing_is_named_with_the_one_that_was_meant(check: Callable[..., Any]) -> None:
    of = replace(plain, columns=lambda options, row: ["answer"])
    _, errors = check('{"prompt": "a", "answer": "1"}', '{"prompt": "b", "anser": "1"}', '{"prompt": "c"}', of=of)
    assert places(errors) == [(2, "missing_column"), (3, "missing_column")]
    assert "did you mean 'anser'?" in errors[0]["message"] and "it has prompt" in errors[1]["message"]


def test_a_recipe_that_hangs_over_a_row_is_interrupted_and_the_other_rows_are_checked(
    check: Callable[..., Any],
) -> None:
    began = time.monotonic()
    good = '{"prompt": "a", "answer": {"text": "1"}}'
    settings = {"judge_seconds": 1}
    of = replace(plain, columns=columns)
    _, errors = check(good, '{"prompt": "hang"}', '{"prompt": "c"}', of=of, settings=settings)
    assert places(errors) == [(2, "recipe_hangs"), (3, "missing_column")]
    assert time.monotonic() - began < 60


def test_the_requests_of_the_first_rows_are_checked_before_anything_runs(check: Callable[..., Any]) -> None:
    _, errors = check('{"prompt": "a"}', '{"prompt": "other"}')
    assert places(errors) == [(2, "model_not_found")]


def test_only_as_many_rows_as_the_options_say_are_read(check: Callable[..., Any]) -> None:
    assert check('{"prompt": "a"}', '{"prompt": "b"}', "no JSON", limit=2) == (["item-1", "item-2"], [])


def test_more_rows_than_the_deployment_takes_are_one_error(check: Callable[..., Any]) -> None:
    _, errors = check('{"prompt": "a"}', '{"prompt": "b"}', '{"prompt": "c"}', settings={"max_items": 2})
    assert places(errors) == [(None, "too_many_items")]
    assert "BATCHYARD_MAX_ITEMS" in errors[0]["message"]
