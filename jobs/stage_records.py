"""What is recorded of a job's stages: plan files and result chunks, with the answers in these."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc
from sqlalchemy.orm import Session

from store import segments
from store.artifacts import Artifacts
from store.formats import chunks
from store.jobs import chunk_records, stages


@dataclass
class StageRecords:
    """The records of one stage: its plan files, and its result chunks up to a cursor, in order."""

    name: str
    plans: list[tuple[str, int]]
    chunks: list[tuple[int, str]]

    @property
    def cursor(self) -> int:
        """The id of the last of these result chunks, 0 if there is none."""
        return self.chunks[-1][0] if self.chunks else 0


def records_of(session: Session, job_id: str) -> list[StageRecords]:
    return [
        StageRecords(
            stage.name,
            segments.plans(session, stage.batch_id) if stage.batch_id else [],
            chunk_records.of_batch(session, stage.batch_id, 0) if stage.batch_id else [],
        )
        for stage in stages.of_job(session, job_id)
    ]


def answers(
    artifacts: Artifacts, stored: Iterable[str], lines: pa.ChunkedArray | None = None
) -> Iterator[tuple[int, str, float | None]]:
    """Yield line, output line and seconds of the answers in result chunks. `lines`: only of these."""
    for sha256 in stored:
        for table in chunks.read(artifacts, sha256, ["line", "answer", "seconds"]):
            chosen = table if lines is None else table.filter(pc.is_in(table["line"], lines.combine_chunks()))
            yield from zip(*(column.to_pylist() for column in chosen.columns), strict=True)
