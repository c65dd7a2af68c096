"""The requests of an item, from the plan files of its job's batches, with their answers."""

import functools
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from batchyard import json_lines
from jobs.items.states import CACHED_CHUNKS
from jobs.stage_records import answers
from results.storage import Storage
from store.artifacts import Artifacts
from store.formats import asks, plan
from store.jobs import chunk_records
from store.jobs import reading as records
from store.records import Job


@dataclass
class RequestRow:
    custom_id: str
    stage: str
    batch_id: str
    line: int
    visit: int
    sample: int
    retry: int
    body: dict[str, Any]
    status_code: int | None = None
    response: dict[str, Any] | None = None
    error: dict[str, Any] | None = None
    seconds: float | None = None

    @property
    def is_open(self) -> bool:
        return self.status_code is None and self.error is None


@functools.lru_cache(maxsize=CACHED_CHUNKS)
def asking(artifacts: Artifacts, plan_sha256: str, row_group: int) -> npt.NDArray[np.int32]:
    """Return the position of the item of each request of a segment."""
    table = plan.segment(artifacts, plan_sha256, row_group, ["position"])
    positions: npt.NDArray[np.int32] = table["position"].to_numpy().astype(np.int32)
    return positions


def requests_of(storage: Storage, job: Job, position: int) -> Iterator[tuple[int, int, RequestRow]]:
    with storage.database.read() as session:
        groups = records.plan_groups(session, job.id)
    for group in groups:
        if position not in asking(storage.artifacts, group.plan_sha256, group.row_group):
            continue
        table = asks.read_item(storage.artifacts, group.plan_sha256, group.row_group, position)
        with storage.database.read() as session:
            stored = chunk_records.of_segment(session, group.segment_id)
        answered = {line: (answer, at) for line, answer, at in answers(storage.artifacts, stored, table["line"])}
        for row in table.to_pylist():
            request = RequestRow(
                custom_id=row["custom_id"],
                stage=group.stage,
                batch_id=group.batch_id,
                line=row["line"],
                visit=row["visit"],
                sample=row["sample"] + 1,
                retry=row["retry"],
                body=json_lines.loads(row["body"]) if row["body"] else {},
            )
            answer, request.seconds = answered.get(row["line"], (None, None))
            if answer is not None:
                line = json_lines.loads(answer)
                response = line.get("response") or {}
                request.status_code, request.response = response.get("status_code"), response.get("body")
                request.error = line.get("error")
            yield row["life"], row["turn"], request
