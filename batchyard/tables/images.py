"""Images in cells, as content parts of chat messages.

An image is bytes (PNG, JPEG, WebP, GIF), an image of PIL, a mapping with `bytes` as in datasets of Hugging Face, or a
URL. A cell may hold a list of them.
"""

import base64
import io
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from batchyard.tables.cells import CellError, Unreadable, is_empty

COLUMNS = ("images", "image")
"""Columns whose images belong to the row's messages."""
OTHER_MEDIA = ("videos", "video", "audios", "audio")
PLACEHOLDER = "<image>"
_URLS = ("http://", "https://", "data:image/")
_NO_URL = "holds a text that is no URL of an image (http, https or data); a path is not read: put the image in the cell"

Part = dict[str, Any]


def parts(value: Any, column: str) -> list[Part]:
    """Return the content parts of a cell's images. Raises CellError, which names the column."""
    try:
        return [{"type": "image_url", "image_url": {"url": url}} for url in _urls(value)]
    except CellError as error:
        raise CellError(error.reason, error.code, column) from None


def as_text(value: Any) -> str:
    """Return binary data as text: an image as a data URL, all else in base64. Anything else becomes `str(value)`."""
    if not isinstance(value, bytes | bytearray | memoryview):
        return str(value)
    content = bytes(value)
    return _data_url(content) if _kind(content) else base64.b64encode(content).decode()


def stored(row: Mapping[str, Any], columns: Iterable[str]) -> dict[str, Any]:
    """Return a row with data URLs for the images in `columns`, and without other columns that have binary data."""
    kept = {}
    for name, value in row.items():
        if name in columns and _has_binary(value):
            urls = list(_urls(value))
            kept[name] = urls if isinstance(value, list) else urls[0]
        elif not _has_binary(value):
            kept[name] = value
    return kept


def attached(messages: list[dict[str, Any]], row: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return messages with the images of a row's columns `images` and `image` in their places.

    A place is `<image>` in a text, or a part of type `image`. Without places the images begin the first message of the
    user.

    Raises CellError: there are as many images as places, or a column holds what cannot be sent.
    """
    if media := [name for name in OTHER_MEDIA if _has_binary(row.get(name))]:
        raise CellError("holds audio or video, which is not sent; drop the column", column=media[0])
    name = next((name for name in COLUMNS if _holds_images(name, row.get(name))), None)
    if name is None:
        return messages
    images = parts(row[name], name)
    places = sum(_places(message.get("content")) for message in messages)
    if places == 0:
        first = next((index for index, message in enumerate(messages) if message.get("role") == "user"), None)
        if first is None:
            raise CellError("holds images, and no message is the user's", column=name)
        content = messages[first].get("content")
        after = content if isinstance(content, list) else [{"type": "text", "text": content}] if content else []
        return [*messages[:first], {**messages[first], "content": [*images, *after]}, *messages[first + 1 :]]
    if places != len(images):
        raise CellError(f"holds {len(images)} images, and the messages have {places} {PLACEHOLDER}", column=name)
    rest = iter(images)
    return [
        {**message, "content": list(_filled(message["content"], rest))} if _places(message.get("content")) else message
        for message in messages
    ]


def _holds_images(name: str, value: Any) -> bool:
    """True if a column has images: `images` unless it is empty or a number, `image` only if it is one."""
    is_list = isinstance(value, list | tuple) or hasattr(value, "tolist")
    if name == "images":
        return (isinstance(value, str | Mapping) and bool(value)) or (is_list and len(value) > 0) or _is_image(value)
    return _is_image(value)


def _is_image(value: Any) -> bool:
    if isinstance(value, Mapping):
        return value.get("bytes") is not None
    if isinstance(value, str):
        return value.startswith("data:image/")
    return isinstance(value, bytes | bytearray | memoryview) or _is_of_pil(value)


def _is_of_pil(value: Any) -> bool:
    return type(value).__module__.startswith("PIL.") and hasattr(value, "save")


def _has_binary(value: Any) -> bool:
    if isinstance(value, Mapping):
        return any(map(_has_binary, value.values()))
    if isinstance(value, list | tuple):
        return any(map(_has_binary, value))
    return isinstance(value, bytes | bytearray | memoryview | Unreadable) or _is_of_pil(value)


def _urls(value: Any) -> Iterator[str]:
    """Yield the URL of each image in a cell. Raises CellError."""
    if is_empty(value):
        raise CellError("is empty", "empty_value")
    if isinstance(value, str):
        if not value.startswith(_URLS):
            raise CellError(_NO_URL)
        yield value
    elif isinstance(value, bytes | bytearray | memoryview):
        yield _data_url(bytes(value))
    elif isinstance(value, Unreadable):
        raise CellError(value.reason)
    elif _is_of_pil(value):
        file = io.BytesIO()
        try:  # PNG has no form for all modes of PIL, such as CMYK
            has_form = value.mode in ("1", "L", "LA", "P", "RGB", "RGBA", "I;16")
            (value if has_form else value.convert("RGB")).save(file, "PNG")
        except (OSError, ValueError) as error:
            raise CellError(f"holds an image that cannot be read: {error}") from None
        yield _data_url(file.getvalue())
    elif isinstance(value, Mapping):
        yield from _urls(next((value[key] for key in ("bytes", "url", "path") if value.get(key) is not None), None))
    elif isinstance(value, list | tuple) or type(value).__name__ == "ndarray":
        if not len(value):
            raise CellError("is empty", "empty_value")
        for child in value:
            yield from _urls(child)
    else:
        raise CellError(f"holds a {type(value).__name__}, which is no image; pass its bytes or an image of PIL")


def _data_url(content: bytes) -> str:
    kind = _kind(content)
    if kind is None:
        raise CellError("holds bytes that are no PNG, JPEG, WebP or GIF image")
    return f"data:image/{kind};base64,{base64.b64encode(content).decode()}"


def _kind(content: bytes) -> str | None:
    if content.startswith(b"\x89PNG\r\n\x1a\n"):
        return "png"
    if content.startswith(b"\xff\xd8\xff"):
        return "jpeg"
    if content.startswith((b"GIF87a", b"GIF89a")):
        return "gif"
    return "webp" if content[:4] == b"RIFF" and content[8:12] == b"WEBP" else None


def _places(content: Any) -> int:
    """Return how many images the content of a message has places for."""
    if isinstance(content, str):
        return content.count(PLACEHOLDER)
    parts = [part for part in content if isinstance(part, Mapping)] if isinstance(content, list) else []
    return sum(_places(part.get("text")) if part.get("type") != "image" else 1 for part in parts)


def _filled(content: Any, images: Iterator[Part]) -> Iterator[Any]:
    """Yield the parts of a message's content with images in their places."""
    for part in [{"type": "text", "text": content}] if isinstance(content, str) else content:
        if not isinstance(part, Mapping) or not _places([part]):
            yield part
        elif part.get("type") == "image":
            yield next(images)
        else:
            first, *others = part["text"].split(PLACEHOLDER)
            if first:
                yield {**part, "text": first}
            for text in others:
                yield next(images)
                if text:
                    yield {**part, "text": text}
