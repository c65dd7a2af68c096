"""Joining a Ray cluster."""

from __future__ import annotations

import socket
import threading
import time

import pytest

from batchyard.errors import UnavailableError
from inference.ray import cluster


def test_a_process_that_joins_a_dead_cluster_says_so_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cluster.ray, "is_initialized", lambda: False)  # other tests' cluster may be this process's
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{unused.getsockname()[1]}"
        began = time.monotonic()
        with pytest.raises(UnavailableError, match=f"no Ray cluster at {address}"):
            cluster.connect(address, threading.Event())
        assert time.monotonic() - began < 30


def test_an_address_without_a_port_is_no_cluster() -> None:
    with pytest.raises(UnavailableError, match="no Ray cluster at head"):
        cluster._join("head")
