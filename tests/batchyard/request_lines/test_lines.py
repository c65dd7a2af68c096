"""Lines of a request file: what is a JSON object, and what a refusal says."""

from __future__ import annotations

import bz2
import gzip
import json
from collections.abc import Callable

import pytest

from batchyard.request_lines import lines


@pytest.mark.parametrize(
    "line",
    [
        b'{"a": "\\u003a"}',
        b'{"a": "\\\\u003a", "b": ":::"}',
        b'{"a:\\u003A": {"a:": 1}, "a": [{"a": 1}, {"a": 1}]}',
        b'{"\\u00e9\\u0000": 1e5, "x" : -1.5}',
    ],
)
def test_keys_that_only_look_repeated_are_none(line: bytes) -> None:
    assert lines.parse(1, line) == json.loads(line)


@pytest.mark.parametrize("name", ["body", "metadata"])
def test_a_line_is_at_most_254_levels_deep_wherever_it_nests(name: str) -> None:
    def line(depth: int) -> bytes:
        return f'{{"{name}": {"[" * depth}1{"]" * depth}}}'.encode()

    lines.parse(1, line(253))
    with pytest.raises(lines.LineError) as error:
        lines.parse(1, line(254))
    assert "254 levels" in error.value.message


@pytest.mark.parametrize(
    ("line", "says"),
    [
        (b'{"custom_id": "caf\xe9"}', "byte 19 is not UTF-8"),
        (b'{"a": 1}\r{"a": 2}', "a carriage return alone does not end it"),
        (b"[1]", "valid JSON but not an object"),
        (b'{"a": {"b": 1, "b": 2}}', "The key 'b' is repeated"),
        (b'{"a": NaN}', "NaN"),
    ],
)
def test_a_line_that_is_no_object_is_told_what_is_wrong(line: bytes, says: str) -> None:
    with pytest.raises(lines.LineError) as error:
        lines.parse(2, line)
    assert (error.value.code, says in error.value.message) == ("invalid_json_line", True)


@pytest.mark.parametrize("mark", [b"\xff\xfe", b"\xfe\xff"])
def test_a_file_that_starts_with_the_mark_of_another_encoding_is_told_how_to_save_it(mark: bytes) -> None:
    with pytest.raises(lines.LineError, match="the file is UTF-16; save it as UTF-8"):
        lines.parse(1, mark + b"{}")


@pytest.mark.parametrize(("compress", "name"), [(gzip.compress, "gzip"), (bz2.compress, "bz2")])
def test_a_file_that_is_compressed_is_said_to_be(compress: Callable[[bytes], bytes], name: str) -> None:
    with pytest.raises(lines.LineError, match=f"This is {name} data; send it decompressed, or the file to POST /start"):
        lines.parse(1, compress(b"{}"))


def test_a_line_after_the_byte_order_mark_of_utf_8_is_read_without_it() -> None:
    assert lines.parse_with_body(1, b'\xef\xbb\xbf{"body": {"a": 1}}') == ({"body": {"a": 1}}, b'{"a":1}')
    assert lines.custom_id(b'\xef\xbb\xbf{"custom_id": "a"}') == "a"


def test_a_body_keeps_the_clients_order_of_keys_and_no_blanks() -> None:
    request, body = lines.parse_with_body(1, b'{"custom_id": "a", "body": {"z": 1, "a": [1.50, "x: y"]}}')
    assert (request["custom_id"], body) == ("a", b'{"z":1,"a":[1.5,"x: y"]}')


@pytest.mark.parametrize(
    ("line", "custom_id"),
    [
        (b'{"custom_id": "a", "body": NaN}', "a"),
        (b'{"custom_id": "a", "custom_id": "b"}', "b"),
        (b'{"custom_id": 5}', None),
        (b'{"custom_id": "\\ud800"}', None),
        (b"[" * 10_000, None),
        (b"[]", None),
    ],
)
def test_of_a_line_that_is_refused_the_id_is_told_if_it_can_be_read(line: bytes, custom_id: str | None) -> None:
    assert lines.custom_id(line) == custom_id
