"""A value is one line of JSON for every reader, and the same value."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from batchyard import json_lines
from batchyard.endpoints import output_lines

VALUES = st.dictionaries(st.text(), st.text() | st.lists(st.text(alphabet='a\\"\x0b\x1c\x85\u2028\u2029\n\r')))


@given(VALUES)
def test_a_value_is_one_line_whatever_texts_it_has(value: dict[str, Any]) -> None:
    text = json_lines.line(value).decode()
    assert len(text.splitlines()) == 1 and text.endswith("\n")
    assert json.loads(text) == value


def test_a_byte_order_mark_of_utf_8_is_skipped_and_others_are_named() -> None:
    assert json_lines.read(json.dumps({"a": "\ufeff"}).encode("utf-8-sig")) == {"a": "\ufeff"}
    assert json_lines.is_blank(" \r\n".encode("utf-8-sig")) and not json_lines.is_blank(b"\xef\xbb\xbf0")
    names = {
        encoding: json_lines.other_encoding("{}".encode(encoding)) for encoding in ("utf-8-sig", "utf-16", "utf-32")
    }
    assert names == {"utf-8-sig": None, "utf-16": "UTF-16", "utf-32": "UTF-32"}


def test_what_is_no_json_is_written_as_it_is_told() -> None:
    assert json_lines.line({"a": 1j}, str) == b'{"a":"1j"}\n'


def test_output_lines_are_one_line_whatever_an_engine_answers() -> None:
    body = json.dumps({"choices": [{"text": "one\u2028two\x85three"}]}, ensure_ascii=False).encode()
    lines = [
        output_lines.line("a\u2029", 200, body, None),
        output_lines.line("a", None, None, {"code": "x", "message": "\u2028"}),
        output_lines.invalid(1, "\x85", {"code": "x"}),
        *output_lines.unanswered([1], ["\u2028"], "x", "y"),
    ]
    assert [len(line.splitlines()) for line in lines] == [1, 1, 1, 1]
    assert json.loads(lines[0])["response"]["body"]["choices"][0]["text"] == "one\u2028two\x85three"
