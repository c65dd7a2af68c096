"""Traces of live requests: the span of each that its client samples, and of a share of those that say nothing."""

import time
from collections.abc import Mapping

from batchyard.models import ModelSpec
from batchyard.telemetry import requests, spans, traceparents
from batchyard.telemetry.spans import Span


def of_request(headers: Mapping[str, str], endpoint: str, spec: ModelSpec, arrived: float, share: float) -> Span:
    """Return the span of a request that arrived at `arrived` (time.monotonic()), below that of its `traceparent`."""
    if not spans.enabled():
        return spans.OFF
    parent = traceparents.of_header(headers.get("traceparent"))
    if parent is None and not spans.picked(1, share):
        return spans.OFF
    span = spans.span(requests.name(endpoint, spec.name), parent, "server", seconds_ago=time.monotonic() - arrived)
    span.set(requests.attributes(endpoint, spec.name, spec.engine))
    return span
