"""Requests through the pipeline to an engine on Ray, as segments send them."""

from __future__ import annotations

from typing import Any

from batchyard.models import ModelSpec
from inference import pipeline
from inference.residents.session import EngineTimeouts
from tests.support.rows import answer_of, table

TIMEOUTS = EngineTimeouts(request_timeout=180.0, start_timeout=480.0, idle_seconds=600.0)


def responses(spec: ModelSpec, endpoint: str, bodies: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the responses to requests in their order. The engine stays."""
    by_line = {
        row["line"]: answer_of(row)["response"]
        for answers in pipeline.run(spec, endpoint, table(bodies), TIMEOUTS)
        for row in answers.to_pylist()
    }
    return [by_line[line] for line in range(len(bodies))]
