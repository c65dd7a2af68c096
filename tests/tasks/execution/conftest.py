"""An engine's side of a segment that a test directs."""

from __future__ import annotations

import threading
from collections.abc import Callable, Generator, Iterator
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from batchyard.errors import Stopped
from inference.answers import Death
from tasks import advance
from tasks.execution import segment
from tasks.execution.running import RunningSegments
from tests.support import planned

if TYPE_CHECKING:
    from inference.residents.actor import StartedEngine


class DirectedEngine:
    """Stands where `inference.pipeline` stands: answers what it gets, or does what a test puts in its place."""

    def __init__(self) -> None:
        self.versions: dict[str, str] = {"engine": "echo", "version": "1"}
        self.lines: list[int] = []
        """Lines of the requests it was sent."""
        self.starts: Callable[[], None] = lambda: None
        self.run: Callable[[list[int]], Iterator[pa.Table]] = lambda lines: iter([planned.answers(lines)])
        self.on_death: Callable[[Death], None] = lambda _: None
        """What a run calls with each death."""
        self.closed = threading.Event()
        """Set when the run is to send nothing more."""
        self.hanging = 0
        self.options: dict[str, Any] = {}
        """Those of the last run that only some batches have."""
        self._threads = threading.local()

    def start(self, *_: Any, stopped: threading.Event, **__: Any) -> StartedEngine:
        from inference.residents.actor import StartedEngine

        self._threads.stopped = stopped
        self.starts()
        return StartedEngine(self.versions, in_flight=256)

    def close(self, *_: Any) -> bool:
        self.closed.set()
        return True

    def stop(self) -> None:
        """Stop the segment of this thread."""
        self._threads.stopped.set()

    def hang(self) -> None:
        """Wait as an engine that never answers: until the segment of this thread is stopped."""
        self.hanging += 1
        self.wait_until_stopped()
        raise Stopped

    def wait_until_stopped(self) -> None:
        assert self._threads.stopped.wait(600), "the segment was not stopped"

    def answer(
        self,
        _spec: Any,
        _endpoint: str,
        rows: pa.Table,
        _timeouts: Any,
        *,
        stopped: threading.Event,
        on_death: Any,
        alone: bool,
        replica: int | None,
        **_: Any,
    ) -> Generator[pa.Table]:
        self.options = {"alone": alone, "replica": replica}
        self._threads.stopped, self.on_death = stopped, on_death
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
    monkeypatch.setattr(cluster, "connect", lambda *_, **_options: None)
    monkeypatch.setattr(directory, "states", lambda **_: {})
    monkeypatch.setattr(pipeline, "start", engine.start)
    monkeypatch.setattr(pipeline, "run", engine.answer)
    monkeypatch.setattr(pipeline, "close", engine.close)
    return engine


@pytest.fixture
def running(monkeypatch: pytest.MonkeyPatch) -> RunningSegments:
    """The segments of this process, which a test may let end."""
    running = RunningSegments()
    monkeypatch.setattr(segment, "RUNNING", running)
    monkeypatch.setattr(advance, "RUNNING", running)
    return running
