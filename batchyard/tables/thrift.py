"""Reads Thrift's compact protocol, in which Parquet's footers and page headers are written."""

from typing import IO, Any

FIELDS = 16
_MOST_FIELDS = 64
"""More than any of Parquet's structs has."""
_DEEPEST = 8
_BOOLEANS, _BYTE, _INTEGERS, _DOUBLE, _BINARY, _LISTS, _STRUCT = (1, 2), 3, (4, 5, 6), 7, 8, (9, 10), 12


def struct(file: IO[bytes], depth: int = 0) -> list[Any]:
    """Read a struct: its numbers, lists and structs by the number of their field, up to FIELDS; 0 for all else."""
    fields: list[Any] = [0] * (FIELDS + 1)
    number = 0
    for _ in range(_MOST_FIELDS):
        head = _byte(file)
        if not head:
            return fields
        number = number + (head >> 4) if head >> 4 else _zigzag(file)
        value = None if head & 15 in _BOOLEANS else _value(file, head & 15, depth)  # booleans are in the head
        if 1 <= number <= FIELDS and value is not None:
            fields[number] = value
    raise EOFError("a struct has too many fields")


def _value(file: IO[bytes], kind: int, depth: int) -> Any:
    if kind in _INTEGERS:
        return _zigzag(file)
    if kind in (*_BOOLEANS, _BYTE):
        return _byte(file)
    if kind in (_DOUBLE, _BINARY):
        file.seek(8 if kind == _DOUBLE else min(_varint(file), 2**31), 1)
        return None
    if kind in _LISTS:
        head = _byte(file)
        count = _varint(file) if head >> 4 == 15 else head >> 4
        return [_value(file, head & 15, depth) for _ in range(count)]
    if kind == _STRUCT and depth < _DEEPEST:
        return struct(file, depth + 1)
    raise EOFError("a value has no known type")


def _byte(file: IO[bytes]) -> int:
    byte = file.read(1)
    if not byte:
        raise EOFError("it ends too early")
    return byte[0]


def _varint(file: IO[bytes]) -> int:
    value = shift = 0
    while (byte := _byte(file)) & 0x80 and shift < 63:
        value |= (byte & 0x7F) << shift
        shift += 7
    return value | byte << shift


def _zigzag(file: IO[bytes]) -> int:
    value = _varint(file)
    return value >> 1 ^ -(value & 1)
