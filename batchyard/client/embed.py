"""`batchyard.embed`: a vector for each row of a table."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, Literal, Self

import numpy as np
import numpy.typing as npt

from batchyard.client import asking, frames
from batchyard.client.answers import RowAnswer
from batchyard.client.api import ApiClient
from batchyard.client.asking import RowResults, Values
from batchyard.client.frames import Column
from batchyard.endpoints import responses
from batchyard.endpoints.catalog import EMBEDDINGS
from batchyard.errors import ConfigurationError
from batchyard.tables.cells import CellError
from batchyard.tables.template import Template

Matrix = npt.NDArray[np.floating[Any]]
DTYPES = ("float32", "float16")
CHUNK = 4096
"""Rows whose vectors are read back at once."""
TOGETHER = 64
"""Texts in one request: 20,000 short ones took 1.7 times as long one by one."""


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
        text: what has a vector: a column, or a template with columns in braces, such as "{title}: {text}" or "{*}".
        normalize: make the length of vectors 1. Many models do so themselves.
        dtype: of the numbers.
        details: return a table with columns `error` and `tokens` beside the vectors.
        window, again, progress, server: as `map` has them.
        parameters: others of the requests' bodies, such as `dimensions`.

    Returns:
        A column as that of `map`, or with `details` a table with a column `embedding`. A vector is an array of NumPy
        in pandas and in lists, and a list of fixed size in Arrow and polars. What has no answer is None.

    Raises ConfigurationError, RequestError, UnavailableError: as `map`.
    """
    frame = frames.of(data)
    how = asking.CallOptions(window=window, again=again, progress=progress, server=server, name="embed")
    template = asking.ordered(text_template(text, frame.columns), asking.rows(frame, frame.columns), say=progress)
    columns = template.needed(frame.columns)
    with Vectors(dtype, normalize) as vectors:
        if details:  # a request's tokens are those of a row only if it has no other
            send(asking.rows(frame, columns), template, vectors, how, model, **parameters)
        else:
            send_together(lambda: asking.rows(frame, columns), template, vectors, how, model, **parameters)
        column = Column([vector for chunk in vectors.chunks() for vector in chunk], "vector")
    vectors.warn()
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
    asking.ask_rows(model, EMBEDDINGS.path, rows, lambda values: {**body, "input": template.fill(values)}, vectors, how)


def send_together(
    rows: Callable[[], Iterable[Values]],
    template: Template,
    vectors: Vectors,
    how: asking.CallOptions,
    model: str,
    **parameters: Any,
) -> None:
    """Put the vector of each row's text into `vectors`, with TOGETHER texts in a request. Raises as `embed`.

    The rows of a request that is refused are sent again, each for itself: one of them may be too long.

    `rows`: returns the rows each time it is called.
    """
    body = asking.parameters(model, encoding_format="base64", **parameters)
    server = how.connected()
    spec = asking.served(server, model, EMBEDDINGS.path)

    def together() -> Iterator[bytes]:
        texts: dict[int, Any] = {}
        for values in rows():
            row = vectors.add()
            try:
                texts[row] = template.fill(values)
            except CellError as error:
                vectors.refuse(row, error)
            if len(texts) == TOGETHER:
                yield line(texts)
                texts = {}
        if texts:
            yield line(texts)

    def line(texts: Mapping[int, Any]) -> bytes:
        first = vectors.expect(list(texts))
        return asking.request_line(first, EMBEDDINGS.path, {**body, "input": list(texts.values())})

    def apart(again: Collection[int]) -> Iterator[bytes]:
        for row, values in enumerate(rows()):
            if row in again:
                yield asking.request_line(row, EMBEDDINGS.path, {**body, "input": template.fill(values)})

    asking.ask(server, spec, EMBEDDINGS.path, together(), vectors, how)
    if again := vectors.part():
        asking.ask(server, spec, EMBEDDINGS.path, apart(again), vectors, how)


class Vectors(RowResults):
    """The vectors of rows, in a temporary file: memory does not hold them."""

    def __init__(self, dtype: str, normalize: bool) -> None:
        super().__init__()
        if dtype not in DTYPES:
            raise ConfigurationError(f"dtype {dtype!r}: it should be {' or '.join(DTYPES)}")
        self.dtype = np.dtype(dtype)  # of the numbers
        self.dimensions = 0  # of each vector; 0 before the first
        self._normalize = normalize
        self._together: dict[int, list[int]] = {}
        self._refused: set[int] = set()
        self._file = tempfile.TemporaryFile()  # noqa: SIM115  closed by `with`

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def expect(self, rows: list[int]) -> int:
        """Expect the vectors of these rows in one answer, and return the row that its request is named by."""
        self._together[rows[0]] = rows
        return rows[0]

    def part(self) -> set[int]:
        """Expect an answer for each row whose request was refused with others in it, and return these rows."""
        refused, self._together, self._refused = self._refused, {}, set()
        for row in refused:
            self._ended[row] = 0
        return refused

    def record(self, row: int, answer: RowAnswer) -> None:
        rows = self._together.get(row, [row])
        if len(rows) == 1:
            return super().record(row, answer)
        values = responses.vectors(answer.body) if answer.body is not None else []
        for number, each in enumerate(rows):
            error = answer.error or f"the answer has {len(values)} vectors, not {len(rows)}"
            self.errors[each] = self._keep(each, values[number]) if len(values) == len(rows) else error
            self._ended[each] = 1 + answer.passing
            if len(values) != len(rows) and not answer.passing:
                self._refused.add(each)
        return None

    def keep(self, row: int, body: Mapping[str, Any]) -> str | None:
        values = responses.vectors(body)
        if len(values) != 1 or not values[0]:
            return f"the answer has {len(values)} vectors, not one"
        return self._keep(row, values[0])

    def _keep(self, row: int, numbers: list[float]) -> str | None:
        """Keep the vector of a row. Return why it is none; None if it is one."""
        vector = np.asarray(numbers, np.float32)
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
