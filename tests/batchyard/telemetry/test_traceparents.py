"""The place of a span of a batch follows from its id, below what its client has sent."""

from __future__ import annotations

import pytest

from batchyard.telemetry import traceparents
from batchyard.telemetry.traceparents import TraceParent

TRACE, SPAN = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
HEADER = f"00-{TRACE}-{SPAN}-01"


def test_a_header_is_read_as_it_is_written() -> None:
    place = traceparents.of_header(HEADER)
    assert place == TraceParent(int(TRACE, 16), int(SPAN, 16), True)
    assert str(place) == HEADER
    unsampled = traceparents.of_header(HEADER[:-1] + "2")
    assert unsampled is not None and unsampled.sampled is False
    assert traceparents.of_header(f"01-{TRACE}-{SPAN}-01-more") == place, "a later version may add to it"


@pytest.mark.parametrize(
    "header",
    [
        None,
        "",
        HEADER.upper(),
        f"ff{HEADER[2:]}",
        f"{HEADER}-more",
        f"00-{'0' * 32}-{SPAN}-01",
        f"00-{TRACE}-{'0' * 16}-01",
        f"00-{TRACE}-{SPAN}",
        "x" * 10_000,
    ],
)
def test_an_invalid_header_is_none(header: str | None) -> None:
    assert traceparents.of_header(header) is None


def test_every_process_knows_the_place_of_a_batch() -> None:
    own = traceparents.of_work("batch_1", None)
    assert own == traceparents.of_work("batch_1", None) != traceparents.of_work("batch_2", None)
    below = traceparents.of_work("batch_1", HEADER)
    assert (below.trace_id, below.span_id, below.sampled) == (int(TRACE, 16), own.span_id, True)


def test_what_a_record_keeps_leaves_the_decision_to_the_sampler() -> None:
    job = traceparents.of_work("job_1", None)
    text = str(job)
    assert len(text) <= 55, "the column has so many characters"
    stage = traceparents.of_work("batch_1", text)
    assert traceparents.stored(text) == job
    assert (stage.trace_id, stage.sampled) == (job.trace_id, None)
