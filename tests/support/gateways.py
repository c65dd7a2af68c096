"""A gateway in this process, with an engine of its own that answers live requests, without a cluster."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Coroutine, Iterator
from typing import Any, TypeVar

from batchyard.models import ModelSpec
from inference.engines.echo import Echo
from inference.residents.admission import AdmissionQueue
from inference.residents.live_server import LiveServer
from tasks.context import AppContext
from tasks.live import addresses
from tasks.live.addresses import EngineAddress
from webapp.gateway.server import Gateway

T = TypeVar("T")


class LoopThread:
    """An event loop in a thread, for servers beside a test that waits for their answers."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self.loop.run_forever, daemon=True)
        self._thread.start()

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine there, and return its result."""
        return asyncio.run_coroutine_threadsafe(coroutine, self.loop).result(60)

    def close(self) -> None:
        """End the loop and its thread."""
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join()
        self.loop.close()


class LiveEngine:
    """An engine `echo` with a live server, published as a replica of its model."""

    def __init__(self, thread: LoopThread, spec: ModelSpec, *, places: int = 8, name: str = "engine") -> None:
        self.queue = AdmissionQueue(2 * places, places=places)
        self._thread = thread
        self._server = LiveServer(
            Echo(spec, 60.0), self.queue, busy=contextlib.nullcontext, died=str, is_over=lambda: self.over
        )
        self.over = False
        live = thread.run(self._server.start("127.0.0.1"))
        self.address = EngineAddress(name, live.url, live.token, places)

    def stop(self) -> None:
        """Close its port."""
        self._thread.run(self._server.stop())

    @property
    def answered(self) -> int:
        """The requests that have entered it."""
        return self._server.answered


class RunningGateway:
    """The gateway, served on a free port."""

    def __init__(
        self, thread: LoopThread, context: AppContext, web_url: str = "http://127.0.0.1:9", silence: float | None = None
    ) -> None:
        """Serve it. A new connection may be silent for `silence` seconds; None: as the settings say."""
        self._thread = thread
        self._gateway = Gateway(context, web_url)
        if silence is not None:
            self._gateway._connections.seconds = silence
        self.port = thread.run(self._gateway.start("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self.port}"

    def stop(self) -> None:
        """Write what is to be written, and close the port."""
        self._thread.run(self._gateway.stop())


@contextlib.contextmanager
def loop_thread() -> Iterator[LoopThread]:
    """Run an event loop in a thread until the block ends."""
    thread = LoopThread()
    try:
        yield thread
    finally:
        thread.close()


def publish(context: AppContext, model: str, *engines: LiveEngine) -> None:
    """Publish these engines as all replicas of the model."""
    addresses.publish(context, model, [engine.address for engine in engines])
