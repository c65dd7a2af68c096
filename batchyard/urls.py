"""URLs of paths and names, which may have any character."""

from __future__ import annotations

from pathlib import Path
from urllib.parse import quote


def sqlite(file: Path) -> str:
    """Return the SQLAlchemy URL of a SQLite file."""
    return f"sqlite:///{quote(str(file))}"


def folder(path: Path) -> str:
    """Return the fsspec URL of a folder. It has the path as it is: fsspec decodes nothing (`store.artifacts`)."""
    return f"file://{path}"
