"""What a job would be, before it is made: read as validation reads it, and null where nobody can know."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from batchyard.models import ModelSpec
from batchyard.recipes import Item
from batchyard.recipes.program import Request
from jobs.intake.requests import PreparedRequest, Preparer
from jobs.kinds import flow_estimate
from jobs.kinds.kind import JobEstimate, StageOutlook
from jobs.submission import creation
from jobs.submission.creation import JobRequest
from store import projects, speeds
from store.speeds import Measurement
from tasks.context import AppContext
from tasks.intake.submission import NewInput

ROWS = b'{"prompt": "a"}\n{"prompt": "b"}\n{"prompt": "c"}\n'
Outlook = Callable[..., JobEstimate]


@pytest.fixture
def database_url(sqlite_url: str) -> str:
    """SQLite alone: estimates are the same on any database."""
    return sqlite_url


@pytest.fixture
def outlook(context: AppContext, project: str) -> Outlook:
    """Estimates a job of recipe `batch` over a file with this content."""

    def run(content: bytes = ROWS, name: str = "in.jsonl", **options: Any) -> JobEstimate:
        with context.artifacts.create() as file:
            file.write(content)
        request = JobRequest(recipe="batch", input=NewInput(name, file), options={"model": "echo"} | options)
        return creation.dry_run(context, project, request).estimate

    return run


@pytest.fixture
def measured(context: AppContext) -> None:
    """Ten requests a second, and eight in flight."""
    measurement = Measurement(60, requests=600, bytes=60_000, tokens=5400, squares=150_000, in_flight=8, limit=8)
    with context.database.write() as session:
        speeds.measure(speeds.locked(session, "echo", context.models["echo"].config_sha256, "decode"), measurement)


def test_items_and_requests_are_counted_to_the_limit_of_the_options(outlook: Outlook) -> None:
    for limit, items in ((None, 3), (2, 2), (9, 3)):
        estimate = outlook(limit=limit)
        (stage,) = estimate.stages
        assert (estimate.items, stage.expected) == (items, items)


def test_rows_after_those_that_are_looked_at_are_counted_and_weighed_as_these(outlook: Outlook) -> None:
    few, many = outlook(ROWS), outlook(ROWS * 100)
    assert few.parts is not None and many.parts is not None and many.items == 300
    assert many.parts["echo"].requests == 100 * few.parts["echo"].requests
    assert many.parts["echo"].bytes == pytest.approx(100 * few.parts["echo"].bytes, rel=0.01)


def test_rows_are_read_with_the_options_of_the_job(outlook: Outlook) -> None:
    content = b"prompt,n\nWhy?,1\nNA,2\n"
    assert outlook(content, "in.csv").errors == []
    (error,) = outlook(content, "in.csv", null_values=["NA"]).errors
    assert (error["line"], error["code"]) == (2, "empty_value")


def test_the_first_request_is_that_of_the_first_row_that_makes_one(outlook: Outlook) -> None:
    estimate = outlook(b'{"prompt": "Why?"}\n{"text": "no prompt"}\n', system="Be brief.")
    (request,) = estimate.requests
    assert request.body["messages"][0] == {"role": "system", "content": "Be brief."}
    assert [error["line"] for error in estimate.errors] == [2]


def test_a_file_that_cannot_be_read_is_an_error_and_has_no_items(outlook: Outlook) -> None:
    estimate = outlook(b"PAR1", "in.parquet")
    assert (estimate.items, estimate.seconds, estimate.parts) == (None, None, None)
    assert [error["code"] for error in estimate.errors] == ["invalid_input_file"]
    assert [stage.expected for stage in estimate.stages] == [None]


def test_there_is_no_end_before_the_model_was_measured(outlook: Outlook) -> None:
    estimate = outlook()
    assert (estimate.seconds, [code for code, _ in estimate.warnings]) == (None, ["not_measured"])


@pytest.mark.usefixtures("measured")
def test_more_rows_take_longer_and_none_take_no_time(outlook: Outlook) -> None:
    seconds = [outlook(ROWS * number).seconds for number in (10, 100, 1000)]
    assert None not in seconds and seconds == sorted(seconds)  # type: ignore[type-var]
    assert seconds[-1] == pytest.approx(300, rel=0.1)
    assert outlook(b"").seconds == pytest.approx(0, abs=0.1)


@pytest.mark.usefixtures("measured")
def test_a_job_of_a_project_that_may_run_nothing_has_no_end(
    outlook: Outlook, context: AppContext, project: str
) -> None:
    with context.database.write() as session:
        projects.update(session, project, max_segments=0)
    estimate = outlook()
    assert estimate.items == 3
    assert estimate.seconds is None
    ((code, message),) = estimate.warnings
    assert code == "eta_unknown" and "max_segments" in message


SHARES = st.lists(
    st.dictionaries(st.sampled_from(["a", "b", "c"]), st.integers(1, 9), min_size=1), min_size=1, max_size=4
)


MODELS = {"echo": ModelSpec(name="echo", engine="echo")}
ASKED = Request("s", "/v1/completions", 1, 0, "echo", {"model": "echo", "prompt": "a"}, {}, None)


def request(size: int, limit: int | None) -> PreparedRequest:
    prepared = Preparer(MODELS).prepare(Item(1, "x", {}), 0, ASKED)
    assert isinstance(prepared, PreparedRequest)
    return replace(prepared, body=b"x" * size, output_tokens=limit)


@given(SHARES, st.integers(0, 10**6), st.lists(st.tuples(st.integers(1, 500), st.integers(1, 99)), min_size=1))
def test_the_parts_of_all_models_are_all_requests_with_their_bytes_and_limits(
    weights: list[dict[str, int]], expected: int, sample: list[tuple[int, int]]
) -> None:
    stages = [StageOutlook(str(number), "/v1/completions", expected) for number in range(len(weights))]
    shares = [{model: weight / sum(one.values()) for model, weight in one.items()} for one in weights]
    parts = flow_estimate._parts(stages, shares, [request(size, limit) for size, limit in sample])
    assert parts is not None and parts.keys() == {model for one in weights for model in one}
    total, models = expected * len(weights), len(parts)
    assert sum(part.requests for part in parts.values()) == pytest.approx(total, abs=models)
    sizes, limits = zip(*sample, strict=True)
    assert sum(part.bytes for part in parts.values()) == pytest.approx(total * sum(sizes) / len(sizes), abs=models)
    assert sum(part.limit or 0 for part in parts.values()) == pytest.approx(
        total * sum(limits) / len(limits), abs=models
    )


def test_nobody_knows_the_parts_of_a_stage_that_counts_nothing_or_names_no_model() -> None:
    known, unknown = (StageOutlook("s", "/v1/completions", expected) for expected in (5, None))
    sample = [request(10, None)]
    assert flow_estimate._parts([known], [{"a": 1.0}], sample) == {"a": (5, 50, None)}
    assert flow_estimate._parts([known, unknown], [{"a": 1.0}] * 2, sample) is None
    assert flow_estimate._parts([known], [{}], sample) is None
    assert flow_estimate._parts([known], [{"a": 1.0}], []) is None, "no request says how large they are"
