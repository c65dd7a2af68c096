"""A plugin of pytest that tells the tests of `make check`, `make test` and `make test-all` apart.

Marker `stack` is on every test that needs a service: a stack, Ray, vLLM, Redis, PostgreSQL, S3 or a browser. A test has
it by the fixtures that it requests, by a parameter that names a server, or since it has marker `vllm`. One that starts
such a program itself says `@pytest.mark.stack`; without the marker its start fails.

Only `store` has SQL, so elsewhere a test on PostgreSQL repeats what the same test on SQLite says: it has marker
`exhaustive`, unless marker `races` says that its transactions compete.
"""

from __future__ import annotations

import subprocess
from collections.abc import Generator
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

FIXTURES = {
    *("broker", "browser", "cluster", "private_stack", "postgresql", "s3_server", "stack"),
    *("start_shared_stack", "start_stack"),
}
PARAMETERS = ("postgresql", "s3")
DATABASES = {"database_url", "empty_database_url"}
"""Fixtures with which a test runs on SQLite and on PostgreSQL."""
STORE = Path(__file__).parents[1] / "store"
PROGRAMS = {"batchyard", "batchyard.local.services", "gcs_server", "initdb", "ray", "valkey-server", "vllm", "weed"}
_start = subprocess.Popen.__init__


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if _needs_service(item):
            item.add_marker("stack")
        if _repeats_sqlite(item):
            item.add_marker("exhaustive")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, Any, Any]:
    if item.get_closest_marker("stack"):
        return (yield)
    with mock.patch.object(subprocess.Popen, "__init__", _guarded):
        return (yield)


def _needs_service(item: pytest.Item) -> bool:
    if item.get_closest_marker("vllm") or not FIXTURES.isdisjoint(getattr(item, "fixturenames", ())):
        return True
    parameters = item.callspec.params.values() if hasattr(item, "callspec") else ()
    return any(value in PARAMETERS for value in parameters if isinstance(value, str))


def _repeats_sqlite(item: pytest.Item) -> bool:
    on_both = not DATABASES.isdisjoint(getattr(item, "fixturenames", ()))
    if not on_both or STORE in item.path.parents or item.get_closest_marker("races"):
        return False
    return "postgresql" in item.callspec.params.values() if hasattr(item, "callspec") else False


def _guarded(process: subprocess.Popen[Any], args: Any, *rest: Any, **options: Any) -> None:
    words = args.split() if isinstance(args, str) else [args] if isinstance(args, Path) else args
    programs = PROGRAMS.intersection(Path(str(word)).name for word in words[:3])
    if programs:
        pytest.fail(f"the test starts {programs.pop()}: mark it with @pytest.mark.stack")
    _start(process, args, *rest, **options)
