"""Processes that run what authors of recipes, rewards and gates have written, since a process can be killed."""

import atexit
import contextlib
import multiprocessing
import pickle
import signal
import threading
from collections.abc import Callable
from concurrent.futures import Future
from multiprocessing import connection
from multiprocessing.connection import Connection
from queue import SimpleQueue
from typing import Any

from batchyard.kinship import end_with_parent

_START_SECONDS = 120.0
"""Longest that a process may take to start and to load. A busy machine takes 20 s."""
_EXIT_SECONDS = 5.0
_CONTEXT = multiprocessing.get_context("spawn")  # who uses the pool has threads and connections


class CallStopped(Exception):
    """A call took too long, or its process ended. The message says which."""


class _PoolClosed(Exception):
    pass


class KillablePool:
    """Processes that are killed with a call that takes too long. They start with the first call.

    Each has a pipe and a thread of its own, so that its end harms no call of another.
    """

    def __init__(self, number: int, seconds: float, load: Callable[[], object] = bool) -> None:
        """Limit each call to `seconds`. `load`, which can be pickled, runs before the calls, in time of its own."""
        self._number = number
        self._seconds = seconds
        self._load = pickle.dumps((_run, (load,)))
        self._lock = threading.Lock()
        self._calls = SimpleQueue[tuple[Future[Any], float, bytes] | None]()
        self._threads: list[threading.Thread] = []
        self._closed, self._closing = _CONTEXT.Pipe(duplex=False)
        self._is_closed = False

    def submit(self, function: Callable[..., Any], *args: Any) -> Future[Any]:
        """Return the future of a call. It raises what the function, `load` or pickling raises, or CallStopped.

        A pool that is closed cancels it.
        """
        future = Future[Any]()
        try:
            call = (future, self._seconds, pickle.dumps((function, args)))
        except Exception as error:  # noqa: BLE001  an author's object may raise anything
            future.set_exception(error)
            return future
        with self._lock:
            if self._is_closed:
                future.cancel()
                return future
            self._calls.put(call)
            if not self._threads:
                atexit.register(self.close)
                self._threads = [threading.Thread(target=self._serve, daemon=True) for _ in range(self._number)]
                for thread in self._threads:
                    thread.start()
        return future

    def close(self) -> None:
        """End the processes, and cancel all calls."""
        atexit.unregister(self.close)
        with self._lock:
            self._is_closed = True
        self._closing.send_bytes(b"")
        for _ in self._threads:
            self._calls.put(None)
        for thread in self._threads:
            thread.join()

    def _serve(self) -> None:
        """Make calls, one after the other. Replace a process that has ended at once: it loads before a call comes."""
        process: _Process | None = None
        while True:
            if process is None:
                with contextlib.suppress(OSError):  # tried again for the call
                    process = self._new_process()
            call = self._calls.get()
            if call is None:
                break
            future, seconds, request = call
            try:
                process = process or self._new_process()
                try:
                    process.load()
                except CallStopped:  # before the call began: killed for its memory, for example
                    process = self._new_process()
                    process.load()
                future.set_result(process.answer(request, seconds))
            except _PoolClosed:
                future.cancel()
            except Exception as error:  # noqa: BLE001  it is the call's
                future.set_exception(error)
            if process is not None and process.has_ended:
                process = None
        if process is not None:
            process.end()

    def _new_process(self) -> "_Process":
        return _Process(self._load, self._closed)


class _Process:
    """A process, which makes one call after the other."""

    def __init__(self, load: bytes, closed: Connection) -> None:
        """Start it, and have it make the call that loads. Raises OSError."""
        self._closed = closed
        self._pipe, theirs = _CONTEXT.Pipe()
        self._process = _CONTEXT.Process(target=_work, args=(theirs,))
        with theirs:
            self._process.start()
        self._send(load)
        self._has_loaded = self.has_ended = False

    def load(self) -> None:
        """Wait until it has loaded. Raises what loading raises, and as `answer`. One that has ended is CallStopped."""
        if self._has_loaded:
            if not self._process.is_alive():
                self.end()
                raise CallStopped("its process ended while it was idle")
        else:
            try:
                self._outcome(_START_SECONDS)
            except Exception:
                self.end()
                raise
            self._has_loaded = True

    def answer(self, request: bytes, seconds: float) -> Any:
        """Return what a call returns. Raises what the call raises, CallStopped or _PoolClosed."""
        self._send(request)
        return self._outcome(seconds)

    def end(self) -> None:
        self.has_ended = True
        self._process.kill()
        self._process.join()
        self._pipe.close()

    def _send(self, request: bytes) -> None:
        with contextlib.suppress(OSError):  # it has ended, as _outcome says
            self._pipe.send_bytes(request)

    def _outcome(self, seconds: float) -> Any:
        ready = connection.wait([self._pipe, self._closed], seconds)
        if self._pipe in ready:
            try:
                has_succeeded, outcome = pickle.loads(self._pipe.recv_bytes())
            except (EOFError, OSError):
                self._process.join(_EXIT_SECONDS)
                exit_code = self._process.exitcode
                self.end()
                raise CallStopped(f"its process ended with exit code {exit_code}") from None
            if has_succeeded:
                return outcome
            raise outcome
        self.end()
        raise _PoolClosed if ready else CallStopped(f"ran longer than {seconds:g} seconds")


def _work(pipe: Connection) -> None:
    """Make calls until the other process ends."""
    end_with_parent()  # amid a call, too
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with contextlib.suppress(EOFError):
        while True:
            pipe.send_bytes(_outcome_of(pipe.recv_bytes()))


def _run(load: Callable[[], object]) -> None:
    load()  # what it returns stays in this process


def _outcome_of(request: bytes) -> bytes:
    """Return whether a call succeeded, and what it returned or raised."""
    try:
        function, args = pickle.loads(request)
        return pickle.dumps((True, function(*args)))
    except Exception as error:  # noqa: BLE001  the caller's thread raises it
        try:
            outcome = pickle.dumps((False, error))
            pickle.loads(outcome)
        except Exception:  # noqa: BLE001  an exception with other arguments than its message
            outcome = pickle.dumps((False, RuntimeError(f"{type(error).__name__}: {error}")))
        return outcome


def reason(error: Exception) -> str:
    """Return in words why a call failed, by what its future raises."""
    return str(error) if isinstance(error, CallStopped) else f"{type(error).__name__}: {error}"
