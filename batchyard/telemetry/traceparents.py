"""Trace parents: the place of a span in a trace, as W3C's header `traceparent` has it.

The place of a batch's or job's own span follows from its id, so every process knows it, also after a kill.
"""

import hashlib
import re
from typing import NamedTuple

_HEADER = re.compile(r"(?!ff)([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(?:-.*)?")


class TraceParent(NamedTuple):
    """A span that others may have as their parent."""

    trace_id: int
    span_id: int
    # As the trace's beginner has decided; None in a trace of our own, where OTEL_TRACES_SAMPLER decides
    sampled: bool | None = None

    def __str__(self) -> str:
        """Return the header; without its flags, as only our records have it, if the sampler decides."""
        flags = "" if self.sampled is None else f"-{int(self.sampled):02x}"
        return f"00-{self.trace_id:032x}-{self.span_id:016x}{flags}"


def of_header(header: str | None) -> TraceParent | None:
    """Return what a client's `traceparent` says; None without a valid one."""
    match = _HEADER.fullmatch(header or "")
    if match is None or (match[1] == "00" and header and len(header) != 55):
        return None
    trace_id, span_id = int(match[2], 16), int(match[3], 16)
    return TraceParent(trace_id, span_id, bool(int(match[4], 16) & 1)) if trace_id and span_id else None


def stored(text: str | None) -> TraceParent | None:
    """Return the trace parent that a record has as a text."""
    if text is None:
        return None
    _, trace_id, span_id, *flags = text.split("-")
    return TraceParent(int(trace_id, 16), int(span_id, 16), flags[0] == "01" if flags else None)


def of_work(work_id: str, parent: str | None) -> TraceParent:
    """Return the span of a batch or a job. `parent`: the text of its record; None if it begins a trace."""
    digest = hashlib.sha256(work_id.encode()).digest()
    above = stored(parent)
    own = TraceParent(int.from_bytes(digest[:16]), int.from_bytes(digest[16:24]))
    return own if above is None else above._replace(span_id=own.span_id)
