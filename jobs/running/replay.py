"""Replay: rebuilds the live items of a job from its records."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from batchyard import json_lines
from jobs.running.records import Issued, Life
from jobs.stage_records import StageRecords, answers
from store.artifacts import Artifacts
from store.formats import job_chunks, plan

Positions = npt.NDArray[np.int64]
_PLACE = ["line", "position", "life", "visit", "sample", "retry", "ask"]


@dataclass
class Records:
    """What was recorded of the items that have begun and not ended, without what earlier lives have asked.

    `waiting` is by position the turn in which an item waits for a verdict, `lines` the next line of each stage. `hung`
    is by position and life the turn after which a step has hung, and what to say of it; of all items.
    """

    positions: Positions = field(default_factory=lambda: np.zeros(0, np.int64))
    created_sha256: str = ""
    lives: npt.NDArray[np.int32] = field(default_factory=lambda: np.zeros(0, np.int32))
    waiting: Mapping[int, int] = field(default_factory=dict)
    lines: dict[str, int] = field(default_factory=dict)
    hung: dict[tuple[int, int], tuple[int, str]] = field(default_factory=dict)
    _lives: dict[int, Life] = field(default_factory=dict)
    _requests: dict[tuple[int, str, int, int], Issued] = field(default_factory=dict)
    _judgements: dict[tuple[int, int, int], tuple[str, Mapping[str, Any]]] = field(default_factory=dict)

    def life(self, position: int) -> Life:
        """Return the present life of an item."""
        return self._lives.get(position, Life(1, self.created_sha256))

    def waits(self, position: int) -> int | None:
        """Return the turn in which an item still waits for a verdict, or None."""
        return self.waiting.get(position)

    def count(self, position: int) -> int:
        return self._counts[position]

    def request(self, position: int, stage: str, visit: int, sample: int) -> Issued | None:
        """Return the last attempt at a request."""
        return self._requests.get((position, stage, visit, sample))

    def judgement(self, position: int, turn: int, index: int) -> tuple[str, Mapping[str, Any]] | None:
        """Return kind and value of an outcome."""
        return self._judgements.get((position, turn, index))

    @cached_property
    def _counts(self) -> Counter[int]:
        return Counter(place[0] for places in (self._requests, self._judgements) for place in places)


NO_RECORDS = Records()


def read(
    artifacts: Artifacts,
    admitted: int,
    stages: list[StageRecords],
    results: list[str],
    judgements: list[str],
    created_sha256: str,
) -> Records:
    """Read the records of a job's live items, the first `admitted` ones by position.

    Raises UnavailableError; BatchyardError: a file is damaged.
    """
    ended, waiting = np.zeros(admitted, np.bool_), np.zeros(admitted, np.int32)
    lives = np.zeros(admitted, np.int32)
    for sha256 in results:  # the newest row of a position counts
        table = job_chunks.read(artifacts, sha256, ["position", "state", "life", "turns"])
        places, states = table["position"].to_numpy(), table["state"]
        ended[places] = pc.invert(pc.is_in(states, pa.array(job_chunks.UNENDED))).to_numpy()
        waiting[places] = pc.if_else(pc.equal(states, job_chunks.WAITING), table["turns"], 0).to_numpy()
        lives[places] = table["life"].to_numpy()
    turns = {position: int(waiting[position]) for position in np.flatnonzero(waiting).tolist()}
    recorded = Records(np.flatnonzero(~ended), created_sha256, lives, turns)
    live = pa.array(recorded.positions, pa.int64())
    judged: list[dict[str, Any]] = []
    for sha256 in judgements:
        table = job_chunks.read(artifacts, sha256)
        hangs = pc.equal(table["kind"], job_chunks.HANGS)
        for row in table.filter(hangs).to_pylist():
            message = json_lines.loads(row["value"])["message"]
            recorded.hung[row["position"], row["life"]] = (row["turn"], message)
        judged += table.filter(pc.and_(pc.invert(hangs), pc.is_in(table["position"], live))).to_pylist()
    for row in judged:
        if row["kind"] == job_chunks.RECIPE and row["life"] >= recorded.life(row["position"]).number:
            value = json_lines.loads(row["value"])
            life = Life(row["life"], value["recipe_sha256"], value.get("hint"), value["restarts"])
            recorded._lives[row["position"]] = life
    for row in judged:
        if row["kind"] != job_chunks.RECIPE and row["life"] == recorded.life(row["position"]).number:
            place = (row["position"], row["turn"], row["index"])
            recorded._judgements[place] = (row["kind"], json_lines.loads(row["value"]))
    for stage in stages:
        _read_stage(artifacts, stage, live, recorded)
    return recorded


def _read_stage(artifacts: Artifacts, stage: StageRecords, live: pa.Array, recorded: Records) -> None:
    tables = []
    for plan_sha256, row_group in stage.plans:
        table = plan.segment(artifacts, plan_sha256, row_group, _PLACE)
        recorded.lines[stage.name] = max(recorded.lines.get(stage.name, 1), pc.max(table["line"]).as_py() + 1)
        tables.append(table.filter(pc.is_in(table["position"], live)))
    if not tables:
        return
    requests = pa.concat_tables(tables)
    stored = [sha256 for _, sha256 in stage.chunks]
    answered = {line: (answer, at) for line, answer, at in answers(artifacts, stored, requests["line"])}
    # Of several attempts at a request the last one counts: it comes last.
    for row in requests.sort_by("retry").to_pylist():
        if row["life"] != recorded.life(row["position"]).number:
            continue
        place = (row["position"], stage.name, row["visit"], row["sample"])
        recorded._requests[place] = Issued(row["retry"], row["line"], row["ask"], answered.get(row["line"]))
