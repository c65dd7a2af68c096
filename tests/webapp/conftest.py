"""Fixtures of the web app's tests."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from flask.testing import FlaskClient

from tasks.context import AppContext
from tests.support.webapps import client_of, close_contexts, context_in


@pytest.fixture
def context(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AppContext:
    """A context whose broker is down."""
    monkeypatch.setenv("REDIS_URL", "redis://127.0.0.1:1/0")
    return context_in(tmp_path)


@pytest.fixture
def client(context: AppContext) -> FlaskClient:
    """A client of the web app alone."""
    return client_of(context)


@pytest.fixture(autouse=True)
def _closed_contexts() -> Iterator[None]:
    """Close what a test has opened."""
    yield
    close_contexts()
