"""Seconds: an artifact of a batch with the time of each request in its engine.

Line n of the input has a little-endian 64-bit float at byte 8 * (n - 1), NaN if nobody measured it.
"""

import math
import struct
from typing import IO

import numpy as np
import numpy.typing as npt

from store.artifacts import ArtifactWriter

_FLOAT = struct.Struct("<d")


def write(file: ArtifactWriter, lines: npt.NDArray[np.int64], seconds: npt.NDArray[np.float64]) -> None:
    """Write the seconds of these lines; nothing if nobody measured any."""
    measured = ~np.isnan(seconds)
    if measured.any():
        lines, seconds = lines[measured], seconds[measured]
        values = np.full(lines.max(), np.nan, "<f8")
        values[lines - 1] = seconds
        file.write(values.tobytes())


def read(file: IO[bytes] | None, line: int) -> float | None:
    """Return the seconds of a line; None if nobody measured them. A `file` of None has none."""
    if file is None:
        return None
    file.seek(_FLOAT.size * (line - 1))
    raw = file.read(_FLOAT.size)
    value = _FLOAT.unpack(raw)[0] if raw else math.nan
    return None if math.isnan(value) else value
