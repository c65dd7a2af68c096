"""`batchyard.embed`: a vector for each row of a table."""

from __future__ import annotations

import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Literal, Self

import numpy as np
import numpy.typing as npt

from batchyard.client import asking, frames
from batchyard.client.api import ApiClient
from batchyard.client.asking import RowResults, Values
from batchyard.client.frames import Column
from batchyard.endpoints import responses
from batchyard.endpoints.catalog import EMBEDDINGS
from batchyard.errors import ConfigurationError
from batchyard.tables.template import Template

Matrix = npt.NDArray[np.floating[Any]]
DTYPES = ("float32", "float16")
CHUNK = 4096
"""Rows whose vectors are read back at once."""


def embed(
    data: Any,
    text: str,
    *,
    model: str,
    normalize: bool = False,
    dtype: Literal["float32", "float16"] = "float32",
    details: bool = False,
    window: str = "24h",
    again: bool = False,
    progress: bool = True,
    server: ApiClient | None = None,
    **parameters: Any,
) -> Any:
    """Return a vector for each row of a table, in the order of the rows.

    The same call again takes up the batches of the first, as that of `batchyard.map` does.

    Args:
        data: a table, as `map` takes it.
        text: what has a vector: a column, or a template with columns in braces, such as "{title}: {text}".
        normalize: make the length of vectors 1. Many models do so themselves.
        dtype: of the numbers.
        details: return a table with columns `error` and `tokens` beside the vectors.
        window, again, progress, server: as `map` has them.
        parameters: others of the requests' bodies, such as `dimensions`.

    Returns:
        A column as that of `map`, or with `details` a table with a column `embedding`. A vector is an array of NumPy
        in pandas and in lists, and a list of fixed size in Arrow and polars. What has no answer is None.

    Raises:
        ConfigurationError, RequestError, UnavailableError: as `map`.
    """
    frame = frames.of(data)
    how = asking.CallOptions(window=window, again=again, progress=progress, server=server, name="embed")
    template = text_template(text, frame.columns)
    with Vectors(dtype, normalize) as vectors:
        send(asking.rows(frame, template.columns), template, vectors, how, model, **parameters)
        column = Column([vector for chunk in vectors.chunks() for vector in chunk], "vector")
    return frame.table({"embedding": column, **vectors.details()}) if details else frame.column("embedding", column)


def text_template(text: str, columns: Sequence[str]) -> Template:
    """Return the template of what has a vector: a column's name, or a template. Raises ConfigurationError."""
    template = asking.template(text if "{" in text and text not in columns else f"{{{text}}}", "text", columns)
    asking.some_column([template], columns)
    if template.images:
        raise ConfigurationError("text: images cannot be embedded; name columns of texts")
    return template


def send(
    rows: Iterable[Values], template: Template, vectors: Vectors, how: asking.CallOptions, model: str, **parameters: Any
) -> None:
    """Put the vector of each row's text into `vectors`. Raises as `embed`."""
    body = asking.parameters(model, encoding_format="base64", **parameters)
    server = how.connected()
    spec = asking.served(server, model, EMBEDDINGS.path)

    def make(values: Values) -> Mapping[str, Any]:
        return {**body, "input": template.fill(values)}

    asking.ask(server, spec, EMBEDDINGS.path, asking.requests(EMBEDDINGS.path, rows, make, vectors), vectors, how)


class Vectors(RowResults):
    """The vectors of rows, in a temporary file: memory does not hold them.

    Attributes:
        dtype: of the numbers.
        dimensions: of each vector; 0 before the first.
    """

    def __init__(self, dtype: str, normalize: bool) -> None:
        """Raises ConfigurationError for a dtype that is none of DTYPES."""
        super().__init__()
        if dtype not in DTYPES:
            raise ConfigurationError(f"dtype {dtype!r}: it should be {' or '.join(DTYPES)}")
        self.dtype = np.dtype(dtype)
        self.dimensions = 0
        self._normalize = normalize
        self._file = tempfile.TemporaryFile()  # noqa: SIM115  closed by `with`

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def keep(self, row: int, body: Mapping[str, Any]) -> str | None:
        values = responses.vectors(body)
        if len(values) != 1 or not values[0]:
            return f"the answer has {len(values)} vectors, not one"
        vector = np.asarray(values[0], np.float32)
        self.dimensions = self.dimensions or len(vector)
        if len(vector) != self.dimensions:
            return f"the vector has {len(vector)} numbers, others have {self.dimensions}"
        if self._normalize and (length := np.linalg.norm(vector)) > 0:
            vector = vector / length
        with np.errstate(over="ignore"):
            written = vector.astype(self.dtype)
        if not np.isfinite(written).all():
            return f"the vector has numbers that {self.dtype} does not hold; pass normalize, or dtype float32"
        self._file.seek(row * written.nbytes)
        self._file.write(written.tobytes())
        return None

    def chunks(self) -> Iterator[list[Matrix | None]]:
        """Yield the vectors of all rows in their order, None for one without; CHUNK rows at a time. After all ended."""
        size = self.dimensions * self.dtype.itemsize
        for start in range(0, len(self), CHUNK):
            count = min(CHUNK, len(self) - start)
            if not size:
                yield [None] * count
                continue
            self._file.seek(start * size)
            numbers = self._file.read(count * size).ljust(count * size, b"\0")
            matrix = np.frombuffer(numbers, self.dtype).reshape(count, self.dimensions)
            errors = self.errors[start : start + count]
            yield [vector if error is None else None for vector, error in zip(matrix, errors, strict=True)]
