"""Transcriptions and translations of audio (OpenAI's API reference), named by a URL as in vLLM's batches."""

import base64
import binascii
import re
from typing import Any, Literal

from pydantic import Field, PositiveInt, field_validator
from pydantic_core import PydanticCustomError

from batchyard.endpoints.bodies.common import Body

MAX_AUDIO_BYTES = 25 * 2**20
"""OpenAI's limit of an audio file, which is also vLLM's default."""
TOO_LARGE = f"has more than {MAX_AUDIO_BYTES // 2**20} MB of audio; send it in parts"
PLAIN_FORMATS = ("text", "srt", "vtt")
"""Formats that a server sends as a text, not as JSON."""
_HEADER = re.compile(r"data:[^,]{0,200},", re.IGNORECASE)


def decoded(url: str) -> tuple[str, bytes]:
    """Return the media type and the bytes of a data: URL."""
    header = _HEADER.match(url)
    if header is None or not header[0].lower().endswith(";base64,"):
        raise ValueError("is no data: URL in Base64, such as data:audio/wav;base64,UklGR…")
    if (len(url) - header.end()) * 3 // 4 > MAX_AUDIO_BYTES + 2:
        raise ValueError(TOO_LARGE)
    try:
        content = base64.b64decode(url[header.end() :], validate=True)
    except (binascii.Error, ValueError) as error:
        raise ValueError(f"is no Base64: {error}") from error
    if not content:
        raise ValueError("has no audio")
    return header[0][len("data:") :].partition(";")[0].lower(), content


class AudioBody(Body):
    """What transcriptions and translations have in common."""

    file_url: str = Field(min_length=1)
    prompt: str = ""
    language: str | None = Field(None, min_length=1, max_length=20)
    to_language: str | None = Field(None, min_length=1, max_length=20)
    hotwords: str | None = None
    temperature: float = Field(0.0, ge=0, le=1)
    max_completion_tokens: PositiveInt | None = None
    seed: int | None = Field(None, ge=-(2**63), lt=2**63)
    stream: bool = False
    file: Any = None

    @field_validator("file")
    @classmethod
    def _of_url(cls, value: Any) -> Any:
        raise PydanticCustomError("file", "a request of a batch names its audio as file_url, a data: URL for instance")

    @field_validator("file_url")
    @classmethod
    def _audio(cls, url: str) -> str:
        if url[:5].lower() == "data:":
            try:
                decoded(url)
            except ValueError as error:
                raise PydanticCustomError("file_url", "it {reason}", {"reason": str(error)}) from error
        elif not url.lower().startswith(("http://", "https://")):
            raise PydanticCustomError(
                "file_url", "it should be a data: URL, or an http(s) URL that the model may fetch"
            )
        return url


class TranscriptionBody(AudioBody):
    """The body of /v1/audio/transcriptions."""

    response_format: Literal["json", "text", "srt", "verbose_json", "vtt", "diarized_json"] = "json"
    timestamp_granularities: list[Literal["word", "segment"]] = Field(default_factory=list, fail_fast=True)
    include: list[str] = Field(default_factory=list, fail_fast=True)


class TranslationBody(AudioBody):
    """The body of /v1/audio/translations, which are into English."""

    response_format: Literal["json", "text", "srt", "verbose_json", "vtt"] = "json"
