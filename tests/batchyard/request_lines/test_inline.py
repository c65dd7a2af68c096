"""Inline requests become lines as they stand, however the body is cut into pieces."""

from __future__ import annotations

import io
import json
from collections.abc import Mapping
from typing import Any
from unittest import mock

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from batchyard.errors import RequestError, TooLargeError
from batchyard.request_lines import inline
from batchyard.request_lines.inline import InlineBody


class Pieces(io.RawIOBase):
    """A body that arrives in pieces of `size` bytes, whatever is asked for."""

    def __init__(self, raw: bytes, size: int) -> None:
        self._rest, self._size = io.BytesIO(raw), size
        self.most = 0

    def read(self, size: int = -1) -> bytes:
        self.most = max(self.most, size)
        return self._rest.read(min(size, self._size))


def windows(size: int) -> Any:
    """Let the reader look at so many bytes at a time, so that any value is cut anywhere."""
    return mock.patch.object(inline, "_CHUNK_BYTES", size)


def as_it_is(_place: str, request: Mapping[str, bytes]) -> Mapping[str, bytes]:
    return request


def read(raw: bytes, size: int = 1 << 20, **limits: int) -> tuple[list[bytes], dict[str, Any]]:
    defaults = {"max_requests": 100, "max_request_bytes": 1000, "max_rest_bytes": 1000}
    body = InlineBody(Pieces(raw, size), **defaults | limits)
    return list(body.lines(as_it_is)), body.rest


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=6,
)


@settings(max_examples=50)
@given(
    requests=st.lists(st.dictionaries(st.text(max_size=8), JSON, max_size=3), max_size=4),
    rest=st.dictionaries(st.text(), JSON, max_size=3),
    indent=st.sampled_from([None, 0, 40]),
    ascii_only=st.booleans(),
    size=st.integers(1, 64),
    before=st.booleans(),
)
def test_a_body_in_any_pieces_has_the_requests_and_the_rest_that_it_has_as_a_whole(
    requests: list[Any], rest: dict[str, Any], indent: int | None, ascii_only: bool, size: int, before: bool
) -> None:
    rest.pop("requests", None)
    rest = json.loads(json.dumps(rest, default=str))
    rest = {key: value for key, value in rest.items() if abs(_largest(value)) < 2**63}
    values = {**rest, "requests": requests} if before else {"requests": requests, **rest}
    raw = json.dumps(values, indent=indent, ensure_ascii=ascii_only).encode()
    with windows(size):
        lines, others = read(raw, max_request_bytes=1 << 20, max_rest_bytes=1 << 20)
    assert [json.loads(line) for line in lines] == requests
    assert others == rest
    assert all(line.endswith(b"\n") and line.count(b"\n") == 1 and b"\r" not in line for line in lines)


def _largest(value: Any) -> float:
    if isinstance(value, dict | list):
        return max(map(_largest, value.values() if isinstance(value, dict) else value), key=abs, default=0)
    return value if isinstance(value, int) else 0


def test_a_request_stays_as_it_is_written() -> None:
    written = (
        b'{"id":"a","body":{"x":1.0,"y":1e5,"x":-0,"z":"\\ud800 \\u00e9 \xc3\xa9","n":NaN,"big":' + b"9" * 5000 + b"}}"
    )
    lines, _ = read(b'{"requests":[' + written + b"]}", max_request_bytes=10_000)
    assert lines == [written + b"\n"]


def test_keys_may_stand_before_and_behind_the_requests() -> None:
    lines, rest = read(b'{"endpoint": "/v1/x", "requests": [{"a": 1}], "metadata": {"b": "c"}}')
    assert (lines, rest) == ([b'{"a":1}\n'], {"endpoint": "/v1/x", "metadata": {"b": "c"}})


@pytest.mark.parametrize(
    "raw", [b"{}", b'{"requests": null}', b'{"requests": [ ]}', b' {"requests":[]}\r\n', b"\xef\xbb\xbf{}"]
)
def test_a_body_may_have_no_requests(raw: bytes) -> None:
    assert read(raw) == ([], {})


@pytest.mark.parametrize(
    ("raw", "message"),
    [
        (b"", "not valid JSON at character 1: it is empty"),
        (b"[]", "The body must be an object"),
        (b'"requests"', "The body must be an object"),
        (b'{"requests": {}}', "'requests' must be a list"),
        (b'{"requests": [{}, 1]}', "'requests.1' (request 2) must be an object"),
        (b'{"requests": [{"a": 1}', "character 23: expected ',' or ']'"),
        (b'{"requests": [{"a": 1},]}', "'requests.1' (request 2) must be an object"),
        (b'{"requests": [{"a": 1,}]}', "character 23: a key in quotes is missing"),
        (b'{"requests": [{"a": 1, "a": 2}]}', "the key 'a' is repeated in one object"),
        (b'{"requests": [], "requests": []}', "the key 'requests' is repeated in one object"),
        (b'{"requests": [{"a": 1 2}]}', "character 22: a comma or a bracket is missing"),
        (b'{"requests": [{"a": "\n"}]}', "character 22: Invalid control character at"),
        (b'{"requests": [{"a": [1,}]}', "character 24: Expecting value"),
        (b'{"requests": [{"a": "\xff"}]}', "character 22: it is not UTF-8"),
        (b'{"requests": [{"a": "unended}]}', "character 21: Unterminated string starting at"),
        (b'{"requests": [{"a": ' + b"[" * 100_000, "it is nested too deep"),
        (b'{"a": NaN}', "The value of 'a' is not valid JSON"),
        (b'{"\\ud800": 1}', "not valid JSON at character"),
        (b'{"a": 1} {}', "character 10: something follows its last bracket"),
    ],
)
def test_a_body_that_is_not_valid_is_refused_with_the_place(raw: bytes, message: str) -> None:
    with pytest.raises(RequestError) as refused:
        read(raw, max_request_bytes=1 << 20)
    assert message in refused.value.message


def test_what_line_refuses_is_refused() -> None:
    def refuse(place: str, _request: Mapping[str, bytes]) -> Mapping[str, bytes]:
        raise RequestError(f"{place} is wrong")

    body = InlineBody(io.BytesIO(b'{"requests": [{}]}'), max_requests=1, max_request_bytes=100, max_rest_bytes=100)
    with pytest.raises(RequestError, match=r"requests\.0 is wrong"):
        list(body.lines(refuse))


@pytest.mark.parametrize(
    ("raw", "message"),
    [
        (b'{"requests": [' + b"{}," * 100 + b"{}]}", "more than 100 requests"),
        (b'{"requests": [{"a": "' + b"a" * 4_000_000 + b'"}]}', "longer than 1000 bytes"),
        (b'{"a": "' + b"a" * 1500 + b'"}', "more than 1000 bytes beside 'requests'"),
        (b'{"' + b"a" * 4_000_000 + b'": 1}', "longer than 1000 bytes"),
    ],
)
def test_a_body_has_limits(raw: bytes, message: str) -> None:
    with pytest.raises(TooLargeError, match=message):
        read(raw)


def test_a_long_request_in_small_pieces_is_not_decoded_again_for_each() -> None:
    with mock.patch.object(inline, "_DECODER", mock.Mock(wraps=inline._DECODER)) as decoder:
        read(b'{"requests": [{"a": "' + b"a" * 4_000_000 + b'"}]}', 1000, max_request_bytes=5_000_000)
    assert decoder.raw_decode.call_count < 20


def test_no_more_is_read_than_a_value_needs() -> None:
    source = Pieces(b'{"requests": [' + b",".join([b'{"a": "%s"}' % (b"a" * 900)] * 5000) + b"]}", 1 << 30)
    body = InlineBody(source, max_requests=5000, max_request_bytes=1000, max_rest_bytes=1000)
    assert sum(1 for _ in body.lines(as_it_is)) == 5000
    assert source.most <= 512 * 1024
