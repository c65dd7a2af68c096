"""HTTP client of an endpoint: kept connections, no redirects, no cookies, bounded responses.

What is sent is a body as JSON, or as a form where the endpoint takes a file.

An endpoint's error may quote a prompt or a key, so it goes into that request's answer and nowhere else.
"""

import asyncio
import io
import os
from collections.abc import AsyncGenerator, Mapping
from http import HTTPStatus
from typing import Any, NamedTuple

import aiohttp
import httpx
import orjson

from batchyard import __version__, json_lines
from batchyard.endpoints.bodies.audio import MAX_AUDIO_BYTES, PLAIN_FORMATS, TOO_LARGE, decoded
from batchyard.endpoints.catalog import AUDIO
from batchyard.endpoints.responses import Fault
from batchyard.wording import quoted
from inference.engine import EngineAnswer, refusal_code
from inference.engines.openai.endpoints import RemoteEndpoint

DOWNLOAD = aiohttp.ClientTimeout(total=60, connect=5)
_SUFFIXES = {
    **{"mpeg": "mp3", "x-wav": "wav", "wave": "wav", "vnd.wave": "wav", "x-m4a": "m4a", "x-flac": "flac"},
    **{"amr-wb": "awb", "x-caf": "caf", "basic": "au", "x-ms-wma": "wma"},
}
"""Suffixes of files that differ from the media type's name. OpenAI's server tells formats by them."""
CONNECT_SECONDS = 5.0
PROBE_SECONDS = 10.0
KEEP_ALIVE_SECONDS = 4.0
"""Less than the 5 s of uvicorn (vLLM, SGLang): reusing a connection as the server closes it fails a request."""
MAX_RESPONSE_BYTES = 256 * 2**20
MAX_EVENT_BYTES = 2**20
"""Longest line of a stream: aiohttp reads no longer ones than its buffer."""
MAX_QUOTED = 300
"""Bytes of a response that an error quotes."""
BAD_GATEWAY = 502
NO_SUCH_ROUTE = (404, 405, 501)
_OFTEN_V1 = "; the base URLs of most servers end in /v1"
MISCONFIGURED = (*range(300, 400), 401, 403, *NO_SUCH_ROUTE)
"""Statuses that show a wrong URL, key, model or option of the server, whatever the request."""


class Content(NamedTuple):
    """The content of a request, and its type. `plain`: the response is a text, not JSON."""

    data: bytes
    media_type: str = "application/json"
    plain: bool = False


async def sent_as(endpoint: str, parameters: Mapping[str, Any]) -> Content | EngineAnswer:
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
    """Fetch a file from a URL that the model's media policy allows; no redirects, which could lead elsewhere."""
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


NOTHING = Content(b"")


class EndpointReply(NamedTuple):
    """A response, whole, or with a stream of events that is still to be read."""

    status: int
    retry_after: str | None
    data: bytes
    media_type: str = ""
    stream: aiohttp.ClientResponse | None = None


class NoReply(Exception):
    """No response arrived. `connected`: the request may have been run."""

    def __init__(self, error: Exception) -> None:
        self.connected = not isinstance(error, (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError))
        self.reason = f"the connection broke off ({type(error).__name__})" if self.connected else str(error)
        super().__init__(self.reason)


class ProbeFailed(Exception):
    """An endpoint failed a probe. `responded`: there was a response; `fatal`: its configuration is wrong."""

    def __init__(self, reason: str, *, responded: bool = True, fatal: bool = False) -> None:
        super().__init__(reason)
        self.reason = reason
        self.responded = responded
        self.fatal = fatal


class EndpointClient:
    """The HTTP client of all endpoints of an engine.

    It is aiohttp's, because httpx takes 30 times the CPU per request with 256 requests at once.
    """

    def __init__(self) -> None:
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=KEEP_ALIVE_SECONDS),
            timeout=aiohttp.ClientTimeout(total=None, connect=CONNECT_SECONDS),
            read_bufsize=MAX_EVENT_BYTES,
            headers={"Accept-Encoding": "identity", "User-Agent": f"batchyard/{__version__}"},
            cookie_jar=aiohttp.DummyCookieJar(),
        )

    async def close(self) -> None:
        await self._session.close()

    async def post(
        self, endpoint: RemoteEndpoint, path: str, content: Content, *, streams: bool = False
    ) -> EndpointReply:
        """Send a request; with `streams`, whoever gets the response reads and closes it. Raises NoReply."""
        # Routes beside OpenAI's, such as vLLM's /tokenize, stand beside /v1.
        of_openai, root = path.startswith("/v1/"), endpoint.url.removesuffix("/v1")
        url = endpoint.url + path.removeprefix("/v1") if of_openai else root + path
        return await self._request("POST", endpoint, url, content, streams=streams)

    @staticmethod
    async def events(response: aiohttp.ClientResponse) -> AsyncGenerator[bytes]:
        """Yield the lines of each event of a stream, one event at a time. Raises NoReply."""
        lines: list[bytes] = []
        try:
            while line := await response.content.readline():
                if line.strip():
                    lines.append(line.rstrip(b"\r\n"))
                elif lines:
                    yield b"\n".join(lines)
                    lines = []
        except (aiohttp.ClientError, ConnectionError, ValueError) as error:  # ValueError: a line without end
            raise NoReply(error) from error
        if lines:
            yield b"\n".join(lines)

    async def probe(self, endpoint: RemoteEndpoint, model: str) -> None:
        """Check that its /models lists the model if it lists any, or else that its server is healthy."""
        names = await self.models(endpoint)
        if names and model not in names:
            raise ProbeFailed(f"it serves {', '.join(names[:8])}, not {model}", fatal=True)

    async def models(self, endpoint: RemoteEndpoint) -> list[str] | None:
        """Return the models that its /models lists; None if a healthy server has no such list."""
        variable = endpoint.api_key_env
        if variable and not os.environ.get(variable):
            raise ProbeFailed(f"environment variable {variable} is not set", fatal=True)
        root = endpoint.url.removesuffix("/v1")
        reply = await self._probed(endpoint, f"{endpoint.url}/models")
        has_list = reply.status not in NO_SUCH_ROUTE
        if not has_list:
            reply = await self._probed(endpoint, f"{root}/health")
        if endpoint.version is None and reply.status == 200:
            shown = await self._probed(endpoint, f"{root}/version")
            version = json_object(shown.data).get("version") if shown.status == 200 else None
            endpoint.version = version if isinstance(version, str) else ""
        if reply.status not in (200, 429):
            remedy = "" if endpoint.url.endswith("/v1") or reply.status not in NO_SUCH_ROUTE else _OFTEN_V1
            raise ProbeFailed(described(reply.status) + remedy, fatal=reply.status in MISCONFIGURED)
        listed = json_object(reply.data).get("data")
        entries = listed if isinstance(listed, list) else []
        return [str(entry.get("id")) for entry in entries if isinstance(entry, dict)] if has_list else None

    async def status(self, endpoint: RemoteEndpoint, path: str) -> int:
        """Return the status with which its server answers a GET of `path`. Raises ProbeFailed: it does not answer."""
        return (await self._probed(endpoint, endpoint.url.removesuffix("/v1") + path)).status

    async def _probed(self, endpoint: RemoteEndpoint, url: str) -> EndpointReply:
        try:
            async with asyncio.timeout(PROBE_SECONDS):
                return await self._request("GET", endpoint, url)
        except NoReply as error:
            raise ProbeFailed(error.reason, responded=False) from error
        except TimeoutError as error:
            raise ProbeFailed(f"no answer to a probe within {PROBE_SECONDS:g} s", responded=False) from error

    async def _request(
        self, method: str, endpoint: RemoteEndpoint, url: str, content: Content = NOTHING, *, streams: bool = False
    ) -> EndpointReply:
        key = os.environ.get(endpoint.api_key_env, "").strip() if endpoint.api_key_env else ""
        headers = {"Content-Type": content.media_type} | ({"Authorization": f"Bearer {key}"} if key else {})
        data = bytearray()
        try:
            response = await self._session.request(
                method, url, data=content.data or None, headers=headers, allow_redirects=False
            )
            if streams and response.status == 200 and response.content_type == "text/event-stream":
                return EndpointReply(200, None, b"", stream=response)
            async with response:
                async for chunk in response.content.iter_any():
                    data += chunk
                    if len(data) > MAX_RESPONSE_BYTES:
                        raise aiohttp.ClientPayloadError
                after = response.headers.get("Retry-After")
                return EndpointReply(response.status, after, bytes(data), response.content_type)
        except (aiohttp.ClientError, ConnectionError) as error:
            raise NoReply(error) from error


def refused(status: int, data: bytes) -> EngineAnswer:
    """Return an endpoint's error response in OpenAI's form, with the endpoint's message."""
    body = json_object(data)
    error = body.get("error", body)
    if not isinstance(error, dict):
        error = {"message": error}
    message = error.get("message") or error.get("detail") or data[:1000].decode(errors="replace")
    if not isinstance(message, str):
        message = json_lines.dumps(message).decode()
    # Some servers have a number as code (vLLM: the status again), which OpenAI's clients do not accept.
    details = {key: error[key] for key in ("type", "param", "code") if isinstance(error.get(key), str)}
    answer = EngineAnswer.refused(message or described(status), code=refusal_code(message), status=status)
    assert answer.body is not None
    return EngineAnswer(status, {"error": {**answer.body["error"], **details}})


def no_answer(url: str, data: bytes, fault: Fault) -> EngineAnswer:
    """Return the error of a response with status 200 that is no answer: the endpoint's, or what is wrong with it."""
    if fault.error:
        return refused(fault.status or BAD_GATEWAY, json_lines.dumps({"error": fault.error}))
    text = " ".join(data[:MAX_QUOTED].decode(errors="replace").split()) or "an empty body"
    return EngineAnswer.failed(
        "invalid_response", f"endpoint {url}: HTTP 200 without an answer: {fault.message}: {text}"
    )


def json_object(data: bytes | str) -> dict[str, Any]:
    """Return a JSON object; an empty one if `data` is not a JSON object."""
    try:
        value = json_lines.loads(data)
    except orjson.JSONDecodeError:
        return {}
    return value if isinstance(value, dict) else {}


def described(status: int) -> str:
    """Return a status with its phrase, such as `HTTP 404 Not Found`."""
    phrase = HTTPStatus(status).phrase if status in set(HTTPStatus) else ""
    return f"HTTP {status} {phrase}".strip()
