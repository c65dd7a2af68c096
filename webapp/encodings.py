"""Compressed bodies of requests: Content-Encoding gzip and deflate, decompressed piece by piece.

Limits of sizes count what comes out. No piece is larger than PIECE_BYTES, so a small body that unpacks to gigabytes
meets them first.
"""

from __future__ import annotations

import io
import zlib
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any

from batchyard.errors import EncodingError, RequestError
from batchyard.wording import quoted

if TYPE_CHECKING:
    from _typeshed.wsgi import StartResponse, WSGIEnvironment

PIECE_BYTES = 256 * 1024
_GZIP, _ZLIB, _RAW = 16 + zlib.MAX_WBITS, zlib.MAX_WBITS, -zlib.MAX_WBITS
_BITS = {"gzip": _GZIP, "x-gzip": _GZIP, "deflate": _ZLIB}


def encoding_of(header: str | None) -> str | None:
    """Return the encoding that a header Content-Encoding names; None if the body is as it is. Raises EncodingError."""
    name = (header or "").strip().lower()
    if name in ("", "identity"):
        return None
    if name not in _BITS:
        raise EncodingError(
            f"The header Content-Encoding names {quoted(name)}; send the body with gzip, deflate or no encoding."
        )
    return name


class Inflater:
    def __init__(self, encoding: str) -> None:
        self._encoding = encoding
        self._bits = _BITS[encoding]
        self._stream: Any = None

    def pieces(self, data: bytes) -> Iterator[bytes]:
        """Yield what the next bytes of the body decompress to. Raises RequestError."""
        try:
            while data:
                if self._stream is None:
                    if self._bits == _ZLIB and data[0] & 15 != 8:  # some clients leave the header out
                        self._bits = _RAW
                    self._stream = zlib.decompressobj(self._bits)
                while piece := self._stream.decompress(data, PIECE_BYTES):
                    data = self._stream.unconsumed_tail
                    yield piece
                data = b""
                if self._stream.eof:  # a body may be several members one after the other
                    data, self._stream = self._stream.unused_data, None
        except zlib.error as error:
            raise RequestError(f"The body is not {self._encoding}, as its header says: {error}.") from error

    def end(self) -> None:
        """Raise RequestError if the body has ended too early."""
        if self._stream is not None:
            raise RequestError(f"The body ends within its {self._encoding} data; send it again.")


class InflatedBodies:
    """WSGI middleware: the application reads bodies decompressed. Other encodings are its to refuse."""

    def __init__(self, app: Callable[[WSGIEnvironment, StartResponse], Iterable[bytes]]) -> None:
        self._app = app

    def __call__(self, environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        from werkzeug.wsgi import get_input_stream  # the gateway has no use for it

        try:
            encoding = encoding_of(environ.get("HTTP_CONTENT_ENCODING"))
        except EncodingError:
            encoding = None
        if encoding is not None:
            body = _InflatedReader(get_input_stream(environ), Inflater(encoding))
            del environ["HTTP_CONTENT_ENCODING"]
            environ.pop("CONTENT_LENGTH", None)
            environ |= {"wsgi.input": io.BufferedReader(body, PIECE_BYTES), "wsgi.input_terminated": True}
        return self._app(environ, start_response)


class _InflatedReader(io.RawIOBase):
    def __init__(self, source: Any, inflater: Inflater) -> None:
        self._source, self._inflater = source, inflater
        self._pieces: Iterator[bytes] = iter(())
        self._rest = b""

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        while not self._rest:
            piece = next(self._pieces, None)
            if piece is not None:
                self._rest = piece
            elif data := self._source.read(PIECE_BYTES):
                self._pieces = self._inflater.pieces(data)
            else:
                self._inflater.end()
                return 0
        size = min(len(buffer), len(self._rest))
        buffer[:size], self._rest = self._rest[:size], self._rest[size:]
        return size
