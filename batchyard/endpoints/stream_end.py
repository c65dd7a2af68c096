"""Ends of streams: whether the events of a streamed answer were the whole answer."""

from collections.abc import Mapping
from typing import Any

import orjson

from batchyard import json_lines
from batchyard.endpoints import responses
from batchyard.errors import EngineError

ENDED_EARLY = "the answer ended before its end"
_LAST = ("response.completed", "response.incomplete", "message_stop")
_FAILED = ("error", "response.failed")


def expected_outputs(request: Mapping[str, Any]) -> int:
    """Return how many choices a request asks for."""
    prompts, samples = request.get("prompt"), request.get("n")
    several = isinstance(prompts, list) and not all(isinstance(token, int) for token in prompts)
    return (len(prompts) if several and prompts else 1) * (samples if isinstance(samples, int) else 1)


class StreamEnd:
    """Reads the events of a stream, and tells whether the answer is whole.

    A connection that is closed in good order proves nothing: a dying server or a proxy closes it so in the middle of an
    answer. An answer is whole when each output has a finish reason, or after the last event of its endpoint.
    """

    def __init__(self, request: Mapping[str, Any]) -> None:
        self._outputs = expected_outputs(request)
        self._finished: set[Any] = set()
        self._is_done = False
        self.is_whole = False

    @property
    def lacks_done(self) -> bool:
        """True if choices have ended and no `[DONE]` came, as `transformers serve` does."""
        return bool(self._finished) and not self._is_done

    def read(self, events: bytes) -> None:
        """Read events as they are sent. Raises EngineError as `note` does."""
        for line in events.split(b"\n"):
            if line.startswith(b"data:"):
                self.note_data(line[5:].strip())

    def note_data(self, data: str | bytes) -> Any:
        """Note the data of an event, and return its value; None for `[DONE]` and for what is no JSON."""
        if data in ("[DONE]", b"[DONE]"):
            self.is_whole = self._is_done = True
            return None
        try:
            value = json_lines.loads(data)
        except orjson.JSONDecodeError:
            return None
        if isinstance(value, dict):
            self.note(value)
        return value

    def note(self, event: Mapping[str, Any]) -> None:
        """Note an event."""
        fault = None
        if event.get("error"):
            fault = responses.fault(event)
        elif event.get("type") in _FAILED:
            fault = responses.fault({"error": event.get("response", {}).get("error") or event})
        choices = event.get("choices")
        for choice in choices if isinstance(choices, list) else ():
            reason = choice.get("finish_reason") if isinstance(choice, Mapping) else None
            if reason in responses.BROKEN_OFF:
                fault = responses.Fault(f"it ended with finish_reason {reason}", error=choice.get("error") or {})
            elif reason:
                self._finished.add(choice.get("index"))
        if fault is not None:
            code = fault.error.get("code")
            raise EngineError(fault.message.removesuffix("."), code=code if isinstance(code, str) else "engine_error")
        self.is_whole = self.is_whole or event.get("type") in _LAST or len(self._finished) >= self._outputs
