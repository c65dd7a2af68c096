"""A preview shows the first requests and the errors of an input's beginning, with the lines of the input."""

from __future__ import annotations

import io
import json
from typing import Any

import pytest

from batchyard.errors import RequestError
from tasks.context import AppContext
from tasks.intake import preview, prompts
from tasks.intake.prompts import RequestTemplate
from tests.support.stacks import a_chat
from tests.support.webapps import on_sqlite

CHAT = "/v1/chat/completions"


def lines(*requests: Any) -> bytes:
    return b"".join((item if isinstance(item, bytes) else json.dumps(item).encode()) + b"\n" for item in requests)


@on_sqlite
def test_the_first_requests_are_shown_and_all_of_the_beginning_are_counted(context: AppContext) -> None:
    content = lines(*(a_chat(f"id-{number}", "hello") for number in range(5)))
    shown = preview.of_requests(context, CHAT, content, whole=True)
    assert [request["custom_id"] for request in shown.requests] == ["id-0", "id-1", "id-2"]
    assert (shown.count, shown.whole, shown.errors, shown.parts["echo"].requests) == (5, True, [], 5)
    assert json.loads(shown.first_line) == a_chat("id-0", "hello") and shown.size == len(content)


@on_sqlite
def test_an_error_names_its_line_and_hides_no_good_request(context: AppContext) -> None:
    content = lines(a_chat("a", "x"), b"{", a_chat("a", "y"))
    shown = preview.of_requests(context, CHAT, content, whole=True)
    assert [request["custom_id"] for request in shown.requests] == ["a", "a"]
    assert [(error["line"], error["code"]) for error in shown.errors] == [
        (2, "invalid_json_line"),
        (3, "duplicate_custom_id"),
    ]


def test_of_a_large_file_only_whole_lines_of_the_beginning_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(preview, "HEAD_BYTES", 10)
    assert preview.head(io.BytesIO(b"one\ntwo\nthree\n")) == (b"one\ntwo\n", False)
    assert preview.head(io.BytesIO(b"one\ntwo\nxx")) == (b"one\ntwo\nxx", True)
    assert preview.head(io.BytesIO(b"a line without an end")) == (b"", False)


@on_sqlite
def test_a_first_line_beyond_the_beginning_shows_nothing_and_is_no_error(context: AppContext) -> None:
    shown = preview.of_requests(context, CHAT, b"", whole=False)
    assert (shown.requests, shown.count, shown.errors) == ([], 0, [])


@on_sqlite
def test_an_error_of_a_prompt_names_the_line_that_the_prompt_stands_in(context: AppContext) -> None:
    template = RequestTemplate(CHAT, "missing", "", {})
    shown = preview.of_prompts(context, template, prompts.of_list("one\n\n\ntwo"), whole=True)
    assert [error["line"] for error in shown.errors] == [1, 4]


@on_sqlite
def test_an_input_without_a_prompt_is_refused(context: AppContext) -> None:
    with pytest.raises(RequestError):
        preview.of_prompts(context, RequestTemplate(CHAT, "echo", "", {}), prompts.of_list(" \n"), whole=True)
