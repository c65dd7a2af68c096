"""Rows for the pipeline and the engines."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable
from typing import Any

import pyarrow as pa

from batchyard.endpoints import vectors
from inference.engine import Engine, EngineAnswer
from tests.support.stacks import PATIENCE


def chat(*texts: str, **parameters: Any) -> list[dict[str, Any]]:
    """Return a chat body for each text."""
    return [{"model": "tiny", "messages": [{"role": "user", "content": text}], **parameters} for text in texts]


def table(bodies: list[dict[str, Any]]) -> pa.Table:
    """Return bodies as the table of rows that `pipeline.run` takes."""
    return pa.table(
        {
            "line": pa.array(range(len(bodies)), pa.int64()),
            "custom_id": [f"row-{index}" for index in range(len(bodies))],
            "body": [json.dumps(body) for body in bodies],
        }
    )


def answer_of(row: dict[str, Any]) -> dict[str, Any]:
    """Return the output line of a row that `pipeline.run` yields, parsed, with its vectors."""
    answer: dict[str, Any] = json.loads(vectors.put_back(row["answer"], row["vectors"]))
    return answer


async def all_answers(engine: Engine, endpoint: str, bodies: list[dict[str, Any]]) -> list[EngineAnswer]:
    """Return an engine's answers to all bodies at once, in their order."""
    return list(await asyncio.gather(*(engine.answer(endpoint, body) for body in bodies)))


def until(condition: Callable[[], bool], seconds: float = 120) -> None:
    """Wait until a condition holds, for `seconds` on a quick machine."""
    deadline = time.monotonic() + PATIENCE * seconds
    while not condition():
        assert time.monotonic() < deadline, "the condition did not come true"
        time.sleep(0.05)
