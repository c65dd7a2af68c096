"""`batchyard.rerank`: the documents of each query by how well they answer it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from typing import Any

import click
import orjson

from batchyard import json_lines
from batchyard.client import asking, frames
from batchyard.client.api import ApiClient
from batchyard.client.asking import RowResults, Values
from batchyard.client.frames import Column
from batchyard.endpoints.bodies.scoring import bare
from batchyard.endpoints.catalog import RERANK
from batchyard.errors import ConfigurationError
from batchyard.tables import cells
from batchyard.tables.cells import CellError


@dataclass(frozen=True)
class RankedDocument:
    """A document of a query. `index`: its place among the query's documents, from 0, as lists have it."""

    index: int
    score: float
    document: str


def rerank(
    queries: Any,
    documents: Any,
    *,
    model: str,
    top: int | None = None,
    window: str = "24h",
    again: bool = False,
    progress: bool = True,
    server: ApiClient | None = None,
    **parameters: Any,
) -> Any:
    """Return the documents of each query, the best first, with their scores.

    The same call again takes up the batches of the first, as that of `map` does.

    Args:
        queries: a text, or a column or list of them.
        documents: a list of texts, or objects with a `text`, for all queries, or a column or list with a list for each.
        model: one that serves /v1/rerank: a cross-encoder, or a model of vectors, whose cosines are the scores.
        top: how many of each query's documents come back; all by default.
        window, again, progress, server: as `map` has them.
        parameters: others of the requests' bodies.

    Returns:
        A list of RankedDocument for each query; for a text as `queries` the list of it. None for a query that failed or
        is empty; standard error says how many there are, and why the first has none.

    Raises ConfigurationError, RequestError, UnavailableError: as `map`. Or there are not as many lists as queries.
    """
    rows = pairs(queries, documents)
    how = asking.CallOptions(window=window, again=again, progress=progress, server=server, name="rerank")
    rankings = Rankings()
    send(rows, rankings, how, model, top_n=top, **parameters)
    errors = [error for error in rankings.errors if error is not None]
    if errors:
        click.echo(f"{len(errors)} of {len(rankings)} queries have no ranking: {errors[0]}", err=True)
    return rankings.values[0] if isinstance(queries, str) else rankings.values


def rank_rows(table: Any, query: str, documents: str, *, top: int | None, model: str, **how: Any) -> Any:
    """Return a table with columns `ranking`, `error` and `tokens` for the rows of a table."""
    frame = frames.of(table)
    for name, column in (("query", query), ("documents", documents)):
        asking.template(f"{{{column}}}", name, frame.columns)
    rankings = Rankings()
    rows = ({"query": row[query], "documents": row[documents]} for row in asking.rows(frame, [query, documents]))
    send(rows, rankings, asking.CallOptions(name="rerank", **how), model, top_n=top)
    values = [None if ranking is None else [asdict(ranked) for ranked in ranking] for ranking in rankings.values]
    return frame.table({"ranking": Column(values, None), **rankings.details()})


def send(rows: Iterable[Values], rankings: Rankings, how: asking.CallOptions, model: str, **parameters: Any) -> None:
    """Put the ranking of each row, which has `query` and `documents`, into `rankings`. Raises as `rerank`."""
    body = asking.parameters(model, **parameters)
    asking.ask_rows(model, RERANK.path, rows, lambda values: {**body, **request(values)}, rankings, how)


def pairs(queries: Any, documents: Any) -> list[Values]:
    """Return a row for each query, with its documents. Raises ConfigurationError if their numbers differ."""
    texts = [queries] if isinstance(queries, str) else _values(queries, "queries")
    lists = _values(documents, "documents")
    if all(isinstance(document, str | Mapping) for document in lists):
        lists = [lists] * len(texts)
    if len(lists) != len(texts):
        there = f"{len(lists)} lists for {len(texts)} queries"
        raise ConfigurationError(f"documents: {there}; pass one list, or one for each")
    return [{"query": query, "documents": of_query} for query, of_query in zip(texts, lists, strict=True)]


def request(values: Values) -> dict[str, Any]:
    """Return query and documents of a row, of which the documents may be JSON. Raises CellError if it has none."""
    texts = cells.json_value(values["documents"], "documents")
    if isinstance(texts, str) and texts.startswith("["):  # a cell of csv
        with suppress(orjson.JSONDecodeError):
            texts = json_lines.loads(texts)
    if not texts:
        raise CellError("is empty", "empty_value", "documents")
    if not isinstance(texts, list):
        raise CellError("holds no list of texts", column="documents")
    documents = [cells.text(bare(document), "documents") for document in texts]
    return {"query": cells.text(values["query"], "query"), "documents": documents}


class Rankings(RowResults):
    """The rankings of rows, each a list of RankedDocument."""

    def keep(self, row: int, body: Mapping[str, Any]) -> str | None:
        try:
            self.values[row] = [
                RankedDocument(entry["index"], float(entry["relevance_score"]), entry["document"]["text"])
                for entry in body["results"]
            ]
        except (KeyError, TypeError, ValueError):
            return "the answer is no ranking"
        return None


def _values(column: Any, name: str) -> list[Any]:
    for method in ("to_pylist", "to_list", "tolist"):
        if hasattr(column, method):
            return list(getattr(column, method)())
    if isinstance(column, Sequence) and not isinstance(column, str | bytes):
        return list(column)
    raise ConfigurationError(f"{name}: pass a column or a list, not {type(column).__name__}")
