"""What was recorded of items before their programs were lost, and what a tick adds to it."""

import json
import time
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from batchyard import json_lines
from batchyard.recipes import Item
from batchyard.recipes.program import RecipeError
from jobs.stage_records import StageRecords, answers
from store.artifacts import Artifacts
from store.formats import job_chunks, plan
from store.records import Job, JobChunk

Positions = npt.NDArray[np.int64]
_PLACE = ["line", "position", "life", "visit", "sample", "retry", "ask"]


@dataclass(frozen=True)
class RecordedOutcome:
    """A row of a judgement chunk: of a call, a wait, or a request that no engine runs."""

    position: int
    life: int
    turn: int
    index: int
    kind: str
    value: bytes


@dataclass(frozen=True)
class Change:
    """A row of a result chunk: the state that an item has come to. `result` and `error` are JSON."""

    position: int
    number: int
    custom_id: str
    state: str
    life: int
    turns: int
    result: str | bytes
    error: str | bytes | None
    started_at: float
    ended_at: float | None


def as_table(rows: Sequence[Change] | Sequence[RecordedOutcome], schema: pa.Schema) -> pa.Table:
    return pa.Table.from_pylist([vars(row) for row in rows], schema)


class Life(NamedTuple):
    """A life of an item, and the SHA-256 of the recipe's file that it went on with last.

    `hint` is that of who has put the item back, `restarts` counts the lives since then that a change of the recipe's
    file began.
    """

    number: int
    recipe_sha256: str
    hint: str | None = None
    restarts: int = 0


@dataclass(frozen=True, slots=True)
class Issued:
    """A request in the records. `answer` is None while it has none."""

    retry: int
    line: int
    ask: bytes
    answer: tuple[str, float | None] | None


@dataclass
class Uncommitted:
    """What has happened to items since the last commit.

    `moved` are changes of state that come before those of `ended`; `outcomes` those that no batch keeps, and calls of
    tools that are to begin; `called` the keys of calls that have ended; `reopened` the former states of items put back;
    `ended_bytes` the results of those that have ended.
    """

    ended: list[Change] = field(default_factory=list)
    moved: list[Change] = field(default_factory=list)
    outcomes: list[RecordedOutcome] = field(default_factory=list)
    called: list[str] = field(default_factory=list)
    reopened: Counter[str] = field(default_factory=Counter)
    counters: dict[str, int] = field(default_factory=lambda: defaultdict(int))
    ended_bytes: int = 0
    reused: int = 0
    restarted: int = 0

    def note(self, position: int, item: Item, turn: int, index: int, kind: str, value: bytes) -> None:
        self.outcomes.append(RecordedOutcome(position, item.life, turn, index, kind, value))

    def begin_life(self, position: int, item: Item, recipe_sha256: str, restarts: int, at: float) -> None:
        """Note that a life of an item begins, or goes on with another file of the recipe."""
        values = {"recipe_sha256": recipe_sha256, "hint": item.hint, "restarts": restarts, "at": at}
        self.note(position, item, 0, 0, job_chunks.RECIPE, json_lines.dumps(values))

    def move(
        self, position: int, item: Item, state: str, turns: int, values: Mapping[str, Any], started_at: float
    ) -> None:
        """Note that an item is in a state that is not its end."""
        result = json.dumps(values, ensure_ascii=False)
        self.moved.append(
            Change(position, item.number, item.custom_id, state, item.life, turns, result, None, started_at, None)
        )

    def end(
        self, position: int, item: Item, state: str, turns: int, result: bytes, error: bytes | None, started_at: float
    ) -> None:
        """Note the end of an item. `result` and `error` are JSON."""
        number, custom_id, at = item.number, item.custom_id, time.time()
        self.ended.append(Change(position, number, custom_id, state, item.life, turns, result, error, started_at, at))
        self.ended_bytes += len(result)

    def fail(self, position: int, item: Item, turns: int, error: RecipeError, started_at: float) -> None:
        details = json_lines.dumps({"code": error.code, "message": error.message})
        self.end(position, item, "failed", turns, b'{"text":null}', details, started_at)


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


def read(artifacts: Artifacts, job: Job, stages: list[StageRecords], chunks: Sequence[JobChunk]) -> Records:
    """Read the records of a job's live items, of the first `admitted` ones by position.

    Raises UnavailableError; BatchyardError: a file is damaged.
    """
    ended, waiting = np.zeros(job.admitted, np.bool_), np.zeros(job.admitted, np.int32)
    lives = np.zeros(job.admitted, np.int32)
    for sha256 in (chunk.sha256 for chunk in chunks if chunk.kind == "result"):  # the newest row of a position counts
        table = job_chunks.read(artifacts, sha256, ["position", "state", "life", "turns"])
        places, states = table["position"].to_numpy(), table["state"]
        ended[places] = pc.invert(pc.is_in(states, pa.array(job_chunks.UNENDED))).to_numpy()
        waiting[places] = pc.if_else(pc.equal(states, job_chunks.WAITING), table["turns"], 0).to_numpy()
        lives[places] = table["life"].to_numpy()
    turns = {position: int(waiting[position]) for position in np.flatnonzero(waiting).tolist()}
    recorded = Records(np.flatnonzero(~ended), job.recipe_sha256, lives, turns)
    live = pa.array(recorded.positions, pa.int64())
    judged: list[dict[str, Any]] = []
    for sha256 in (chunk.sha256 for chunk in chunks if chunk.kind == "judgement"):
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
