"""Request spans: a share of a segment's answers get spans of their own, below the segment's."""

from __future__ import annotations

import time

import pyarrow as pa

from batchyard.endpoints import output_lines
from batchyard.telemetry import requests, spans
from batchyard.telemetry.spans import EndedSpan
from store.segments import SegmentLease


def write(segment: SegmentLease, answers: pa.Table, share: float) -> None:
    """Write spans of this share of answers that an engine has just given."""
    if not spans.enabled() or (parent := spans.current()) is None:
        return
    end, model = time.time_ns(), str(segment.model["name"])
    for index in spans.picked(answers.num_rows, share):
        [row] = answers.slice(index, 1).to_pylist()
        if row["shared"] or row["seconds"] is None:
            continue  # no engine has answered it
        attributes = requests.attributes(segment.endpoint, model, str(segment.model["engine"]))
        attributes |= requests.usage(row) | {"batchyard.line": row["line"]}
        if row["served_model"]:
            attributes["gen_ai.response.model"] = row["served_model"]
        spans.write(
            EndedSpan(
                requests.name(segment.endpoint, model),
                spans.child(parent),
                parent,
                end - int(1e9 * row["seconds"]),
                end,
                attributes,
                None if row["ok"] else output_lines.error_code(row["answer"]),
                "client",
            )
        )
