"""Ports that a stack draws are its own until it ends: no two services and no two stacks get the same one."""

from __future__ import annotations

import socket
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress

import pytest

from batchyard.errors import ConfigurationError
from batchyard.local import ports

on_linux = pytest.mark.skipif(sys.platform != "linux", reason="other systems share no port with a bound socket")


@contextmanager
def a_port() -> Iterator[ports.Port]:
    port = ports.Port("127.0.0.1", 0)
    try:
        yield port
    finally:
        port.close()


def bind(number: int, *, reuse: bool) -> socket.socket:
    """Bind the port as another program would."""
    program = socket.socket()
    program.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, int(reuse))
    try:
        program.bind(("127.0.0.1", number))
    except OSError:
        program.close()
        raise
    return program


def test_fifty_stacks_that_plan_their_ports_at_once_never_clash() -> None:
    with ThreadPoolExecutor(16) as pool:
        plans = list(pool.map(lambda _: ports.plan("127.0.0.1", 0, 0), range(50)))
    held = [port for plan in plans for port in plan.values()]
    for port in held:  # as at the start of the services: from then on others could bind it by number, if at all
        port.share()
    others = [ports.Port("127.0.0.1", 0) for _ in range(500)]
    numbers = [port.number for port in (*held, *others)]
    for port in (*held, *others):
        port.close()
    assert len(held) == 150
    assert len(set(numbers)) == len(numbers)


@pytest.mark.parametrize("reuse", [False, True])
def test_a_planned_port_cannot_be_taken_by_another_program(reuse: bool) -> None:
    with a_port() as port, pytest.raises(OSError, match="in use"):
        bind(port.number, reuse=reuse)


@on_linux
def test_a_service_can_listen_on_its_port_again_and_again_and_others_still_cannot() -> None:
    with a_port() as port:
        port.share()
        for _ in range(3):
            with pytest.raises(OSError, match="in use"):
                bind(port.number, reuse=False)
            with bind(port.number, reuse=True) as service:
                service.listen()
                assert ports.answers("127.0.0.1", port.number)
                with pytest.raises(OSError, match="in use"):
                    bind(port.number, reuse=True)
        assert not ports.answers("127.0.0.1", port.number)


def test_a_closed_port_is_free_again() -> None:
    def is_free_again() -> bool:
        with a_port() as port:
            number = port.number
        with suppress(OSError):
            bind(number, reuse=False).close()
            return True
        return False

    assert any(is_free_again() for _ in range(3)), "another program may get one of them meanwhile"


def test_a_port_that_nobody_can_have_is_named_with_its_option() -> None:
    with pytest.raises(
        ConfigurationError, match=r"port 70000 on 127\.0\.0\.1 cannot be used: .*; choose another with --port"
    ):
        ports.Port("127.0.0.1", 70000, "--port")
