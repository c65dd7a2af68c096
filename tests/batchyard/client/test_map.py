"""`batchyard.map` against a running stack: a column of answers, the same call again, and what it refuses."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from typing import Any

import pandas as pd
import pytest

import batchyard
from batchyard.client import asking
from batchyard.client import map as mapping
from batchyard.client.api import ApiClient
from batchyard.errors import ConfigurationError, RequestError, UnavailableError
from tests.support.stacks import RunningStack


@pytest.fixture(scope="module")
def stack(stack: RunningStack) -> RunningStack:
    """The shared stack as a project of this file's own sees it: the tests count batches."""
    return stack.in_project("tests of map")


@pytest.fixture(autouse=True)
def server(stack: RunningStack, monkeypatch: pytest.MonkeyPatch) -> None:
    """The shared stack is the one that the environment names."""
    monkeypatch.setenv("BATCHYARD_URL", stack.url)
    monkeypatch.setenv("BATCHYARD_API_KEY", stack.key)


def batches(stack: RunningStack) -> list[Any]:
    """Return the batches but those of jobs, which other tests may have left running."""
    listed: list[Any] = list(stack.client.batches.list(limit=100))
    return [batch for batch in listed if batch.batchyard["job_id"] is None]


def test_a_data_frame_gets_a_column_of_answers_in_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    table = pd.DataFrame({"text": ["moon", None, "sun"], "lang": ["fr", "de", "it"]}, index=[5, 5, 1])
    table["answer"] = batchyard.map(table, "Translate {text} to {lang}", model="echo")
    assert table["answer"].tolist()[::2] == ["Translate moon to fr", "Translate sun to it"]
    assert table["answer"].isna().tolist() == [False, True, False]
    assert "model echo is simulated: no model has made these answers" in capsys.readouterr().err


def test_all_columns_stand_in_one_order_that_is_told_and_that_the_same_call_finds_again(
    stack: RunningStack, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = [{"n": str(number), "lang": "de", "text": f"order {number % 3}"} for number in range(9)]
    first = batchyard.map(rows, "{*}", system="Of {n}.", model="echo")
    assert first[4] == "lang: de\ntext: order 1"
    assert "columns of {*}: lang, text\n" in capsys.readouterr().err
    made = len(batches(stack))
    assert batchyard.map(rows, "{*}", system="Of {n}.", model="echo") == first
    assert len(batches(stack)) == made
    by_row = batchyard.map(rows, "{*:per-row}", model="echo", progress=False)
    assert [sorted(text.split("\n")) for text in by_row] == [
        sorted(f"{name}: {cell}" for name, cell in row.items()) for row in rows
    ]
    with pytest.raises(ConfigurationError, match="all columns stand in template already"):
        batchyard.map(rows, "{*}", system="{*}", model="echo")


def test_the_same_call_again_takes_up_its_batch_and_another_one_does_not(stack: RunningStack) -> None:
    rows = [{"n": number} for number in range(5)]
    options = {"model": "echo", "system": "Of {n}.", "max_tokens": 9}
    first = batchyard.map(rows, "again {n}", **options)
    made = len(batches(stack))
    assert batchyard.map(rows, "again {n}", **options) == first == [f"again {number}" for number in range(5)]
    assert len(batches(stack)) == made
    for changed in ({"again": True}, {"temperature": 0.5}, {"model": "other"}):
        batchyard.map(rows, "again {n}", **options | changed)
        made += 1
        assert len(batches(stack)) == made, changed


@pytest.mark.parametrize("file", ["output_file_id", "error_file_id"])
def test_the_same_call_again_computes_what_was_deleted_meanwhile_and_nothing_else(
    stack: RunningStack, file: str
) -> None:
    rows = [{"n": f"deleted {file} {number}"} for number in range(9)]
    first = batchyard.map(rows, "{n}", model="failing", progress=False)
    (batch, *_) = batches(stack)
    stack.client.files.delete(getattr(batch, file))
    second = batchyard.map(rows, "{n}", model="failing", progress=False)
    answered = sum(one is not None for one in first)
    assert batches(stack)[0].request_counts.total == (answered if file == "output_file_id" else 9 - answered)
    if file == "error_file_id":
        assert [new for new, old in zip(second, first, strict=True) if old] == [old for old in first if old]
    assert any(second)


def test_what_failed_and_what_was_not_sent_has_an_error_in_its_row() -> None:
    rows = [{"n": number if number != 4 else None} for number in range(9)]
    details = batchyard.map(rows, "{n}", model="failing", details=True)
    assert [list(row) for row in details] == [["answer", "error", "tokens"]] * 9
    assert details[4] == {"answer": None, "error": "column n is empty", "tokens": None}
    failed = [row["error"] for row in details if row["answer"] is None and row["error"] != "column n is empty"]
    assert 2 <= len(failed) <= 4, "every third request"
    for number, row in enumerate(details):
        assert row["error"] or row == {"answer": str(number), "error": None, "tokens": 2}


def test_more_rows_than_a_batch_may_have_become_several_in_order(
    stack: RunningStack, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(asking, "MAX_REQUESTS", 4)
    rows = [{"n": f"several {number}"} for number in range(10)]
    made = len(batches(stack))
    assert batchyard.map(rows, "{n}", model="echo") == [row["n"] for row in rows]
    assert len(batches(stack)) == made + 3
    assert batchyard.map(rows, "{n}", model="echo", progress=False) == [row["n"] for row in rows]
    assert len(batches(stack)) == made + 3


def test_rows_that_are_all_empty_or_none_at_all_make_no_batch(stack: RunningStack) -> None:
    made = len(batches(stack))
    assert batchyard.map([{"n": None}, {"n": None}], "{n}", model="echo") == [None, None]
    assert batchyard.map(pd.DataFrame({"n": []}), "{n}", model="echo").tolist() == []
    assert len(batches(stack)) == made


def test_answers_by_a_schema_are_columns_and_one_that_does_not_fit_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    # Engine echo takes no response_format, and answers with what it was asked.
    monkeypatch.setattr(mapping.Structure, "response_format", None)
    table = pd.DataFrame({"stars": [4, "many", 5]})
    schema = {"type": "object", "properties": {"stars": {"type": "integer"}}}
    options: dict[str, Any] = {"model": "echo", "schema": schema}
    read = batchyard.map(table, '{{"stars": {stars}}}', **options, details=True)
    assert read["stars"].tolist() == [4, pd.NA, 5]
    assert read["error"].isna().tolist() == [True, False, True]
    assert read["error"][1].startswith("the answer does not fit the schema: not JSON")
    assert list(batchyard.map([{"n": 1}], '{{"stars": {n}}}', **options)[0]) == ["stars"]


@pytest.mark.parametrize(
    ("template", "options", "message"),
    [
        ("{txt}", {}, "no column 'txt'; did you mean 'text'?"),
        ("text", {}, "it names no column in braces"),
        ("{text}", {"system": "{"}, "system: a '{' without '}'"),
        ("{text}", {"model": "ecko"}, "does not serve 'ecko'; did you mean echo?"),
        (
            "{text}",
            {"model": "vectors"},
            "vectors does not answer on /v1/chat/completions, only on /v1/embeddings",
        ),
        ("{text}", {"schema": {}}, 'its type must be "object"'),
        ("{text}", {"seed": object()}, "a parameter is no JSON"),
        ("{text}", {"n": 4}, "n=4: a row has one answer; repeat the rows, or take recipe rollout"),
        (
            "{text}",
            {"schema": {"type": "object", "properties": {"error": {}}}, "details": True},
            "its property error has the name of a column of the details",
        ),
    ],
)
def test_what_cannot_be_asked_is_refused_before_anything_is_sent(
    stack: RunningStack, template: str, options: dict[str, Any], message: str
) -> None:
    made = len(batches(stack))
    with pytest.raises(ConfigurationError) as refusal:
        batchyard.map([{"text": "a"}], template, **{"model": "echo", **options})
    assert message in str(refusal.value)
    assert len(batches(stack)) == made


def test_a_parameter_that_the_engine_does_not_take_is_the_error_of_the_server() -> None:
    with pytest.raises(RequestError, match=r"is refused: .*response_format"):
        batchyard.map([{"n": 1}], "{n}", model="echo", response_format={"type": "json_object"})


def test_a_server_that_is_away_is_named_with_the_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BATCHYARD_URL", "http://127.0.0.1:9")
    with pytest.raises(UnavailableError, match="start one with `batchyard up`"):
        batchyard.map([{"n": 1}], "{n}", model="echo", server=ApiClient("http://127.0.0.1:9", "key", max_retries=0))


def test_the_event_loop_goes_on_while_answers_are_awaited() -> None:
    async def both() -> list[Any]:
        return await asyncio.gather(
            *(batchyard.amap([{"n": name}], "await {n}", model="echo", progress=False) for name in "ab")
        )

    assert asyncio.run(both()) == [["await a"], ["await b"]]


def test_importing_batchyard_imports_nothing_heavy() -> None:
    code = "import sys, batchyard; print({'httpx', 'pandas', 'pyarrow', 'click'} & sys.modules.keys() or 'none')"
    printed = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert printed.strip() == "none"
    with pytest.raises(AttributeError, match="no attribute 'mapp'"):
        batchyard.mapp  # noqa: B018


# tests/batchyard/cli/rows/test_map.py shows a cascade through the command, and test_filter.py that it is taken up.
@pytest.mark.exhaustive
def test_a_cascade_answers_rows_by_the_smaller_model_where_it_agrees(
    stack: RunningStack, capsys: pytest.CaptureFixture[str]
) -> None:
    rows: list[dict[str, Any]] = [
        {"text": f"Review {n} <other {0.5 + n / 500}>{'no' if n < 60 else 'yes'}</other> <echo 1>yes</echo>"}
        for n in range(249)
    ]
    rows.append({"text": None})
    options: dict[str, Any] = {"model": "echo", "cascade": "other", "agree": 0.9}
    details = batchyard.map(rows, "{text}", details=True, **options)
    assert list(details[0]) == ["answer", "answered_by", "confidence", "error", "tokens"]
    assert {row["answered_by"] for row in details[:249]} == {"other", "echo"} and details[249]["answer"] is None
    assert sum(row["answer"] == "yes" for row in details) >= 0.9 * 249
    assert details[0]["confidence"] == pytest.approx(0.5) and details[0]["error"] is None and details[0]["tokens"] > 5
    by_small = sum(row["answered_by"] == "other" for row in details)
    said = capsys.readouterr().err
    assert f"cascade: other answered {by_small} of 249 rows (simulated)" in said
    assert batchyard.map(rows, "{text}", **options) == [row["answer"] for row in details]
    assert "taking up job" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"agree": 0.9}, "agree needs a cascade: name the small model with cascade="),
        ({"cascade": "other", "agree": 95}, "agree=95: pass a share between 0 and 1"),
        ({"cascade": "other", "agree": "0.9..0.98"}, "a range of agree, such as 0.9..0.98, goes together with by"),
        ({"cascade": "other", "agree": 0.9, "by": "07:00"}, "a range of agree, such as 0.9..0.98, goes together with"),
        ({"cascade": "other", "agree": "0.9..0.98", "by": "27:00"}, "agree or by: hour must be in 0..23"),
        ({"cascade": "other", "agree": "0.98..0.9", "by": "07:00"}, "agree or by: 0.98..0.9 does not rise; pass 0.95"),
        ({"cascade": "othr"}, "does not serve 'othr'; did you mean other"),
        ({"cascade": "vectors"}, "model vectors does not answer on /v1/chat/completions"),
        ({"cascade": "other", "truth": "text:image"}, "truth: no column 'text:image'; available: text"),
        ({"cascade": "other", "agree": "much"}, "agree or by: could not convert"),
        ({"cascade": "other", "recall": 0.9}, "recall is an option of filter; leave it out here"),
        ({"cascade": "other", "finish_reason": True}, "plain texts"),
        ({"cascade": "other", "schema": {"type": "object", "properties": {"a": {}}}}, "plain texts"),
    ],
)
def test_a_cascade_that_cannot_be_is_refused(options: dict[str, Any], reason: str) -> None:
    with pytest.raises(ConfigurationError, match=reason):
        batchyard.map([{"text": "a"}], "{text}", model="echo", **options)
