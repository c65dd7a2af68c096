"""A value is one line of JSON for every reader, and the same value."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import orjson
import pytest
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


LONG = [-(2**63) - 1, -(2**63), 2**63, 2**64 - 1, 2**64, 123456789012345678901234]


@pytest.mark.parametrize("number", LONG)
@pytest.mark.parametrize("before", range(0, 20, 3))
def test_integers_of_any_size_are_read_and_written_as_they_are(number: int, before: int) -> None:
    text = json.dumps({"x" * before: [{"id": number, "share": 0.00012345678901234567}]})
    for raw in (text, text.encode()):
        value = json_lines.loads(raw)
        assert value == json.loads(text) and type(value["x" * before][0]["id"]) is int
    assert json.loads(json_lines.line(value)) == value
    assert json_lines.dumps(value, option=orjson.OPT_SORT_KEYS) == text.replace(" ", "").encode()


@given(
    st.recursive(st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text("0123456789.e-x"), st.lists)
)
def test_every_number_is_the_one_that_python_reads(value: Any) -> None:
    assert json_lines.loads(json.dumps(value)) == value
    assert json.loads(json_lines.dumps(value)) == value


def test_digits_behind_a_point_do_not_make_a_text_slow() -> None:
    text = json.dumps([0.00012345678901234567, -1234.000012345678901234567, "0.0000000000000000001"])
    assert not json_lines._has_long_integer(text.encode())


@pytest.mark.parametrize("raw", [b"9" * 400, b"-" + b"9" * 5000, b"[" * 1010 + b"9" * 20 + b"]" * 1010])
def test_what_cannot_be_read_whole_is_refused(raw: bytes) -> None:
    with pytest.raises(orjson.JSONDecodeError, match=r"infinity|nested"):
        json_lines.loads(raw)


WITHOUT_IT = ("batchyard/json_lines.py", "webapp/access/audit_log.py", "webapp/gateway/errors.py")


def test_no_other_module_reads_or_writes_json_with_orjson_itself() -> None:
    root = Path(__file__).parents[2]
    packages = ("batchyard", "webapp", "tasks", "results", "recipes", "inference", "store")
    modules = [file for package in packages for file in (root / package).rglob("*.py")]
    users = {
        str(file.relative_to(root)) for file in modules if re.search(r"\borjson\.(loads|dumps)\b", file.read_text())
    }
    assert len(modules) > 500 and users <= {*WITHOUT_IT}
