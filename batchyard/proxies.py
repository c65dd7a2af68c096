"""Hosts in URLs, and which proxy the environment names for a URL. No proxy leads to this machine's own addresses."""

import ipaddress
import urllib.request
from collections.abc import Mapping
from urllib.parse import urlsplit

LOOPBACK = ("localhost", "127.0.0.1", "::1")
_VARIABLES = ("no_proxy", "NO_PROXY")


def address(host: str, port: int) -> str:
    """Return `host:port` as URLs have it: an IPv6 address in brackets."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def proxy_of(url: str) -> str | None:
    """Return the URL of the proxy for requests to `url`; None if they go there directly."""
    parts = urlsplit(url)
    if is_loopback(parts.hostname or "") or urllib.request.proxy_bypass(parts.netloc.rpartition("@")[2]):
        return None
    proxies = urllib.request.getproxies()
    proxy = proxies.get(parts.scheme) or proxies.get("all")
    return proxy if not proxy or "://" in proxy else f"http://{proxy}"


def is_loopback(host: str) -> bool:
    """True for the names and addresses by which this machine reaches itself."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host.lower() in LOOPBACK


def sparing(environment: Mapping[str, str], *hosts: str) -> dict[str, str]:
    """Return variables by which programs reach loopback, and these hosts, without a proxy."""
    named = next((environment[name] for name in _VARIABLES if environment.get(name)), "")
    return dict.fromkeys(_VARIABLES, ",".join(filter(None, dict.fromkeys([*named.split(","), *LOOPBACK, *hosts]))))


def opener(url: str) -> urllib.request.OpenerDirector:
    """Return what opens `url` by urllib, through the proxy of `proxy_of`."""
    proxy = proxy_of(url)
    return urllib.request.build_opener(urllib.request.ProxyHandler({urlsplit(url).scheme: proxy} if proxy else {}))
