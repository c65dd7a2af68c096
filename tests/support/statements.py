"""A plugin of pytest that compiles an SQL statement once for all databases of one kind.

SQLAlchemy keeps compiled statements for each engine, and nearly every test has engines of its own.
"""

from __future__ import annotations

from typing import Any

import pytest
from sqlalchemy import Engine
from sqlalchemy.engine.default import DefaultDialect
from sqlalchemy.util import LRUCache

_compiled: LRUCache[Any, Any] = LRUCache(2000)


def pytest_configure() -> None:
    """Give all engines one cache, and let those of one kind find each other's statements there."""
    patch = pytest.MonkeyPatch()
    patch.setattr(
        Engine, "_compiled_cache", property(lambda _engine: _compiled, lambda _engine, _own: None), raising=False
    )
    # The keys of the cache contain the engine's dialect.
    patch.setattr(DefaultDialect, "__eq__", lambda dialect, other: type(dialect) is type(other))
    patch.setattr(DefaultDialect, "__hash__", lambda dialect: hash(type(dialect)))
