"""Formats of tables by the suffix of a file's name, and compression."""

import io
from pathlib import PurePath
from typing import IO, Any, Literal, NamedTuple

Format = Literal["txt", "prompts", "csv", "tsv", "jsonl", "parquet"]
FORMATS: dict[str, Format] = {
    ".txt": "txt",
    ".prompts": "prompts",
    ".csv": "csv",
    ".tsv": "tsv",
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".parquet": "parquet",
}
COMPRESSIONS = {".gz": "gzip", ".zst": "zstd", ".bz2": "bz2"}
_MAGIC = {b"\x1f\x8b": "gzip", b"\x28\xb5\x2f\xfd": "zstd", b"BZh": "bz2"}
DELIMITERS = {"csv": ",", "tsv": "\t"}
UNIFORM = (*DELIMITERS, "parquet")
"""Formats whose rows have the same columns."""
NAMES = ", ".join(FORMATS)
COMPRESSED = ", ".join(f".csv{suffix}" for suffix in COMPRESSIONS)


class Kind(NamedTuple):
    """What a file holds, by its name. `stem`: the name without its suffixes."""

    stem: str
    format: Format
    compression: str | None = None


class TableError(Exception):
    """A file cannot be read as a table. The message names the place."""

    def __init__(self, message: str, code: str = "invalid_value") -> None:
        super().__init__(message)
        self.message = message
        self.code = code


def kind_of(name: str) -> Kind | None:
    """Return what a file of this name holds; None if the name does not say."""
    path = PurePath(name)
    compression = compression_of(name)
    if compression:
        path = path.with_suffix("")
    kind = FORMATS.get(path.suffix.lower())
    if kind is None or (kind == "parquet" and compression):
        return None
    return Kind(path.stem, kind, compression)


def compression_of(name: str) -> str | None:
    """Return how the content of a file of this name is compressed."""
    return COMPRESSIONS.get(PurePath(name).suffix.lower())


def compression_by_content(start: bytes) -> str | None:
    """Return how content is compressed that begins with these bytes."""
    return next((name for magic, name in _MAGIC.items() if start.startswith(magic)), None)


def decompressed(file: IO[bytes], compression: str | None, max_bytes: int | None = None) -> IO[bytes]:
    """Return the decompressed content of a file; the file itself without a compression."""
    if compression is None:
        return file
    import pyarrow as pa

    return io.BufferedReader(_Decompressed(pa.CompressedInputStream(file, compression), max_bytes), 1 << 18)


class _Decompressed(io.RawIOBase):
    def __init__(self, stream: Any, max_bytes: int | None) -> None:
        self._stream, self._max_bytes, self._size = stream, max_bytes, 0

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        import pyarrow as pa

        try:
            content = self._stream.read(len(buffer))
        except (OSError, pa.ArrowException):
            raise TableError("The file cannot be decompressed") from None
        self._size += len(content)
        if self._max_bytes is not None and self._size > self._max_bytes:
            message = f"The file has more than {self._max_bytes} bytes when it is decompressed"
            raise TableError(message, "file_too_large")
        buffer[: len(content)] = content
        return len(content)
