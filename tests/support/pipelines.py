"""Requests through the pipeline to an engine on Ray, as segments send them."""

from __future__ import annotations

import json
from typing import Any

from batchyard.models import ModelSpec
from inference import pipeline
from inference.residents.session import EngineTimeouts
from tests.support.rows import table

TIMEOUTS = EngineTimeouts(request_timeout=180.0, start_timeout=480.0, idle_seconds=600.0)


def responses(spec: ModelSpec, endpoint: str, bodies: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the responses to requests in their order. The engine stays."""
    by_line = {
        line: json.loads(answer)["response"]
        for answers in pipeline.run(spec, endpoint, table(bodies), TIMEOUTS)
        for line, answer in zip(*(answers.column(name).to_pylist() for name in ("line", "answer")), strict=True)
    }
    return [by_line[line] for line in range(len(bodies))]
