"""Replies: an engine's answers as its actor gives them to callers. Those of simulated engines are marked."""

from __future__ import annotations

import logging
import time
from dataclasses import replace
from typing import Any, NamedTuple

import orjson

from batchyard import json_lines
from batchyard.endpoints import responses, vectors
from batchyard.errors import EngineDied
from batchyard.wording import MAX_MESSAGE, cut
from inference.engine import Engine, EngineAnswer

ENGINE_DIED = "engine_died"
"""The error code of a request that was in the engine when it died."""
MOST_TOKENS = 2**40
"""More of one answer are no count: sums of them would not fit into the columns they are stored in."""
_DATA = b"data: "

log = logging.getLogger(__name__)


class EngineReply(NamedTuple):
    """The reply to one request: its EngineAnswer as JSON, its tokens, its engine seconds.

    Embeddings that were set aside from the body (batchyard.endpoints.vectors) are in `vectors`. Tokens are those of
    the engine's usage; 0 unless the status is 200. A body that is no answer (`responses.fault`) is none whatever its
    status.
    """

    status_code: int | None
    body: bytes | None
    error: dict[str, str] | None
    input_tokens: int = 0
    cached_tokens: int = 0
    output_tokens: int = 0
    seconds: float = 0.0
    reasoning_tokens: int = 0
    served_model: str | None = None
    vectors: bytes | None = None

    @classmethod
    def of(cls, answer: EngineAnswer, seconds: float, *, apart: bool = False) -> EngineReply:
        """Return the reply with an answer, its embeddings `apart` or not. Raises TypeError for no JSON."""
        error = None if answer.error is None else {name: _text(value) for name, value in answer.error.items()}
        if answer.body is None:
            return cls(answer.status_code, None, error, seconds=seconds)
        is_apart = apart and answer.status_code == 200
        content, arrays = vectors.set_aside(answer.body) if is_apart else (answer.body, None)
        body = json_lines.dumps(content, option=orjson.OPT_SERIALIZE_NUMPY | orjson.OPT_NON_STR_KEYS)
        if answer.status_code != 200:
            return cls(answer.status_code, body, error, seconds=seconds)
        fault = responses.fault(answer.body)
        if fault is not None:
            return cls.failed("invalid_response", f"the engine's answer cannot be used: {fault.message}", seconds)
        usage, served = responses.usage(answer.body), responses.served_model(answer.body)
        return cls(
            200,
            body,
            None,
            _counted(usage.input_tokens),
            _counted(usage.cached_tokens),
            _counted(usage.output_tokens),
            seconds,
            _counted(usage.reasoning_tokens),
            None if served is None else _text(served),
            arrays,
        )

    @classmethod
    def failed(cls, code: str, message: str, seconds: float = 0.0) -> EngineReply:
        """Return the reply to a request that has no response."""
        return cls.of(EngineAnswer.failed(code, message), seconds)

    @property
    def death(self) -> str | None:
        """Why the engine died with this request in it; None if it did not."""
        return self.error["message"] if self.error is not None and self.error["code"] == ENGINE_DIED else None


CLOSED = EngineReply(None, None, {"code": "session_closed", "message": "the session was closed"})
"""Instead of a reply: the request did not enter the engine, since its session is closed."""

LineReply = tuple[int, EngineReply | None]
"""The reply to the request of a line. None: the engine is over, and the request never entered it."""


async def replied(engine: Engine, endpoint: str, request: dict[str, Any], *, apart: bool = False) -> EngineReply:
    """Return an engine's reply to a request; `apart` is as for `EngineReply.of`."""
    began = time.monotonic()
    try:
        answer = await engine.answer(endpoint, request)
        reply = EngineReply.of(marked(answer, engine), time.monotonic() - began, apart=apart)
    except Exception as error:  # noqa: BLE001  one answer that cannot be read is this request's failure alone
        reply = EngineReply.failed(*fault_of(engine, error), time.monotonic() - began)
    engine.answered_at = time.monotonic()
    return reply


def fault_of(engine: Engine, error: Exception) -> tuple[str, str]:
    """Return the code and the message of a request whose answer an engine has not given, or not as JSON."""
    if isinstance(error, EngineDied):
        return ENGINE_DIED, error.message
    # Its message may quote the prompt, so it goes to the client and not into the log.
    log.error("an answer failed", extra={"model": engine.spec.name, "error": type(error).__name__})
    reason = cut(f"{type(error).__name__}: {error}", MAX_MESSAGE)
    return "engine_error", f"the engine's answer to this request could not be read: {reason}"


def marked(answer: EngineAnswer, engine: Engine) -> EngineAnswer:
    """Return the answer; that of a simulated engine, or one that repeats itself, is marked in its response body."""
    if answer.status_code != 200 or answer.body is None:
        return answer
    body = responses.explained(answer.body)
    return replace(answer, body=body | {"simulated": True} if type(engine).simulated else body)


def marked_events(events: bytes) -> bytes:
    """Return server-sent events of a simulated engine with each object marked."""
    lines = events.split(b"\n")
    for number, line in enumerate(lines):
        if line.startswith(_DATA + b"{"):
            lines[number] = _DATA + json_lines.dumps({**json_lines.loads(line[len(_DATA) :]), "simulated": True})
    return b"\n".join(lines)


def marked_versions(engine: Engine) -> dict[str, str]:
    """Return the engine's versions; of a simulated one marked, and without a hash of weights.

    They are plain text: that of torch is of a class of torch, and whoever unpickled it would import all of that.
    """
    versions = {key: str(value) for key, value in engine.versions().items()}
    if not type(engine).simulated:
        return versions
    return {key: value for key, value in versions.items() if key != "model_sha256"} | {"simulated": "true"}


def packed(replies: list[LineReply]) -> list[tuple[int, tuple[Any, ...] | None]]:
    """Return the replies as plain tuples, which Ray pickles ten times as fast. See `unpacked`."""
    return [(line, None if reply is None else tuple(reply)) for line, reply in replies]


def unpacked(replies: list[tuple[int, tuple[Any, ...] | None]]) -> list[LineReply]:
    """Return the replies that were packed."""
    return [(line, None if reply is None else EngineReply._make(reply)) for line, reply in replies]


def _text(value: Any) -> str:
    """Return the value as text that UTF-8 can have."""
    return str(value).encode(errors="replace").decode()


def _counted(tokens: int | None) -> int:
    """Return a number of tokens; 0 if the engine gives none, or more than there can be."""
    return tokens if tokens is not None and tokens <= MOST_TOKENS else 0
