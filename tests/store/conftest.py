"""Fixtures of this folder: a client of the project."""

from __future__ import annotations

import pytest

from store.keys import Principal


@pytest.fixture
def me(project: str) -> Principal:
    """A client with a key of the project, named ada."""
    return Principal(project, False, "key-1", "ada")
