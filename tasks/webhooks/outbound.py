"""Outbound requests to URLs of clients: to public addresses only, unless the deployment allows others.

A host name is resolved once and every address is checked. The connection goes to a checked address, so DNS rebinding
has no effect.
"""

import socket
import ssl
import threading
import time
from contextlib import suppress
from http.client import HTTPConnection, HTTPException
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address
from urllib.parse import SplitResult, urlsplit

from batchyard.errors import RequestError

MAX_URL = 2048
CONNECT_SECONDS = 5.0
TOTAL_SECONDS = 10.0
_PORTS = {"https": 443, "http": 80}
_UNICAST = IPv6Network("2000::/3")
_NAT64 = IPv6Network("64:ff9b::/96")
# What Python takes for public: relays of 6to4, and addresses of documents (RFC 7526, RFC 9637).
_RELAYS = IPv4Network("192.88.99.0/24")
_DOCUMENTATION = IPv6Network("3fff::/20")
_PRIVATE = "the host's address is not a public one; BATCHYARD_WEBHOOKS_ALLOW_PRIVATE=1 allows such"


def check(url: str, *, allow_private: bool) -> SplitResult:
    """Return the parts of a URL that may be posted to, unresolved. Raises RequestError about `url`."""
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
    if not allow_private and f".{host}".rstrip(".").endswith(".localhost"):  # RFC 6761
        raise _refusal(_PRIVATE)
    with suppress(socket.gaierror):  # a host name, which `post` resolves and checks
        _addresses(host, 0, allow_private=allow_private, flags=socket.AI_NUMERICHOST)
    return parts


def check_callback(url: str | None, *, allow_private: bool) -> None:
    """Check the `callback_url` of a batch or a job, if it has one, as `check` does. Raises RequestError."""
    try:
        check(url, allow_private=allow_private) if url is not None else None
    except RequestError as error:
        message = error.message.replace("'url'", "'callback_url'")
        raise RequestError(message, code=error.code, param="callback_url") from None


def post(url: str, body: bytes, headers: dict[str, str], *, allow_private: bool) -> tuple[int, str | None]:
    """Send a POST request. Return status and Retry-After. Raises RequestError, OSError, HTTPException."""
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
        return _exchange(connection, parts, body, headers, deadline)
    finally:
        connection.close()


def _exchange(
    connection: HTTPConnection, parts: SplitResult, body: bytes, headers: dict[str, str], deadline: float
) -> tuple[int, str | None]:
    # A socket's timeout is per read, so a receiver that sends a byte now and then would never reach it.
    guard = threading.Timer(deadline - time.monotonic(), _shut_down, [connection.sock])
    guard.daemon = True
    guard.start()
    target = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    try:
        connection.request("POST", target, body, {"Host": parts.netloc, **headers})
        response = connection.getresponse()
        if time.monotonic() < deadline:
            return response.status, response.getheader("Retry-After")
    except (OSError, HTTPException):
        if time.monotonic() < deadline:
            raise
    finally:
        guard.cancel()
    raise TimeoutError(f"no answer within {TOTAL_SECONDS:.0f} s")


def _shut_down(sock: socket.socket) -> None:
    with suppress(OSError):  # already closed
        # SSLSocket.shutdown would change state that the reading thread uses.
        socket.socket.shutdown(sock, socket.SHUT_RDWR)


def _connect(addresses: list[str], port: int, deadline: float) -> socket.socket:
    failure: OSError = TimeoutError("no connection")
    for address in addresses:
        remaining = deadline - time.monotonic()
        if remaining <= 0:
            break
        try:
            sock = socket.create_connection((address, port), timeout=min(CONNECT_SECONDS, remaining))
        except OSError as error:
            failure = error
        else:
            sock.settimeout(TOTAL_SECONDS)
            return sock
    raise failure


def _addresses(host: str, port: int, *, allow_private: bool, flags: int = 0) -> list[str]:
    """Resolve a host name. Raises RequestError for private addresses."""
    entries = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=flags)
    addresses = list(dict.fromkeys(str(entry[4][0]) for entry in entries))
    if not allow_private and not all(is_public(ip_address(address)) for address in addresses):
        raise _refusal(_PRIVATE)
    return addresses


def is_public(address: IPv4Address | IPv6Address) -> bool:
    """True if an address is on the public internet, also behind NAT64 or an IPv4-mapped address."""
    if isinstance(address, IPv4Address):
        return address.is_global and not address.is_multicast and address not in _RELAYS
    inner = IPv4Address(int(address) & 0xFFFFFFFF) if address in _NAT64 else address.ipv4_mapped
    if inner is not None:
        return is_public(inner)
    named = address in _DOCUMENTATION or address.sixtofour is not None
    return address in _UNICAST and address.is_global and not named


def _refusal(reason: str) -> RequestError:
    return RequestError(f"Invalid value for 'url': {reason}.", code="invalid_value", param="url")
