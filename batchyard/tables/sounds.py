"""Audio in cells and in files of a folder, as data: URLs.

Audio is bytes, a mapping with `bytes` or `path` as in datasets of Hugging Face, or a URL.
"""

import base64
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from batchyard.json_lines import MAX_LINE_BYTES
from batchyard.tables.cells import CellError, Unreadable, is_empty

MAX_BYTES = (MAX_LINE_BYTES - 2**16) * 3 // 4
"""Bytes of audio that a request's line has room for, in Base64."""
_URLS = ("http://", "https://", "data:")
_NO_URL = "holds a text that is no URL (http, https or data); a path is not read: name the folder, or put bytes there"
_FORMATS = {
    b"fLaC": "flac",
    b"OggS": "ogg",
    b"ID3": "mpeg",
    b"\x1aE\xdf\xa3": "webm",
    b"FORM": "aiff",
    b"#!AMR-WB": "amr-wb",
    b"#!AMR": "amr",
    b"caff": "x-caf",
    b".snd": "basic",
    b"0&\xb2u\x8ef\xcf\x11": "x-ms-wma",
}
"""Media types by the first bytes of a file. Which of them can be read is for the engine to say."""


def url(value: Any, column: str | None = None) -> str:
    """Return a cell's audio as a URL. Raises CellError, which names the column."""
    try:
        return _url(value)
    except CellError as error:
        raise CellError(error.reason, error.code, column) from None


def of_file(file: Path) -> str:
    """Return the audio of a file as a data: URL. Raises CellError if it has none, too much, or cannot be read."""
    try:
        size = file.stat().st_size
        return _data_url(file.read_bytes() if size <= MAX_BYTES else b"", size)
    except OSError as error:
        raise CellError(f"the file cannot be read: {error.strerror or error}") from None
    except CellError as error:
        raise CellError(f"the file {error.reason}") from None


def files(folder: Path) -> list[Path]:
    """Return the files of a folder and its folders, by name. Hidden ones are left out."""
    there = (file.relative_to(folder) for file in folder.rglob("*") if file.is_file())
    return sorted(file for file in there if not any(part.startswith(".") for part in file.parts))


def _url(value: Any) -> str:
    if is_empty(value):
        raise CellError("is empty", "empty_value")
    if isinstance(value, str):
        if not value.startswith(_URLS):
            raise CellError(_NO_URL)
        return value
    if isinstance(value, Unreadable):
        raise CellError(value.reason)
    if isinstance(value, bytes | bytearray | memoryview):
        return _data_url(bytes(value), len(value))
    if isinstance(value, Mapping):
        if value.get("bytes") is not None:
            return _url(value["bytes"])
        if value.get("path") is not None:
            return of_file(Path(value["path"]))
    raise CellError(f"holds a {type(value).__name__}, which is no audio; pass the bytes of a file")


def _data_url(content: bytes, size: int) -> str:
    if size > MAX_BYTES:
        room = f"a request has room for {MAX_BYTES / 2**20:.1f} MB"
        raise CellError(f"is too long: it has {size / 2**20:.1f} MB, and {room}; send it in parts")
    if not content:
        raise CellError("has no audio: it has 0 bytes")
    kind = _kind(content)
    if kind is None:
        raise CellError(
            "is no audio: it is neither WAV, FLAC, Ogg, MP3, MP4, WebM, AIFF, AMR, CAF, AU nor WMA; convert it to one "
            "of these"
        )
    return f"data:audio/{kind};base64,{base64.b64encode(content).decode()}"


def _kind(content: bytes) -> str | None:
    if content[:4] in (b"RIFF", b"RF64", b"BW64") and content[8:12] == b"WAVE":  # those of more than 4 GB, too
        return "wav"
    if content[4:8] == b"ftyp":
        return "mp4"
    if len(content) > 1 and content[0] == 0xFF and content[1] & 0xE0 == 0xE0:  # a frame of MPEG without a tag
        return "mpeg"
    return next((kind for start, kind in _FORMATS.items() if content.startswith(start)), None)
