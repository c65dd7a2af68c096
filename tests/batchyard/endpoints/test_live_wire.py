"""The wire between the gateway and engines."""

from __future__ import annotations

import resource

import orjson
import pytest

from batchyard.endpoints.live_wire import REPORT_COMMENT, allow_connections, split_report


@pytest.mark.parametrize("before", [b"", b"data: [DONE]\n\n"])
def test_a_report_is_taken_off_the_end_of_a_stream(before: bytes) -> None:
    piece = before + REPORT_COMMENT + orjson.dumps({"output_tokens": 3}) + b"\n\n"
    assert split_report(piece) == (before, {"output_tokens": 3})


@pytest.mark.parametrize(
    "piece", [b"data: {}\n\n", b'data: {"text": "a: batchyard {}"}\n\n', b"", b": batchyard no json\n\n"]
)
def test_what_is_no_report_is_passed_on(piece: bytes) -> None:
    assert split_report(piece) == (piece, None)


def test_a_process_may_have_as_many_connections_as_the_machine_lets_it() -> None:
    before, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (256, most))
        allow_connections()
        assert resource.getrlimit(resource.RLIMIT_NOFILE) == (most, most)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (before, most))
