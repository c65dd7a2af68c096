"""An engine's side of a segment that a test directs."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from typing import Any

import pyarrow as pa
import pytest

from tests.support import planned


class DirectedEngine:
    """Stands where `inference.pipeline` stands: answers what it gets, or does what a test puts in its place."""

    def __init__(self) -> None:
        self.versions: dict[str, str] = {"engine": "echo", "version": "1"}
        self.lines: list[int] = []
        """Lines of the requests it was sent."""
        self.starts: Callable[[], None] = lambda: None
        self.run: Callable[[list[int]], Iterator[pa.Table]] = lambda lines: iter([planned.answers(lines)])

    def engine_versions(self, *_: Any, **__: Any) -> dict[str, str]:
        self.starts()
        return self.versions

    def answer(self, _spec: Any, _endpoint: str, rows: pa.Table, **_: Any) -> Generator[pa.Table]:
        lines = rows["line"].to_pylist()
        self.lines += lines
        if lines:
            yield from self.run(lines)


@pytest.fixture
def engine(monkeypatch: pytest.MonkeyPatch) -> DirectedEngine:
    """No Ray cluster and no engine is started: only the segment's own part is tested."""
    from inference import pipeline
    from inference.ray import cluster
    from inference.residents import directory

    engine = DirectedEngine()
    monkeypatch.setattr(cluster, "connect", lambda _address: None)
    monkeypatch.setattr(directory, "states", lambda **_: {})
    monkeypatch.setattr(pipeline, "engine_versions", engine.engine_versions)
    monkeypatch.setattr(pipeline, "run", engine.answer)
    return engine
