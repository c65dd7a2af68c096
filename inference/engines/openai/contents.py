"""What is sent to an endpoint: a body as JSON, or as a form where the endpoint takes a file."""

from __future__ import annotations

import io
from collections.abc import Mapping
from typing import Any, NamedTuple

import aiohttp
import httpx

from batchyard import json_lines
from batchyard.endpoints.bodies.audio import MAX_AUDIO_BYTES, PLAIN_FORMATS, TOO_LARGE, decoded
from batchyard.endpoints.catalog import AUDIO
from batchyard.wording import quoted
from inference.engine import EngineAnswer

DOWNLOAD = aiohttp.ClientTimeout(total=60, connect=5)
_SUFFIXES = {
    **{"mpeg": "mp3", "x-wav": "wav", "wave": "wav", "vnd.wave": "wav", "x-m4a": "m4a", "x-flac": "flac"},
    **{"amr-wb": "awb", "x-caf": "caf", "basic": "au", "x-ms-wma": "wma"},
}
"""Suffixes of files that differ from the media type's name. OpenAI's server tells formats by them."""


class Content(NamedTuple):
    """The content of a request, and its type.

    Attributes:
        plain: the response is a text, not JSON.
    """

    data: bytes
    media_type: str = "application/json"
    plain: bool = False


async def of(endpoint: str, parameters: Mapping[str, Any]) -> Content | EngineAnswer:
    """Return what an endpoint is sent, or the answer to a request whose file cannot be had."""
    if endpoint not in AUDIO:
        return Content(json_lines.dumps(parameters))
    url = parameters["file_url"]
    try:
        media_type, file = decoded(url) if url[:5].lower() == "data:" else await _downloaded(url)
    except (ValueError, aiohttp.ClientError, TimeoutError) as error:
        reason = str(error) if type(error) is ValueError else f"could not be fetched: {error or type(error).__name__}"
        return EngineAnswer.refused(f"The audio {quoted(url)} {reason}.", param="file_url", code="invalid_file")
    subtype = media_type.partition("/")[2]
    name = f"audio.{_SUFFIXES.get(subtype, subtype) or 'bin'}"
    fields = {key: value for key, value in parameters.items() if key != "file_url"}
    form = httpx.Request(
        "POST", "http://form", data=_fields(fields), files={"file": (name, io.BytesIO(file), media_type)}
    )
    plain = parameters.get("response_format") in PLAIN_FORMATS
    return Content(form.read(), form.headers["Content-Type"], plain)


def _fields(parameters: Mapping[str, Any]) -> dict[str, Any]:
    """Return parameters as fields of a form: a list's name ends in brackets, objects are JSON."""
    fields: dict[str, Any] = {}
    for name, value in parameters.items():
        if isinstance(value, list):
            fields[f"{name}[]"] = [str(entry) for entry in value]
        else:
            fields[name] = json_lines.dumps(value).decode() if isinstance(value, dict) else value
    return fields


async def _downloaded(url: str) -> tuple[str, bytes]:
    """Fetch a file from a URL that the model's media policy allows; no redirects, which could lead elsewhere.

    Raises:
        ValueError: there is none, for this reason.
        aiohttp.ClientError, TimeoutError: it cannot be fetched.
    """
    data = bytearray()
    async with (
        aiohttp.ClientSession(timeout=DOWNLOAD, cookie_jar=aiohttp.DummyCookieJar()) as session,
        session.get(url, allow_redirects=False) as response,
    ):
        if response.status != 200:
            raise ValueError(f"could not be fetched: HTTP {response.status}")
        async for chunk in response.content.iter_any():
            data += chunk
            if len(data) > MAX_AUDIO_BYTES:
                raise ValueError(TOO_LARGE)
        return response.content_type, bytes(data)
