"""Where the server is, and with which key: from the environment, `.env`, or a local stack's data folder.

Without the settings (pydantic), which take long to import: Tab completion and `--help` do without them.
"""

import os
from pathlib import Path

from batchyard.errors import ConfigurationError
from batchyard.local_state import local_state

LOOPBACK = ("127.0.0.1", "localhost", "::1")


def environment() -> dict[str, str | None]:
    """Return the variables of the environment and of `.env`."""
    if not Path(".env").is_file():
        return dict(os.environ)
    from dotenv import dotenv_values

    return {**dotenv_values(".env"), **os.environ}


def data_folder(data: Path | None) -> Path:
    """Return the data folder as the settings have it, without them."""
    return data or Path(environment().get("BATCHYARD_DATA") or "data").expanduser()


def configured_url() -> str | None:
    """The server that BATCHYARD_URL names, in the environment or `.env`; None if unset."""
    return (environment().get("BATCHYARD_URL") or "").strip() or None


def server_runs(data: Path) -> bool:
    """True if BATCHYARD_URL names a server or a local stack runs on `data`."""
    return configured_url() is not None or bool(local_state(data))


def address(data: Path, option: str = "--data") -> tuple[str, str]:
    """Return URL and key of the server at BATCHYARD_URL, or of the local stack on the folder `data`.

    `option` is what names the folder, for messages. Without BATCHYARD_API_KEY the key is the local stack's admin key,
    but for this machine only.

    Raises ConfigurationError: there is no key to send, or the URL or the key cannot be used.
    """
    from urllib.parse import urlsplit

    url = configured_url() or local_state(data).get("url") or "http://127.0.0.1:8000"
    if urlsplit(url).scheme not in ("http", "https"):
        raise ConfigurationError(f"BATCHYARD_URL={url}: write it with its scheme, such as http://{url}")
    key = (environment().get("BATCHYARD_API_KEY") or "").strip()  # a file's content ends with a line feed
    key_file = data / "admin.key"
    if not key and urlsplit(url).hostname in LOOPBACK and key_file.is_file():
        key = key_file.read_text().strip()
    if not key:
        raise ConfigurationError(
            f"no API key for {url}: set BATCHYARD_API_KEY, or name a local stack's folder with {option} "
            f"({key_file} is not there)"
        )
    if not (key.isascii() and key.isprintable()):
        raise ConfigurationError("BATCHYARD_API_KEY has a character that no key has, such as a typographic quote")
    return url.rstrip("/").removesuffix("/v1"), key  # OpenAI's clients are given the longer one
