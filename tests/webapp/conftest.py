"""Fixtures of the web app's tests."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import flask
import pytest
from flask.testing import FlaskClient
from jinja2.bccache import Bucket, BytecodeCache
from werkzeug.routing import Rule

from tasks.context import AppContext
from tests.support.webapps import client_of, close_contexts, context_in


class _Templates(BytecodeCache):
    """Compiled templates in memory: each test has an app of its own, which would compile its pages again."""

    def __init__(self) -> None:
        self._compiled: dict[str, bytes] = {}

    def load_bytecode(self, bucket: Bucket) -> None:
        if bucket.key in self._compiled:
            bucket.bytecode_from_string(self._compiled[bucket.key])

    def dump_bytecode(self, bucket: Bucket) -> None:
        self._compiled[bucket.key] = bucket.bytecode_to_string()


@pytest.fixture(scope="session", autouse=True)
def _compiled_templates() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(flask.Flask, "jinja_options", {"bytecode_cache": _Templates()})
        yield


@pytest.fixture(scope="session", autouse=True)
def _compiled_urls() -> Iterator[None]:
    """Compile the function that builds a route's URLs once: a new app spends nearly all of its time on that."""
    compile_builder, compiled = Rule._compile_builder, dict[tuple[Any, ...], Any]()

    def remembered(rule: Rule, append_unknown: bool = True) -> Any:
        key = rule.rule, tuple(rule._trace), tuple((rule.defaults or {}).items()), append_unknown
        if key not in compiled:
            compiled[key] = compile_builder(rule, append_unknown)
        return compiled[key]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Rule, "_compile_builder", remembered)
        yield


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
def _closed_contexts(recipes: Path) -> Iterator[None]:
    """Close what a test has opened."""
    yield
    close_contexts(recipes)
