"""What results are read from, and the tables that this process keeps for the next reader."""

import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Any, Protocol, TypeVar

from batchyard.settings import Settings
from store.artifacts import Artifacts
from store.database import Database

CACHE_BYTES = 64 * 1024 * 1024

Value = TypeVar("Value")


class Storage(Protocol):
    """The records and the artifacts of a deployment, and its limits. An application context is one."""

    @property
    def settings(self) -> Settings: ...
    @property
    def database(self) -> Database: ...
    @property
    def artifacts(self) -> Artifacts: ...


class _Cache:
    """Tables and arrays that never change, by key. Those that were used last stay, CACHE_BYTES of them."""

    def __init__(self) -> None:
        self._values: OrderedDict[Hashable, Any] = OrderedDict()
        self._bytes = 0
        self._lock = threading.Lock()

    def get(self, key: Hashable, read: Callable[[], Value]) -> Value:
        with self._lock:
            value: Value | None = self._values.get(key)
            if value is not None:
                self._values.move_to_end(key)
                return value
        value = read()
        with self._lock:
            if key not in self._values:
                self._values[key] = value
                self._bytes += value.nbytes  # type: ignore[attr-defined]
            while self._bytes > CACHE_BYTES:
                self._bytes -= self._values.popitem(last=False)[1].nbytes
        return value


cached = _Cache().get
"""Return the value of a key, from `read` if no table of this process has it."""
