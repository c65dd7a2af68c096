"""Requests that were made of prompts are shown as these prompts again."""

from __future__ import annotations

import io
from typing import Any

import orjson
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from batchyard.errors import RequestError, TooLargeError
from batchyard.request_lines.lines import REFUSED
from tasks.context import AppContext
from tasks.intake import prompts
from tasks.intake.prompts import RequestTemplate

CHAT = RequestTemplate("/v1/chat/completions", "mini", "Be brief.", {"temperature": 0.5, "stop": ["END"]})
PLAIN = RequestTemplate("/v1/completions", "mini", None, {})
MESSAGES = RequestTemplate("/v1/messages", "mini", "Be brief.", {"max_tokens": 9})
RESPONSES = RequestTemplate("/v1/responses", "mini", "Be brief.", {})
TEXTS = st.lists(st.text(st.sampled_from("ab{} -\n\r\u2028")), min_size=1, max_size=4)


def requests(template: RequestTemplate, kind: prompts.Format, text: str) -> list[dict[str, Any]]:
    return [template.request(prompt) for prompt in prompts.of_file(io.BytesIO(text.encode()), kind, None)]


@pytest.mark.parametrize("template", [CHAT, PLAIN, MESSAGES, RESPONSES])
@pytest.mark.parametrize(
    ("kind", "text"),
    [
        ("txt", "one"),
        ("txt", "one {{date}}\ntwo"),
        ("txt", "\none\n\n\ntwo"),
        ("prompts", "one\nline\n---\n  two\n\nthree"),
        ("prompts", "one\nline\n\n\n---\ntwo\n\n---\nthree"),
    ],
)
def test_prompts_are_read_back_as_they_were_written(template: RequestTemplate, kind: Any, text: str) -> None:
    lines = [orjson.dumps(request) for request in requests(template, kind, text)]
    assert prompts.read_back(lines) == (template, kind, text)


def test_instructions_stand_where_the_endpoint_has_them() -> None:
    (message,) = requests(MESSAGES, "txt", "hello")
    assert message["body"] == {
        "model": "mini",
        "system": "Be brief.",
        "messages": [{"role": "user", "content": "hello"}],
        "max_tokens": 9,
    }
    (response,) = requests(RESPONSES, "txt", "hello")
    assert response["body"] == {"model": "mini", "instructions": "Be brief.", "input": "hello"}


@given(TEXTS, st.integers(1, 3), st.integers(1, 5))
def test_what_is_read_back_makes_the_same_requests(texts: list[str], first: int, step: int) -> None:
    made = [CHAT.request(prompts.InputPrompt(first + step * place, text)) for place, text in enumerate(texts)]
    back = prompts.read_back([orjson.dumps(request) for request in made])
    if back is not None:
        assert requests(*back) == made


@pytest.mark.parametrize(
    "changed",
    [
        {"custom_id": "mine"},
        {"method": "PUT"},
        {"body": {"model": "other", "messages": [{"role": "user", "content": "two"}]}},
        {"body": {"model": "mini", "messages": [{"role": "user", "content": ["two"]}]}},
        {"body": {"model": "mini", "messages": []}},
        {"body": {"model": "mini", "messages": [{"role": "user", "content": "---"}]}},
        {"body": []},
    ],
)
def test_requests_that_no_prompts_make_are_not_read_back(changed: dict[str, Any]) -> None:
    template = RequestTemplate("/v1/chat/completions", "mini", None, {})
    one, two = requests(template, "prompts", "one\nline\n---\ntwo")
    assert prompts.read_back([orjson.dumps(one), orjson.dumps(two)]) is not None
    assert prompts.read_back([orjson.dumps(one), orjson.dumps(two | changed)]) is None
    assert prompts.read_back([orjson.dumps(one), b"no json"]) is None
    assert prompts.read_back([]) is None


def test_a_request_keeps_the_row_that_its_template_was_filled_with() -> None:
    table = io.BytesIO(b"shop,review,custom_id\nAda,good,a\n")
    (prompt,) = prompts.of_file(table, "csv", prompts.template_of("Label: {review}"))
    request = RequestTemplate("/v1/chat/completions", "m", None, {}).request(prompt)
    assert request["row"] == {"shop": "Ada", "review": "good", "custom_id": "a"}
    (plain,) = prompts.of_file(io.BytesIO(b"prompt\nhi\n"), "csv", None)
    assert "row" not in RequestTemplate("/v1/chat/completions", "m", None, {}).request(plain)


def test_an_index_of_pandas_is_no_column_beside_the_only_one() -> None:
    file = io.BytesIO()
    pq.write_table(pa.table({"question": ["Why?"], "__index_level_0__": [7]}), file)
    file.seek(0)
    (prompt,) = prompts.of_file(file, "parquet", None)
    assert prompt.content == "Why?"


def test_cells_that_are_no_json_are_not_kept_with_a_request() -> None:
    file = io.BytesIO()
    pq.write_table(pa.table({"review": ["good"], "photo": [b"\x89PNG"], "wei": [2**60]}), file)
    file.seek(0)
    (prompt,) = prompts.of_file(file, "parquet", prompts.template_of("Label: {review}"))
    assert prompt.row == {"review": "good", "wei": 2**60}


def test_a_request_or_a_file_that_is_too_long_is_not_stored(context: AppContext) -> None:
    """A template and instructions make a line longer than the row that it came from."""
    template = RequestTemplate("/v1/chat/completions", "m", "s" * 100, {})
    limits = {"max_line_bytes": 300, "max_bytes": 1000}

    def write(*texts: str, skip: bool = False) -> list[dict[str, Any]]:
        inputs = prompts.of_list(list(texts))
        stored = prompts.write(context.artifacts, inputs, template, id, 9, skip_invalid=skip, **limits)
        with context.artifacts.open(stored.sha256) as file:
            return [orjson.loads(line) for line in file]

    with pytest.raises(RequestError) as long:
        write("a", "b" * 100)
    assert long.value.code == "line_too_long"
    assert [line.get(REFUSED, {}).get("code") for line in write("a", "b" * 100, skip=True)] == [None, "line_too_long"]
    with pytest.raises(TooLargeError):
        write(*"abcdef")
