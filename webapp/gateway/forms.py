"""Forms of live requests: audio comes as a file in a multipart form, as OpenAI's clients send it."""

import base64
from collections.abc import Callable, Mapping
from typing import Any

from aiohttp import BodyPartReader, MultipartReader, StreamReader, web
from aiohttp.http_exceptions import HttpProcessingError

from batchyard.endpoints.bodies.audio import MAX_AUDIO_BYTES, TOO_LARGE
from batchyard.errors import RequestError, TooLargeError

MAX_FIELD_BYTES = 64 * 1024
MAX_FIELDS = 50
MAX_FORM_BYTES = MAX_AUDIO_BYTES + MAX_FIELDS * MAX_FIELD_BYTES
_READERS: Mapping[str, Callable[[str], Any]] = {
    **{"temperature": float, "max_completion_tokens": int, "seed": int},
    "stream": lambda text: text.lower() in ("true", "1"),
}
_LISTS = ("timestamp_granularities", "include")


async def audio_body(request: web.Request, form: bytes) -> dict[str, Any]:
    """Return a transcription's form as a body whose `file_url` holds the file. Raises TooLargeError, RequestError."""
    stream = StreamReader(request.protocol, limit=len(form))
    stream.feed_data(form)
    stream.feed_eof()
    try:
        return await _fields(MultipartReader(request.headers, stream))
    except (AssertionError, ValueError, HttpProcessingError) as error:  # aiohttp's, of a form that is none
        raise RequestError(f"The form cannot be read: {error}.", code="invalid_value") from error


async def _fields(reader: MultipartReader) -> dict[str, Any]:
    body: dict[str, Any] = {}
    for _ in range(MAX_FIELDS):
        part = await reader.next()
        if part is None:
            return body
        if not isinstance(part, BodyPartReader) or part.name is None:
            raise RequestError("Each part of the form needs a name.", code="invalid_value")
        name = part.name.removesuffix("[]")
        if name == "file":
            content = await _read(part, MAX_AUDIO_BYTES, f"The file {TOO_LARGE}.")
            media_type = part.headers.get("Content-Type", "application/octet-stream").partition(";")[0]
            body["file_url"] = f"data:{media_type};base64,{base64.b64encode(content).decode()}"
            continue
        text = (await _read(part, MAX_FIELD_BYTES, f"The field {name} is too long.")).decode(errors="replace")
        if name in _LISTS:
            body.setdefault(name, []).append(text)
            continue
        try:
            body[name] = _READERS.get(name, str)(text)
        except ValueError as error:
            raise RequestError(f"{name}: {text!r} is no number.", code="invalid_value", param=name) from error
    raise RequestError(f"The form has more than {MAX_FIELDS} fields.", code="invalid_value")


async def _read(part: BodyPartReader, limit: int, message: str) -> bytes:
    content = bytearray()
    while chunk := await part.read_chunk():
        content += chunk
        if len(content) > limit:
            raise TooLargeError(message, code="file_too_large", param=part.name)
    return bytes(content)
