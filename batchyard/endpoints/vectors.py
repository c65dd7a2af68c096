"""Embeddings apart from the JSON of their response: 4 bytes a number from the engine to the output file, not 10 to 20.

An engine gives each embedding as a NumPy array of float32. In the JSON its length stands in its place until the array
is put back, with as many digits as tell a number from every other float32.
"""

from typing import Any

import numpy as np
import orjson

from batchyard import json_lines

_NUMBER = np.dtype("<f4")


def set_aside(body: dict[str, Any]) -> tuple[dict[str, Any], bytes | None]:
    """Return the body of a response without its arrays, and these one behind the other; None if it has none."""
    entries = body.get("data")
    if not isinstance(entries, list) or not entries or not all(map(_has_array, entries)):
        return body, None
    arrays = [entry["embedding"] for entry in entries]
    lengths = [{**entry, "embedding": len(array)} for entry, array in zip(entries, arrays, strict=True)]
    return {**body, "data": lengths}, b"".join(array.astype(_NUMBER, copy=False).tobytes() for array in arrays)


def put_back(line: str, vectors: bytes | None) -> str:
    """Return an output line with the vectors that were set aside from its response; None if it had none."""
    if vectors is None:
        return line
    answer, numbers, begin = json_lines.loads(line), np.frombuffer(vectors, _NUMBER), 0
    for entry in answer["response"]["body"]["data"]:
        end = begin + entry["embedding"]
        entry["embedding"], begin = numbers[begin:end], end
    return json_lines.escaped(json_lines.dumps(answer, option=orjson.OPT_SERIALIZE_NUMPY)).decode()


def _has_array(entry: Any) -> bool:
    array = entry.get("embedding") if isinstance(entry, dict) else None
    return isinstance(array, np.ndarray) and array.dtype == np.float32 and array.ndim == 1
