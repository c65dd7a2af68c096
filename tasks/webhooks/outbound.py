"""Requests to addresses that a client has named: to public ones only, unless the deployment allows others.

A name is resolved once, each address it has is checked, and the connection is made to a checked address, so nothing
that changes in between can lead elsewhere. Redirects are not followed, the environment's proxies are not asked, and
nothing of the answer is read but its head.
"""

from __future__ import annotations

import socket
import ssl
import threading
import time
from contextlib import suppress
from dataclasses import dataclass
from http.client import HTTPConnection, HTTPException
from ipaddress import IPv4Address, IPv6Address, IPv6Network, ip_address
from urllib.parse import SplitResult, urlsplit

from batchyard.errors import RequestError

MAX_URL = 2048
CONNECT_SECONDS = 5.0
TOTAL_SECONDS = 10.0
_PORTS = {"https": 443, "http": 80}
_UNICAST = IPv6Network("2000::/3")
_NAT64 = IPv6Network("64:ff9b::/96")


@dataclass(frozen=True)
class Answer:
    """The head of an answer; `retry_after` is that header as it came."""

    status: int
    retry_after: str | None


def check(url: str, *, allow_private: bool) -> SplitResult:
    """The parts of a URL that may be posted to, as far as that can be said without resolving its name.

    Raises:
        RequestError: it is no such URL; `param` is `url`.
    """
    try:
        parts = urlsplit(url)
        host, port = parts.hostname or "", parts.port
        host.encode("idna")
    except ValueError as error:  # also UnicodeError
        raise _refusal(f"{error}") from error
    schemes = ("https", "http") if allow_private else ("https",)
    if len(url) > MAX_URL or not url.isascii() or not url.isprintable() or " " in url:
        raise _refusal(f"a URL has at most {MAX_URL} characters, printable ASCII ones; encode the others")
    if parts.scheme not in schemes or not host or port == 0:
        raise _refusal(f"write {' or '.join(f'{scheme}://host' for scheme in schemes)}, with a port and a path or not")
    if "@" in parts.netloc:
        raise _refusal("a URL here has no user name or password; tell what is genuine by its signature")
    with suppress(socket.gaierror):  # a name: checked when it is resolved
        _addresses(host, 0, allow_private=allow_private, flags=socket.AI_NUMERICHOST)
    return parts


def post(url: str, body: bytes, headers: dict[str, str], *, allow_private: bool) -> Answer:
    """POST, and the head of the answer, within TOTAL_SECONDS of the name's resolution.

    Raises:
        RequestError: the URL may not be posted to.
        OSError, http.client.HTTPException: no answer, or none that is HTTP.
    """
    parts = check(url, allow_private=allow_private)
    host, port = parts.hostname or "", parts.port or _PORTS[parts.scheme]
    addresses = _addresses(host, port, allow_private=allow_private)
    deadline = time.monotonic() + TOTAL_SECONDS
    connection = HTTPConnection(host, port)
    connection.sock = _connect(addresses, port, deadline)
    try:
        if parts.scheme == "https":
            connection.sock.settimeout(max(0.1, deadline - time.monotonic()))
            tls = ssl.create_default_context()
            connection.sock = tls.wrap_socket(connection.sock, server_hostname=host)
        return _ask(connection, parts, body, headers, deadline)
    finally:
        connection.close()


def _ask(
    connection: HTTPConnection, parts: SplitResult, body: bytes, headers: dict[str, str], deadline: float
) -> Answer:
    # A socket's timeout is for each read; who sends a byte now and then would be listened to for ever.
    guard = threading.Timer(deadline - time.monotonic(), _cut, [connection.sock])
    guard.daemon = True
    guard.start()
    target = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    try:
        connection.request("POST", target, body, {"Host": parts.netloc, **headers})
        response = connection.getresponse()
        if time.monotonic() < deadline:
            return Answer(response.status, response.getheader("Retry-After"))
    except (OSError, HTTPException):
        if time.monotonic() < deadline:
            raise
    finally:
        guard.cancel()
    raise TimeoutError(f"no answer within {TOTAL_SECONDS:.0f} s")


def _cut(sock: socket.socket) -> None:
    with suppress(OSError):  # it is closed already
        socket.socket.shutdown(sock, socket.SHUT_RDWR)  # TLS's own would touch what the reading thread uses


def _connect(addresses: list[str], port: int, deadline: float) -> socket.socket:
    """A connection to the first of the addresses that accepts one."""
    failure: OSError = TimeoutError("no connection")
    for address in addresses:
        left = deadline - time.monotonic()
        if left <= 0:
            break
        try:
            sock = socket.create_connection((address, port), timeout=min(CONNECT_SECONDS, left))
        except OSError as error:
            failure = error
        else:
            sock.settimeout(TOTAL_SECONDS)
            return sock
    raise failure


def _addresses(host: str, port: int, *, allow_private: bool, flags: int = 0) -> list[str]:
    """What a host's name stands for. Raises RequestError if any of it is not public, unless that is allowed."""
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=flags)
    addresses = list(dict.fromkeys(str(entry[4][0]) for entry in found))
    if not allow_private and not all(is_public(ip_address(address)) for address in addresses):
        raise _refusal("the host's address is not a public one; BATCHYARD_WEBHOOKS_ALLOW_PRIVATE=1 allows such")
    return addresses


def is_public(address: IPv4Address | IPv6Address) -> bool:
    """Whether an address leads to the internet at large, and not through a translator to somewhere that is not."""
    if isinstance(address, IPv4Address):
        return address.is_global and not address.is_multicast
    inner = IPv4Address(int(address) & 0xFFFFFFFF) if address in _NAT64 else address.ipv4_mapped
    if inner is not None:
        return is_public(inner)
    return address in _UNICAST and address.is_global and address.sixtofour is None


def _refusal(why: str) -> RequestError:
    return RequestError(f"Invalid value for 'url': {why}.", code="invalid_value", param="url")
