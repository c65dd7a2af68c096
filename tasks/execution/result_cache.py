"""The result cache: what a segment takes from it and adds to it, and its eviction."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from typing import Any

import orjson
import pyarrow as pa
import pyarrow.compute as pc

from batchyard import output_lines
from inference.answers import ANSWERS
from store import cache, segments
from tasks.context import AppContext

EVICTION_SECONDS = 20.0
TOKENS = ("input_tokens", "cached_tokens", "output_tokens")


class Cache:
    """What one run of a segment has of its project's cache.

    Nothing is found and nothing kept where the project has none, nor where the engine cannot say which weights answer
    (`model_sha256`): a server that someone else runs may change them, and simulated answers have none.
    """

    def __init__(self, context: AppContext, segment: segments.SegmentLease, config_sha256: str) -> None:
        self._context = context
        self._segment = segment
        self._config_sha256 = config_sha256
        self._missing: dict[int, str] = {}

    def find(self, asked: pa.Table, engine: Mapping[str, str]) -> Iterator[pa.Table]:
        """The answers that are there, as the engine's would be; their response bodies say `batchyard.cached`.

        Args:
            asked: the requests that are to run, with the plan's columns.
            engine: what the engine that would run them says of itself.
        """
        if self._segment.cache_bytes is None or "model_sha256" not in engine:
            return
        asked = asked.filter(pc.is_valid(asked["fingerprint"]))
        for start in range(0, asked.num_rows, cache.CHUNK):
            chunk = asked.slice(start, cache.CHUNK)
            keys = [cache.key(value, self._config_sha256, engine) for value in chunk["fingerprint"].to_pylist()]
            with self._context.database.read() as session:
                found = cache.find(session, self._segment.project_id, keys)
            there = pa.array([key in found for key in keys])
            missing = chunk.filter(pc.invert(there))["line"].to_pylist()
            self._missing |= zip(missing, (key for key in keys if key not in found), strict=True)
            if found:
                with self._context.database.write() as session:
                    cache.touch(session, self._segment.project_id, found)
                yield _answers(chunk.filter(there), [found[key] for key in keys if key in found])

    def keep(self, answers: pa.Table) -> None:
        """Add those of the engine's answers that may serve again.

        Not in the transaction that appends them: there the batch's row is locked meanwhile, and a cache may miss some.
        """
        if not self._missing:
            return
        rows = [row for row in answers.filter(answers["ok"]).to_pylist() if row["line"] in self._missing]
        for start in range(0, len(rows), cache.CHUNK):
            kept = {self._missing[row["line"]]: _entry(row) for row in rows[start : start + cache.CHUNK]}
            with self._context.database.write() as session:
                cache.add(session, self._segment.project_id, kept)


def _answers(rows: pa.Table, found: list[cache.Answer]) -> pa.Table:
    lines = [
        output_lines.line(custom_id, 200, answer.body, None)
        for custom_id, answer in zip(rows["custom_id"].to_pylist(), found, strict=True)
    ]
    columns = {"line": rows["line"], "ok": [True] * len(lines), "answer": lines}
    return pa.table(columns | {name: [getattr(answer, name) for answer in found] for name in TOKENS}, schema=ANSWERS)


def _entry(row: Mapping[str, Any]) -> cache.Answer:
    body = orjson.loads(row["answer"])["response"]["body"] | {"batchyard": {"cached": True}}
    return cache.Answer.of(orjson.dumps(body), *(row[name] for name in TOKENS))


def evict(context: AppContext) -> None:
    """Bring every project's cache down to its bound, a chunk of each in turn, as far as the time goes."""
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
