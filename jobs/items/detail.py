"""One item of a job, with all that it has asked and got."""

import functools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from batchyard import json_lines
from jobs.items import texts
from jobs.items.states import CACHED_CHUNKS, ItemRow, find
from jobs.stage_records import answers
from results.storage import Storage
from store.artifacts import Artifacts
from store.formats import asks, job_chunks, plan
from store.jobs import chunk_records, replies
from store.jobs import reading as records
from store.records import Job, JobReply

SLACK_SECONDS = 60.0
"""A chunk is stored so long after what stands in it, at the latest; and clocks of machines differ."""


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


@dataclass
class JudgementRow:
    """An outcome that no batch keeps."""

    index: int
    kind: str
    value: Any


@dataclass
class TurnRow:
    """What an item wanted at one time, and what it got."""

    life: int
    turn: int
    requests: list[RequestRow] = field(default_factory=list)
    judgements: list[JudgementRow] = field(default_factory=list)


@dataclass
class ItemDetails(ItemRow):
    """An item and its history. `previous` and `next` number its neighbours."""

    columns: dict[str, Any] = field(default_factory=dict)
    turns: list[TurnRow] = field(default_factory=list)
    replies: Sequence[JobReply] = ()
    waits_for: dict[str, Any] | None = None
    result: Any = None
    error: dict[str, Any] | None = None
    started_at: float | None = None
    ended_at: float | None = None
    previous: int | None = None
    next: int | None = None


@functools.lru_cache(maxsize=CACHED_CHUNKS)
def _judged(artifacts: Artifacts, sha256: str) -> npt.NDArray[np.int32]:
    """Return the position of each row of a judgement chunk."""
    positions: npt.NDArray[np.int32] = job_chunks.read(artifacts, sha256, ["position"])["position"].to_numpy()
    return positions.astype(np.int32)


def item(storage: Storage, job: Job, number: int) -> ItemDetails:
    """Return an item with all that it has asked and got. Raises as `jobs.items.states.find`."""
    known, position = find(storage, job, number)
    (row,) = known.reader.read(position, 1)
    end = known.rows([position], ["result", "error", "started_at", "ended_at"]).get(position)
    details = ItemDetails(**vars(known.item(position, row.custom_id, end)), columns=row.columns)
    before, after = known.numbers[known.numbers < number], known.numbers[known.numbers > number]
    details.previous = int(before.max()) if before.size else None
    details.next = int(after.min()) if after.size else None
    if end is not None:
        value = json_lines.loads(end["result"]) if end["result"] else None
        if details.state == "waiting_for_verdict":
            details.waits_for = value
        elif end["ended_at"] is not None:
            details.result = value
        details.error = json_lines.loads(end["error"]) if end["error"] else None
        details.started_at, details.ended_at = end["started_at"], end["ended_at"]
    texts.fill(details, job, known.reader, position, end["result"] if end is not None else None)
    details.turns = _turns(storage, job, position, details)
    with storage.database.read() as session:
        details.replies = replies.of_item(session, job.id, position)
    if details.state == "live":
        details.life = max([details.life, *(turn.life for turn in details.turns)])
        unanswered = [request.stage for turn in details.turns for request in turn.requests if request.is_open]
        details.stage = unanswered[-1] if unanswered else None
    return details


def _turns(storage: Storage, job: Job, position: int, end: ItemDetails) -> list[TurnRow]:
    turns: dict[tuple[int, int], TurnRow] = {}
    for life, number, judgement in _judgements(storage, job, position, end):
        judgements = turns.setdefault((life, number), TurnRow(life, number)).judgements
        begun = [each for each in judgements if each.kind == job_chunks.CALL and each.index == judgement.index]
        if judgement.kind == job_chunks.CALLED and begun:  # it takes the place of the beginning, and has its tool
            begun[0].kind, begun[0].value = judgement.kind, {**begun[0].value, **judgement.value}
        else:
            judgements.append(judgement)
    for life, number, request in _requests(storage, job, position):
        turns.setdefault((life, number), TurnRow(life, number)).requests.append(request)
    for turn in turns.values():
        turn.requests.sort(key=lambda request: (request.sample, request.retry))
    return [turns[key] for key in sorted(turns)]


def _judgements(storage: Storage, job: Job, position: int, end: ItemDetails) -> Iterator[tuple[int, int, JudgementRow]]:
    until = None if end.ended_at is None else end.ended_at + SLACK_SECONDS
    since = None if end.started_at is None or end.life > 1 else end.started_at - SLACK_SECONDS
    with storage.database.read() as session:
        stored = chunk_records.of_job(session, job.id, "judgement", since=since, until=until)
    for chunk in stored:
        places = _judged(storage.artifacts, chunk.sha256) == position
        if places.any():
            for row in job_chunks.read(storage.artifacts, chunk.sha256).filter(pa.array(places)).to_pylist():
                if row["kind"] in (job_chunks.HANGS, job_chunks.RECIPE):
                    continue
                yield (
                    row["life"],
                    row["turn"],
                    JudgementRow(row["index"] + 1, row["kind"], json_lines.loads(row["value"])),
                )


@functools.lru_cache(maxsize=CACHED_CHUNKS)
def asking(artifacts: Artifacts, plan_sha256: str, row_group: int) -> npt.NDArray[np.int32]:
    """Return the position of the item of each request of a segment."""
    table = plan.segment(artifacts, plan_sha256, row_group, ["position"])
    positions: npt.NDArray[np.int32] = table["position"].to_numpy().astype(np.int32)
    return positions


def _requests(storage: Storage, job: Job, position: int) -> Iterator[tuple[int, int, RequestRow]]:
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
                **{name: row[name] for name in ("custom_id", "line", "visit", "retry")},
                stage=group.stage,
                batch_id=group.batch_id,
                sample=row["sample"] + 1,
                body=json_lines.loads(row["body"]) if row["body"] else {},
            )
            answer, request.seconds = answered.get(row["line"], (None, None))
            if answer is not None:
                line = json_lines.loads(answer)
                response = line.get("response") or {}
                request.status_code, request.response = response.get("status_code"), response.get("body")
                request.error = line.get("error")
            yield row["life"], row["turn"], request
