"""Web apps whose people have no keys: a proxy names them, or an OpenID provider signs them in."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from flask.testing import FlaskClient

from tasks.context import AppContext
from tests.support.webapps import context_in
from webapp import create_app

Lines = Callable[[], list[dict[str, Any]]]


@pytest.fixture
def settings() -> dict[str, Any]:
    """Which settings of the web app a test module changes."""
    return {}


@pytest.fixture
def context(tmp_path: Path, settings: dict[str, Any]) -> AppContext:
    """A context without a broker: two groups open a project each, and `ops` are administrators."""
    values = {"group_projects": "ml=search,cn=ads team=ads,ops=default", "admin_groups": "ops", **settings}
    audit_file = str(tmp_path / "audit.jsonl")
    return context_in(tmp_path, redis_url="redis://127.0.0.1:1/0", audit=audit_file, **values)


@pytest.fixture
def stranger(context: AppContext) -> FlaskClient:
    """A browser that nobody has signed in."""
    return create_app(context).test_client()


@pytest.fixture
def audit_lines(tmp_path: Path) -> Lines:
    """Reads the lines of the audit so far."""
    return lambda: [json.loads(line) for line in (tmp_path / "audit.jsonl").read_text().splitlines()]
