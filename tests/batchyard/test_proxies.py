"""This machine is never asked through a proxy; other hosts are, as the environment says."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from batchyard import proxies
from batchyard.client.api import ApiClient
from batchyard.errors import ConfigurationError
from tests.support.servers import Server, listening

NAMES = [name for scheme in ("http", "https", "all", "no") for name in (f"{scheme}_proxy", f"{scheme.upper()}_PROXY")]
DEAD = "http://127.0.0.1:9"


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """An environment that names no proxy."""
    for name in NAMES:
        monkeypatch.delenv(name, raising=False)
    return monkeypatch


@pytest.mark.parametrize(("host", "written"), [("::1", "[::1]:80"), ("127.0.0.1", "127.0.0.1:80"), ("a.b", "a.b:80")])
def test_an_ipv6_address_is_in_brackets_before_a_port(host: str, written: str) -> None:
    assert proxies.address(host, 80) == written


@pytest.mark.parametrize("host", ["localhost", "LOCALHOST", "127.0.0.1", "127.9.9.9", "[::1]"])
@pytest.mark.parametrize("name", ["HTTP_PROXY", "http_proxy", "ALL_PROXY"])
def test_loopback_is_asked_directly(name: str, host: str, environment: pytest.MonkeyPatch) -> None:
    environment.setenv(name, DEAD)
    assert proxies.proxy_of(f"http://{host}:8000") is None
    assert proxies.proxy_of("http://other.example:8000") == DEAD


def test_hosts_of_no_proxy_are_asked_directly_and_a_proxy_needs_no_scheme(environment: pytest.MonkeyPatch) -> None:
    environment.setenv("http_proxy", "proxy.example:3128")
    environment.setenv("no_proxy", "batchyard.example,.inside.example")
    assert proxies.proxy_of("http://other.example") == "http://proxy.example:3128"
    assert proxies.proxy_of("https://other.example") is None
    assert proxies.proxy_of("http://batchyard.example:8000") is None
    assert proxies.proxy_of("http://a.inside.example") is None


@pytest.mark.parametrize("proxy", [DEAD, "socks5://127.0.0.1:9"])
def test_the_client_reaches_a_server_of_this_machine_whatever_proxy_is_set(
    proxy: str, environment: pytest.MonkeyPatch
) -> None:
    for name in NAMES[:6]:
        environment.setenv(name, proxy)
    with listening(Server()) as server:
        assert ApiClient(server.url.removesuffix("/v1"), "key").models() == [{"id": "theirs"}]


def test_a_socks_proxy_without_what_speaks_socks_is_one_line_with_the_remedy(environment: pytest.MonkeyPatch) -> None:
    environment.setenv("ALL_PROXY", "socks5://127.0.0.1:1080")
    with pytest.raises(ConfigurationError, match=r"http://batchyard\.example:8000 .*SOCKS.* 'httpx\[socks\]'"):
        ApiClient("http://batchyard.example:8000", "key")


def test_programs_of_a_stack_ask_loopback_directly_beside_the_hosts_that_were_named() -> None:
    spared = proxies.sparing({"NO_PROXY": "a.example,localhost"})
    assert spared == dict.fromkeys(("no_proxy", "NO_PROXY"), "a.example,localhost,127.0.0.1,::1")
    code = "import urllib.request as r; print([bool(r.proxy_bypass(host)) for host in ('::1', 'other.example')])"
    command = [sys.executable, "-c", code]
    printed = subprocess.run(command, env={**os.environ, **spared, "http_proxy": DEAD}, capture_output=True, check=True)
    assert printed.stdout == b"[True, False]\n"
