"""Validation of a job: every bad row is reported, or the items are written."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from jobs import messages, validation
from jobs.kinds import item_checks
from jobs.submission.creation import JobRequest
from store.formats.items import Reader
from store.records import File, Job
from tasks.context import AppContext
from tests.support.jobs import submit_job


@pytest.fixture
def validated(
    context: AppContext, project: str, upload: Callable[[bytes], File], monkeypatch: pytest.MonkeyPatch
) -> Callable[..., Job]:
    """Makes a job over this content, and validates it."""
    for name in ("validate", "advance"):
        monkeypatch.setattr(messages, name, lambda *_: None)

    def make(content: bytes, recipe: str = "batch", **options: object) -> Job:
        request = JobRequest(recipe=recipe, input=upload(content), options={"model": "echo"} | options)
        job = submit_job(context, project, request)
        assert validation.run(context, job.id, "here/1/task")
        assert not validation.run(context, job.id, "there/2/task")
        with context.database.read() as session:
            return session.get_one(Job, job.id)

    return make


def test_every_bad_row_is_reported_with_its_code(validated: Callable[..., Job]) -> None:
    job = validated(b'{"prompt": "a", "custom_id": "x"}\nno\n{"text": "b"}\n{"prompt": "c", "custom_id": "x"}\n')
    assert job.status == "failed"
    assert [(error["line"], error["code"]) for error in job.errors or []] == [
        (2, "invalid_input_file"),
        (3, "missing_prompt"),
        (4, "duplicate_custom_id"),
    ]


@pytest.mark.parametrize(
    ("row", "code"),
    [
        ('{"prompt": "a", "custom_id": ""}', "invalid_custom_id"),
        ('{"prompt": "a", "custom_id": "a\\u0000"}', "invalid_custom_id"),
        ('{"messages": [{"role": "user"}]}', "invalid_request"),
        ("", "empty_file"),
    ],
)
def test_a_row_that_cannot_be_an_item_fails_the_job(validated: Callable[..., Job], row: str, code: str) -> None:
    job = validated(f"{row}\n".encode())
    assert (job.status, [error["code"] for error in job.errors or []]) == ("failed", [code])


def test_items_keep_the_numbers_of_their_rows_in_whatever_order_they_begin(
    validated: Callable[..., Job], context: AppContext
) -> None:
    rows = b"".join(b'{"prompt": "p%d"}\n' % number for number in range(20))
    job = validated(rows, shuffle=1, limit=10)
    items = list(Reader(context.artifacts, job.items_sha256 or "").read(0, 20))
    assert (job.status, job.total) == ("in_progress", 10)
    assert [item.number for item in items] != sorted(item.number for item in items) == list(range(1, 11))
    assert all(item.columns["prompt"] == f"p{item.number - 1}" for item in items)


ROWS = (
    b'{"text": "a", "genre": "sad", "answer": "1", "topic": "x", "custom_id": "p"}\n'
    b'{"text": "b", "genre": "sad", "answer": "2", "topic": "y", "custom_id": "q"}\n'
)


def test_all_columns_of_a_template_have_an_order_in_the_options_without_those_that_options_name(
    validated: Callable[..., Job],
) -> None:
    assert validated(ROWS, template="So:\n{*}").options["template"] == 'So:\n{*["genre", "text", "answer", "topic"]}'
    evaluated = validated(ROWS, recipe="evaluate", template="{*}\n{text}", slices=["topic"])
    assert evaluated.options["template"] == '{*["genre"]}\n{text}'
    rolled_out = validated(ROWS, recipe="rollout", template="{*}", ground_truth="answer", reward="exact", limit=1)
    assert rolled_out.options["template"] == '{*["text", "genre", "topic"]}'


def test_a_job_has_no_order_of_columns_by_row(validated: Callable[..., Job]) -> None:
    job = validated(ROWS, template="{*:per-row}")
    assert job.status == "failed"
    assert [error["param"] for error in job.errors or []] == ["options.template"]


def test_more_items_than_fit_into_memory_at_once_are_refused(
    validated: Callable[..., Job], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(item_checks, "MAX_BARRIER_ITEMS", 1)
    job = validated(b'{"prompt": "a"}\n{"prompt": "b"}\n', streaming=False)
    assert [error["code"] for error in job.errors or []] == ["too_many_items"]
