"""A stream is whole when its events say so, and not when its connection ends."""

from __future__ import annotations

from typing import Any

import orjson
import pytest

from batchyard.endpoints.stream_end import StreamEnd
from batchyard.errors import EngineError

PIECE = {"choices": [{"index": 0, "delta": {"content": "a"}, "finish_reason": None}]}


def last(index: int = 0, reason: str = "stop") -> dict[str, Any]:
    return {"choices": [{"index": index, "delta": {}, "finish_reason": reason}]}


def whole(request: dict[str, Any], *events: dict[str, Any] | str) -> bool:
    end = StreamEnd(request)
    for event in events:
        end.read(b"data: " + (event.encode() if isinstance(event, str) else orjson.dumps(event)) + b"\n\n")
    return end.is_whole


@pytest.mark.parametrize(
    "events", [(last(),), ("[DONE]",), ({"type": "response.incomplete"},), ({"type": "message_stop"},)]
)
def test_the_last_event_of_each_endpoint_ends_an_answer(events: tuple[Any, ...]) -> None:
    assert not whole({}, PIECE)
    assert whole({}, PIECE, *events)


@pytest.mark.parametrize("request_", [{"n": 2}, {"prompt": ["a", "b"]}, {"prompt": [[1], [2]], "n": 1}])
def test_an_answer_of_several_outputs_is_whole_with_the_last_of_them(request_: dict[str, Any]) -> None:
    assert not whole(request_, PIECE, last(0))
    assert whole(request_, PIECE, last(0), last(1, "length"))
    assert whole({"prompt": [1, 2]}, last(0))


@pytest.mark.parametrize(
    "event",
    [
        {"error": {"message": "overloaded.", "code": 503}},
        {"type": "error", "message": "overloaded", "code": None, "param": None},
        {"type": "error", "error": {"type": "api_error", "message": "overloaded"}},
        {"type": "response.failed", "response": {"error": {"code": "server_error", "message": "overloaded"}}},
        {"choices": [{"index": 0, "finish_reason": "error", "error": {"message": "overloaded"}}]},
    ],
)
def test_an_error_in_a_stream_is_raised_and_no_done_behind_it_helps(event: dict[str, Any]) -> None:
    with pytest.raises(EngineError, match=r"overloaded$|finish_reason error$"):
        whole({}, PIECE, event, "[DONE]")
