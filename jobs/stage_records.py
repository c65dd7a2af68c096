"""What is recorded of a job's stages: plan files and result chunks."""

from __future__ import annotations

from dataclasses import dataclass

from sqlalchemy.orm import Session

from store import segments
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
    """Return the records of a job's stages, by number."""
    return [
        StageRecords(
            stage.name,
            segments.plans(session, stage.batch_id) if stage.batch_id else [],
            chunk_records.of_batch(session, stage.batch_id, 0) if stage.batch_id else [],
        )
        for stage in stages.of_job(session, job_id)
    ]
