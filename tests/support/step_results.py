"""The results of a batch, for tests of steps: rows and an artifact store, and nothing else."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from store.artifacts import Artifacts, ArtifactWriter
from store.formats.results import ResultRow
from store.intake import outputs
from store.intake.outputs import Destination
from store.records import Batch


class BatchResults:
    """The results of a batch, as a step sees them."""

    def __init__(
        self,
        artifacts: Artifacts,
        rows: list[ResultRow],
        databases: Mapping[str, str] | None = None,
        batch_id: str = "batch_1",
    ) -> None:
        self._artifacts = artifacts
        self._rows = rows
        self._databases = databases or {}
        self._batch = Batch(id=batch_id, created_at=0)
        self.added: dict[str, str] = {}

    def rows(self) -> Iterator[ResultRow]:
        return iter(self._rows)

    def create(self) -> ArtifactWriter:
        return self._artifacts.create()

    def output(self, url: str, columns: Mapping[str, str]) -> Destination:
        return outputs.output(url, self._batch, self._databases, columns)

    def add(self, name: str, sha256: str, size: int, lines: int | None = None) -> None:
        self.added[name] = sha256


def a_row(number: int, answer: str | None, expected: str | None, task: str = "sum") -> ResultRow:
    metadata = {"expected": expected, "task": task} if expected is not None else None
    body: dict[str, Any] = {"model": "mini", "metadata": metadata}
    if answer is None:
        return ResultRow(number, f"id-{number}", body, None, None, {"code": "request_timeout", "message": "too long"})
    choice = {"message": {"content": answer}, "finish_reason": "stop"}
    usage = {"prompt_tokens": 5, "completion_tokens": 2}
    return ResultRow(number, f"id-{number}", body, 200, {"choices": [choice], "usage": usage}, None, 0.5)
