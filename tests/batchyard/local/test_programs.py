"""Redis and Ray of a local stack: they listen on this machine alone, and are ready when they answer."""

from __future__ import annotations

import os
import socket
import threading
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace

import pytest

from batchyard.local import programs
from tests.support.rows import until


def options(command: list[str]) -> dict[str, str]:
    """The options of a command as `--name=value`."""
    return dict(word[2:].split("=", 1) for word in command if word.startswith("--") and "=" in word)


def test_redis_listens_on_a_socket_only_and_forgets_nothing(tmp_path: Path) -> None:
    binary, *words = programs.redis(tmp_path / "redis.sock")
    values = dict(zip(words[::2], words[1::2], strict=True))
    assert os.access(binary, os.X_OK)
    assert (values["--port"], values["--unixsocket"]) == ("0", str(tmp_path / "redis.sock"))
    assert (values["--appendonly"], values["--maxmemory-policy"]) == ("yes", "noeviction")


def test_ray_listens_on_loopback_without_a_dashboard(tmp_path: Path) -> None:
    values = options(programs.ray(tmp_path, 6380))
    assert (values["node-ip-address"], values["port"], values["include-dashboard"]) == ("127.0.0.1", "6380", "false")
    assert values["temp-dir"] == str(tmp_path)


def test_ray_takes_a_folder_where_shared_memory_is_short(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "statvfs", lambda _: SimpleNamespace(f_bavail=1, f_frsize=4096))
    assert options(programs.ray(tmp_path / "ray", 6380)).get("plasma-directory") == str(tmp_path)


@pytest.mark.parametrize(("answer", "is_ready"), [(b"+PONG\r\n", True), (b"-LOADING data\r\n", False)])
def test_redis_is_ready_once_it_answers_not_once_it_accepts(tmp_path: Path, answer: bytes, is_ready: bool) -> None:
    path = tmp_path / "redis.sock"
    assert not programs.accepts(path) and not programs.pong(path)
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as server:
        server.bind(str(path))
        server.listen()

        def serve() -> None:
            with suppress(OSError):  # the test has ended
                while True:
                    connection, _ = server.accept()
                    with connection, suppress(OSError):  # who has asked waits no longer
                        if connection.recv(16) == b"PING\r\n":
                            connection.sendall(answer)

        threading.Thread(target=serve, daemon=True).start()
        if is_ready:
            until(lambda: programs.pong(path))  # it waits for a second, in which the thread may not run
        else:
            assert not programs.pong(path)
        assert programs.accepts(path)
