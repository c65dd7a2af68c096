"""The result cache: lookups and additions of a segment, and eviction."""

import logging
import time
from collections.abc import Iterator, Mapping
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from batchyard import json_lines
from batchyard.endpoints import output_lines, responses, vectors
from batchyard.errors import UnavailableError
from inference.answers import ANSWERS
from store import cache, segments
from store.records import CachedAnswer
from tasks.context import AppContext

log = logging.getLogger(__name__)

EVICTION_SECONDS = 20.0
TOKENS = ("input_tokens", "cached_tokens", "output_tokens")


class Cache:
    """The project's result cache as seen by one segment attempt.

    It stays empty if the project has no cache, or if the engine does not report the weights that answer
    (`model_sha256`): a server run by others may change them, and a simulation has none.
    """

    def __init__(self, context: AppContext, segment: segments.SegmentLease, config_sha256: str) -> None:
        self._context = context
        self._segment = segment
        self._config_sha256 = config_sha256
        self._missing: dict[int, str] = {}

    def find(self, requests: pa.Table, engine: Mapping[str, str]) -> Iterator[pa.Table]:
        """Yield cached answers to planned requests, of an engine of these versions, marked `batchyard.cached`."""
        if self._segment.cache_bytes is None or "model_sha256" not in engine:
            return
        requests = requests.filter(pc.is_valid(requests["fingerprint"]))
        for start in range(0, requests.num_rows, cache.CHUNK):
            chunk = requests.slice(start, cache.CHUNK)
            keys = [cache.key(value, self._config_sha256, engine) for value in chunk["fingerprint"].to_pylist()]
            with self._context.database.read() as session:
                hits = cache.find(session, self._segment.project_id, keys)
            is_hit = pa.array([key in hits for key in keys])
            missing = chunk.filter(pc.invert(is_hit))["line"].to_pylist()
            self._missing |= zip(missing, (key for key in keys if key not in hits), strict=True)
            if hits:
                with self._context.database.write() as session:
                    cache.touch(session, self._segment.project_id, hits)
                yield _answers(chunk.filter(is_hit), [hits[key] for key in keys if key in hits])

    def keep(self, answers: pa.Table) -> None:
        """Add the engine's answers that may serve again.

        This is not part of the transaction that appends them: it would lock the batch's row for longer, and a cache
        may miss some answers.
        """
        if not self._missing:
            return
        rows = [row for row in answers.filter(answers["ok"]).to_pylist() if row["line"] in self._missing]
        for start in range(0, len(rows), cache.CHUNK):
            entries = {self._missing[row["line"]]: _entry(row) for row in rows[start : start + cache.CHUNK]}
            try:
                with self._context.database.write() as session:
                    cache.add(session, self._segment.project_id, entries, self._segment.batch_id)
            except UnavailableError as error:
                log.warning("answers not cached: %s", error, extra={"batch_id": self._segment.batch_id})


def _answers(rows: pa.Table, entries: list[CachedAnswer]) -> pa.Table:
    bodies = list(map(cache.body_of, entries))
    lines = [
        output_lines.line(custom_id, 200, body, None)
        for custom_id, body in zip(rows["custom_id"].to_pylist(), bodies, strict=True)
    ]
    columns = {"line": rows["line"], "ok": [True] * len(lines), "answer": lines}
    columns |= dict.fromkeys(("seconds", "served_model", "vectors"), [None] * len(lines))
    columns["reasoning_tokens"] = [responses.usage(json_lines.loads(body)).reasoning_tokens or 0 for body in bodies]
    return pa.table(columns | {name: [getattr(entry, name) for entry in entries] for name in TOKENS}, schema=ANSWERS)


def _entry(row: Mapping[str, Any]) -> dict[str, Any]:
    line = vectors.put_back(row["answer"], row["vectors"])
    body = json_lines.loads(line)["response"]["body"]
    body = responses.explained(body | {"batchyard": {"cached": True}})
    return cache.columns(json_lines.dumps(body), **{name: row[name] for name in TOKENS})


def evict(context: AppContext) -> None:
    """Bring every project's cache down to its limit, a chunk of each in turn, for EVICTION_SECONDS at most."""
    ends_at = time.monotonic() + EVICTION_SECONDS
    with context.database.read() as session:
        excess = cache.excess(session)
    while excess and time.monotonic() < ends_at:
        for project_id, size in list(excess.items()):
            with context.database.write() as session:
                freed = cache.evict(session, project_id, size)
            excess[project_id] = size - freed
            if not 0 < freed < size:
                del excess[project_id]
