"""Artifacts of JSON, a line for each value."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import orjson


def line(value: Mapping[str, Any]) -> bytes:
    """Return a value as a line."""
    return orjson.dumps(value, option=orjson.OPT_APPEND_NEWLINE)
