"""Readiness: what is away, worked out once for many callers."""

from __future__ import annotations

import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from flask.testing import FlaskClient

from batchyard import __version__, proxies
from tasks.context import AppContext
from tests.support.webapps import client_of, context_in
from webapp import health


@pytest.fixture
def context(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AppContext:
    """A context whose broker and Ray are down."""
    monkeypatch.setenv("REDIS_URL", "redis://127.0.0.1:1/0")
    return context_in(tmp_path, ray_address="127.0.0.1:1")


def test_health_and_each_page_say_the_version(client: FlaskClient) -> None:
    assert client.get("/healthz").get_json() == {"status": "ok", "version": __version__}
    assert f"Batchyard {__version__}" in client.get("/sign-in").text


def test_readiness_names_what_is_away(client: FlaskClient) -> None:
    answer = client.get("/readyz")
    assert answer.status_code == 503
    parts = answer.get_json()["parts"]
    assert {name for name, state in parts.items() if state == "ok"} == {"database", "artifacts"}
    assert "refused" in parts["ray"]


@pytest.mark.parametrize("host", ["127.0.0.1", "::1"])
def test_ray_is_found_at_an_address_of_either_kind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, host: str) -> None:
    monkeypatch.setenv("REDIS_URL", "redis://127.0.0.1:1/0")
    with socket.create_server((host, 0), family=socket.AF_INET6 if ":" in host else socket.AF_INET) as server:
        address = proxies.address(host, server.getsockname()[1])
        parts = client_of(context_in(tmp_path, ray_address=address)).get("/readyz").get_json()["parts"]
    assert parts["ray"] == "ok"


def test_readiness_is_worked_out_once_for_many_calls(
    client: FlaskClient, context: AppContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = []

    def slow(_context: AppContext) -> None:
        calls.append(time.monotonic())
        time.sleep(0.2)

    monkeypatch.setattr(health, "CHECKS", {"slow": slow})
    monkeypatch.setattr(health, "READY_SECONDS", 60.0)
    app = client.application
    with ThreadPoolExecutor(8) as threads:
        answers = list(threads.map(lambda _: app.test_client().get("/readyz"), range(20)))
    assert {answer.status_code for answer in answers} == {200}
    assert len(calls) == 1
    monkeypatch.setattr(health, "READY_SECONDS", 0.0)
    client.get("/readyz")
    assert len(calls) == 2


def test_who_asks_for_readiness_waits_for_no_check_that_hangs(
    client: FlaskClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first one waits; the others get what was last known."""
    begun, end = threading.Event(), threading.Event()

    def hang(_context: AppContext) -> None:
        begun.set()
        end.wait(60)

    monkeypatch.setattr(health, "CHECKS", {"part": lambda _context: None})
    monkeypatch.setattr(health, "READY_SECONDS", 0.0)
    assert client.get("/readyz").status_code == 200
    monkeypatch.setattr(health, "CHECKS", {"part": hang})
    first = threading.Thread(target=client.application.test_client().get, args=("/readyz",))
    first.start()
    begun.wait(60)
    began = time.monotonic()
    assert client.get("/readyz").status_code == 200
    assert time.monotonic() - began < 30
    end.set()
    first.join()
