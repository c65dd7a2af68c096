"""Spans: written when their block ends. Without OTEL_* variables a span is one shared object that does nothing."""

from __future__ import annotations

import logging
import os
import random
import secrets
import threading
import time
from collections.abc import Mapping
from contextvars import ContextVar, Token
from types import TracebackType
from typing import TYPE_CHECKING, Literal, NamedTuple

from batchyard.telemetry import environment
from batchyard.telemetry.traceparents import TraceParent

if TYPE_CHECKING:
    from batchyard.telemetry.exporting import SpanExport

Value = str | int | float | bool | list[str]
Kind = Literal["internal", "client", "server"]
FLUSH_SECONDS = 2.0
"""A process that ends waits so long for a collector to take its last spans."""

log = logging.getLogger(__name__)


class EndedSpan(NamedTuple):
    """A span as it is sent. Times are in nanoseconds since 1970; `error` is the kind of a failure."""

    name: str
    place: TraceParent
    parent: TraceParent | None
    start: int
    end: int
    attributes: dict[str, Value]
    error: str | None = None
    kind: Kind = "internal"


_sends = environment.wanted(os.environ) and environment.problem(os.environ) is None
_building = threading.Lock()
_export: SpanExport | None = None


def enabled() -> bool:
    return _sends


def prepare() -> None:
    """Say once why no spans are sent though they are wanted, else import what sends them. It starts no thread."""
    problem = environment.problem(os.environ)
    if problem is not None:
        log.warning(problem)
    if _sends:
        from batchyard.telemetry import exporting  # noqa: F401


def flush() -> None:
    """Send what there is before this process ends, within FLUSH_SECONDS."""
    if _export is not None:
        # The SDK's own limit does not hold for a collector that hangs.
        thread = threading.Thread(target=_export.flush, name="flush", daemon=True)
        thread.start()
        thread.join(FLUSH_SECONDS)


def write(span: EndedSpan) -> None:
    """Send a span soon, if this process sends any. It never waits: a full queue drops spans.

    The first call starts the thread that sends them, so it comes after any fork.
    """
    global _export
    if not _sends:
        return
    with _building:
        if _export is None:
            from batchyard.telemetry.exporting import SpanExport

            _export = SpanExport()
    _export.send(span)


class Span:
    """A span of the block that it is used with. An exception that leaves the block fails it."""

    def __init__(
        self,
        name: str = "",
        place: TraceParent | None = None,
        parent: TraceParent | None = None,
        kind: Kind = "internal",
        seconds_ago: float = 0.0,
    ) -> None:
        self.place = place
        self._name, self._parent, self._kind = name, parent, kind
        self._start = time.time_ns() - int(1e9 * seconds_ago)
        self._attributes: dict[str, Value] = {}
        self._error: str | None = None
        self._token: Token[TraceParent | None] | None = None

    def set(self, attributes: Mapping[str, Value | None]) -> None:
        """Add attributes; those that are None say nothing."""
        if self.place is not None:
            self._attributes |= {name: value for name, value in attributes.items() if value is not None}

    def fail(self, error: BaseException | str) -> None:
        """Fail the span. Only the kind of the error is sent: its message may quote what it is about."""
        if self.place is not None:
            self._error = error if isinstance(error, str) else type(error).__name__

    def __enter__(self) -> Span:
        if self.place is not None:
            self._token = _current.set(self.place)
        return self

    def __exit__(
        self, _type: type[BaseException] | None, error: BaseException | None, _traceback: TracebackType | None
    ) -> None:
        if self.place is None or self._token is None:
            return
        _current.reset(self._token)
        if error is not None:
            self.fail(error)
        times = (self._start, time.time_ns())
        write(EndedSpan(self._name, self.place, self._parent, *times, self._attributes, self._error, self._kind))


OFF = Span()
"""The span that is never written."""
_current: ContextVar[TraceParent | None] = ContextVar("span", default=None)


def span(name: str, parent: TraceParent | None, kind: Kind = "internal", *, seconds_ago: float = 0.0) -> Span:
    """Return a span below `parent`, which began `seconds_ago`; None for one that begins a trace."""
    if not _sends:
        return OFF
    place = TraceParent(secrets.randbits(128) or 1, secrets.randbits(64) or 1) if parent is None else child(parent)
    return Span(name, place, parent, kind, seconds_ago)


def current() -> TraceParent | None:
    """Return the span of the block that this thread is in; None without one."""
    return _current.get()


def child(parent: TraceParent) -> TraceParent:
    """Return the place of a new span below `parent`."""
    return parent._replace(span_id=secrets.randbits(64) or 1)


def picked(number: int, share: float) -> list[int]:
    """Return which of `number` requests get a span: each with this probability."""
    return [index for index in range(number) if random.random() < share]
