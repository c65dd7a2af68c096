"""Modules that every package shares (settings, errors, models.toml), the command line and the local stack.

Only the command line, the client and the local stack know a database, a queue, a route or an engine.

`batchyard.map`, its asynchronous twin `amap`, `plan`, `filter`, `match`, `embed`, `classify`, `rerank` and `transcribe`
are in `batchyard.client`. They are imported when they are first used: every part of Batchyard imports this module.
"""

import importlib
from typing import Any

__version__ = "0.1.0"


def __getattr__(name: str) -> Any:
    if name in ("map", "amap", "plan", "filter", "match", "embed", "classify", "rerank", "transcribe"):
        # Not an import statement: what this module imports, every layer would import.
        return getattr(importlib.import_module(f"batchyard.client.{'map' if name in ('amap', 'plan') else name}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
