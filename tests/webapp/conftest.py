"""Fixtures of the web app's tests."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.webapps import close_contexts


@pytest.fixture(autouse=True)
def _closed_contexts() -> Iterator[None]:
    """Close what a test has opened."""
    yield
    close_contexts()
