"""Posting to where a client says: to public addresses only, to the one that was checked, and never for long."""

from __future__ import annotations

import socket
import ssl
import subprocess
import time
from collections.abc import Iterator
from ipaddress import ip_address
from pathlib import Path
from typing import Any

import pytest

from batchyard.errors import RequestError
from tasks.webhooks import outbound
from tests.support.receivers import Receiver, listening

PUBLIC = ["93.184.216.34", "2606:4700::1111", "::ffff:93.184.216.34", "64:ff9b::93.184.216.34"]
NOT_PUBLIC = [
    "192.88.99.1",
    "3fff::1",
    *("127.0.0.1", "10.1.2.3", "172.16.0.1", "192.168.1.1", "169.254.169.254", "100.64.0.1", "0.0.0.0", "0.1.2.3"),
    *("224.0.0.1", "239.255.255.250", "255.255.255.255", "240.0.0.1", "192.0.2.1", "198.18.0.1"),
    *("::1", "::", "fe80::1", "fe80::1%1", "fc00::1", "fec0::1", "ff02::1", "ff0e::1", "2001:db8::1", "100::1"),
    *("::ffff:127.0.0.1", "::ffff:10.0.0.1", "::127.0.0.1", "64:ff9b::10.0.0.1", "64:ff9b:1::7f00:1"),
    *("2002:7f00:1::", "2002:a00:1::1", "2001:0:1::1"),
]
REFUSED = [
    *("", "receiver.example", "//receiver.example/", "ftp://receiver.example/", "file:///etc/passwd", "https://"),
    *("https://user:password@receiver.example/", "https://user@receiver.example/", "https://receiver.example\\@other/"),
    *("https://receiver.example:0/", "https://receiver.example:70000/", "https://receiver.example:port/"),
    *("https://[::1", "https://a..b/", "https://" + "a" * 64 + ".example/", "https://receiver.example/\r\nHost: x"),
    *(
        "https://receiver.example/\t",
        "https://receiver.example/a b",
        "https://receiver.exämple/",
        "https://x/" + "y" * 2048,
    ),
]
LITERALS = [
    "127.0.0.1",
    "[::1]",
    "[::ffff:127.0.0.1]",
    "127.1",
    "2130706433",
    "0x7f.1",
    "0",
    "169.254.169.254",
    "10.0.0.1:8443",
]


def post(url: str, *, allow_private: bool = True, **headers: str) -> tuple[int, str | None]:
    return outbound.post(url, b"{}", headers, allow_private=allow_private)


@pytest.mark.parametrize("address", PUBLIC)
def test_an_address_of_the_internet_is_public(address: str) -> None:
    assert outbound.is_public(ip_address(address))


@pytest.mark.parametrize("address", NOT_PUBLIC)
def test_an_address_of_ours_is_not_public_in_whatever_it_is_wrapped(address: str) -> None:
    assert not outbound.is_public(ip_address(address))


@pytest.mark.parametrize("url", REFUSED)
@pytest.mark.parametrize("allow_private", [False, True])
def test_what_is_no_plain_url_of_a_host_is_refused(url: str, allow_private: bool) -> None:
    with pytest.raises(RequestError) as refused:
        outbound.check(url, allow_private=allow_private)
    assert refused.value.param == "url"


@pytest.mark.parametrize("host", LITERALS)
def test_a_private_address_is_refused_in_every_way_to_write_it(host: str) -> None:
    with pytest.raises(RequestError, match="not a public one"):
        outbound.check(f"https://{host}/hook", allow_private=False)
    outbound.check(f"https://{host}/hook", allow_private=True)


@pytest.mark.parametrize("host", ["localhost", "LOCALHOST.", "app.localhost", "localhost:8443"])
def test_a_name_of_this_machine_is_refused_before_anybody_resolves_it(host: str) -> None:
    with pytest.raises(RequestError, match="not a public one"):
        outbound.check(f"https://{host}/hook", allow_private=False)
    outbound.check(f"https://{host}/hook", allow_private=True)
    outbound.check("https://localhost.example/hook", allow_private=False)


def test_without_private_addresses_there_is_only_https() -> None:
    with pytest.raises(RequestError, match="write https://host"):
        outbound.check("http://receiver.example/", allow_private=False)
    outbound.check("http://receiver.example:8080/", allow_private=True)
    outbound.check("https://receiver.example:8443/hook?a=b", allow_private=False)


def test_a_name_that_resolves_to_a_private_address_is_refused_and_not_asked() -> None:
    with listening(Receiver()) as receiver, pytest.raises(RequestError, match="not a public one"):
        post(receiver.url("localhost", "https"), allow_private=False)
    assert receiver.received == []


def test_a_name_with_one_private_address_among_public_ones_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    answers = [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (address, 443)) for address in ("93.184.216.34", "10.0.0.1")]
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: answers)
    with pytest.raises(RequestError, match="not a public one"):
        post("https://receiver.example/", allow_private=False)


def test_the_connection_goes_to_the_address_that_was_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    resolve, lookups = socket.getaddrinfo, []

    def rebinding(host: str, *arguments: Any, **options: Any) -> Any:
        if host == "receiver.example" and not options.get("flags"):
            lookups.append(host)
            host = "127.0.0.1" if len(lookups) == 1 else "192.0.2.1"
        return resolve(host, *arguments, **options)

    monkeypatch.setattr(socket, "getaddrinfo", rebinding)
    with listening(Receiver()) as receiver:
        assert post(receiver.url("receiver.example")) == (200, None)
    assert lookups == ["receiver.example"]
    (request,) = receiver.received
    assert request.headers["Host"] == f"receiver.example:{receiver.port}"
    assert request.path == "/hook?from=yard"


def test_an_address_that_does_not_answer_is_passed_over_for_one_that_does(monkeypatch: pytest.MonkeyPatch) -> None:
    with listening(Receiver()) as receiver:
        resolve = socket.getaddrinfo

        def two(host: str, port: int, *arguments: Any, **options: Any) -> Any:
            if host != "receiver.example":
                return resolve(host, port, *arguments, **options)
            return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (a, port)) for a in ("127.0.0.2", "127.0.0.1")]

        monkeypatch.setattr(socket, "getaddrinfo", two)
        assert post(receiver.url("receiver.example"))[0] == 200


def test_no_redirect_is_followed_and_no_proxy_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    with listening(Receiver()) as elsewhere:
        for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
            monkeypatch.setenv(name, elsewhere.url())
        redirect = Receiver(status=307, headers={"Location": elsewhere.url()})
        with listening(redirect):
            assert post(redirect.url())[0] == 307
    assert len(redirect.received) == 1
    assert elsewhere.received == []


def drip(connection: Any) -> None:
    connection.sendall(b"HTTP/1.1 200 OK\r\n")
    for _ in range(1000):
        connection.sendall(b"X")
        time.sleep(0.05)


@pytest.mark.parametrize("stall", [lambda _: time.sleep(60), drip], ids=["silence", "a byte now and then"])
def test_no_receiver_holds_an_attempt_longer_than_it_may(monkeypatch: pytest.MonkeyPatch, stall: Any) -> None:
    monkeypatch.setattr(outbound, "TOTAL_SECONDS", 0.6)
    with listening(Receiver(stall=stall)) as receiver:
        began = time.monotonic()
        with pytest.raises(TimeoutError):
            post(receiver.url())
        assert time.monotonic() - began < 40


def test_a_tls_handshake_that_never_ends_is_cut_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outbound, "TOTAL_SECONDS", 0.6)
    with socket.create_server(("127.0.0.1", 0)) as silent, pytest.raises(TimeoutError):
        post(f"https://127.0.0.1:{silent.getsockname()[1]}/")


def test_an_answer_is_not_read_beyond_its_head() -> None:
    endless = Receiver(headers={"Content-Length": "1000000000000"})
    with listening(endless):
        assert post(endless.url())[0] == 200


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A certificate of our own for `localhost`, which is its own authority, and its key."""
    file = tmp_path_factory.mktemp("tls") / "localhost.pem"
    subject = ["-subj", "/CN=yard", "-addext", "subjectAltName=DNS:localhost", "-days", "2"]
    command = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", *subject]
    subprocess.run([*command, "-keyout", file, "-out", f"{file}.crt"], check=True, capture_output=True)
    with file.open("a") as both:
        both.write(Path(f"{file}.crt").read_text())
    return file


@pytest.fixture
def secure(certificate: Path) -> Iterator[tuple[Receiver, list[str | None]]]:
    """A receiver over TLS, and the host names that its callers requested."""
    context, names = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH), []
    context.load_cert_chain(certificate)
    context.sni_callback = lambda _socket, name, _context: names.append(name)
    with listening(Receiver(), context) as receiver:
        yield receiver, names


def test_a_certificate_is_checked_against_the_hosts_name_though_an_address_is_connected_to(
    secure: Any, certificate: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    receiver, names = secure
    monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
    assert post(receiver.url("localhost", "https"))[0] == 200
    assert names == ["localhost"]
    with pytest.raises(ssl.SSLCertVerificationError, match="127\\.0\\.0\\.1"):
        post(receiver.url("127.0.0.1", "https"))
    assert len(receiver.received) == 1


def test_a_certificate_that_nobody_vouches_for_is_refused(secure: Any) -> None:
    receiver, _ = secure
    with pytest.raises(ssl.SSLCertVerificationError, match="self-signed"):
        post(receiver.url("localhost", "https"))
    assert receiver.received == []
