"""Which requests the kills cut off. Only these may be computed again, and each of them once a kill.

A request is in flight while a worker runs its segment, the engine's log has it, and no stored chunk has its answer.
Requests have the names under which the engine's log has them, so those of the same name count together.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import orjson
from sqlalchemy import func, select
from sqlalchemy.orm import Session

from store.artifacts import Artifacts
from store.formats import chunks, plan
from store.records import Batch, Job, ResultChunk, Segment

NameOf = Callable[[str, Mapping[str, Any]], str]
"""Returns the name of a request to a model, by the request's body."""


class Running(NamedTuple):
    """A segment that a worker runs: the chunks that are stored of it, by SHA-256."""

    segment_id: int
    chunks: frozenset[str]


def running(session: Session, job_id: str) -> list[Running]:
    """Return the running segments of a job, and of the jobs that it has started."""
    segments = session.scalars(_segments(Segment.id, job_id).where(Segment.state == "running")).all()
    stored: dict[int, set[str]] = {segment_id: set() for segment_id in segments}
    for segment_id, sha256 in session.execute(
        select(ResultChunk.segment_id, ResultChunk.sha256).where(ResultChunk.segment_id.in_(segments))
    ):
        stored[segment_id].add(sha256)
    return [Running(segment_id, frozenset(hashes)) for segment_id, hashes in stored.items()]


def _segments(what: Any, job_id: str) -> Any:
    batches = select(what).join(Batch, Batch.id == Segment.batch_id).join(Job, Job.id == Batch.job_id)
    return batches.where((Job.id == job_id) | (Job.parent_id == job_id))


@dataclass
class Requests:
    """The requests of a job, as its plans have them.

    Attributes:
        names: the name of each request, by segment and line.
    """

    names: dict[int, dict[int, str]]
    artifacts: Artifacts
    _lines: dict[str, set[int]] = field(default_factory=dict)

    @classmethod
    def of_job(cls, session: Session, job_id: str, artifacts: Artifacts, name_of: NameOf) -> Requests:
        """Read the plans of a job, and of the jobs that it has started. Duplicates are no requests of their own."""
        sha256 = func.coalesce(Segment.plan_sha256, Batch.plan_sha256)
        row_group = func.coalesce(Segment.row_group, Segment.number)
        names = {}
        for segment_id, model, plan_sha256, group in session.execute(
            _segments(Segment.id, job_id).add_columns(Segment.model, sha256, row_group)
        ):
            rows = plan.segment(artifacts, plan_sha256, group).select(["line", "body"]).to_pylist()
            names[segment_id] = {row["line"]: name_of(model, orjson.loads(row["body"])) for row in rows if row["body"]}
        return cls(names, artifacts)

    @property
    def times(self) -> Counter[str]:
        """Return how often each request is made, by name."""
        return Counter(name for names in self.names.values() for name in names.values())

    def unanswered(self, segments: list[Running]) -> Counter[str]:
        """Return the requests of these segments that the stored chunks do not answer."""
        return Counter(
            name
            for segment in segments
            for stored in [set[int]().union(*map(self._answered, segment.chunks))]
            for line, name in self.names[segment.segment_id].items()
            if line not in stored
        )

    def _answered(self, sha256: str) -> set[int]:
        """Return the lines of a chunk."""
        if sha256 not in self._lines:
            tables: Iterator[Any] = chunks.read(self.artifacts, sha256, ["line"])
            self._lines[sha256] = {line for table in tables for line in table["line"].to_pylist()}
        return self._lines[sha256]


def cut_off(unanswered: Counter[str], begun: Mapping[str, int]) -> Counter[str]:
    """Return the requests in flight at a kill.

    Args:
        unanswered: of the running segments.
        begun: how often an engine has begun each request.
    """
    return Counter({name: number for name, number in unanswered.items() if begun.get(name)})


def surplus(calls: Counter[str], times: Counter[str], kills: list[Counter[str]]) -> Counter[str]:
    """Return the calls of each request that no kill explains.

    Args:
        calls: how often an engine has begun each request.
        times: how often each is made.
        kills: the requests in flight at each kill.
    """
    allowed: Counter[str] = sum(kills, times)
    return calls - allowed
