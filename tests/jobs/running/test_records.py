"""Replay: what the records say of items that have begun and not ended."""

from __future__ import annotations

from typing import Any

import orjson
import pyarrow as pa

from jobs.running import records
from jobs.running.records import Life, Records
from store.artifacts import Artifacts
from store.formats import job_chunks
from store.records import Job, JobChunk


def states(artifacts: Artifacts, *rows: tuple[int, str, int, int]) -> str:
    """Store a result chunk of (position, state, life, turns)."""
    table = [
        {
            **{"position": position, "number": position, "custom_id": f"item-{position}", "state": state},
            **{"life": life, "turns": turns, "result": "{}", "error": None, "started_at": 1.0, "ended_at": None},
        }
        for position, state, life, turns in rows
    ]
    return job_chunks.write(artifacts, pa.Table.from_pylist(table, job_chunks.RESULT))


def outcomes(artifacts: Artifacts, *rows: tuple[int, int, int, str, Any]) -> str:
    """Store a judgement chunk of (position, life, turn, kind, value)."""
    table = [
        {
            **{"position": position, "life": life, "turn": turn, "index": 0, "kind": kind},
            "value": orjson.dumps(value).decode(),
        }
        for position, life, turn, kind, value in rows
    ]
    return job_chunks.write(artifacts, pa.Table.from_pylist(table, job_chunks.JUDGEMENT))


def read(artifacts: Artifacts, admitted: int, results: list[str], judgements: list[str]) -> Records:
    chunks = [JobChunk(kind="result", sha256=sha256) for sha256 in results]
    chunks += [JobChunk(kind="judgement", sha256=sha256) for sha256 in judgements]
    return records.read(artifacts, Job(admitted=admitted, recipe_sha256="created"), [], chunks)


def test_the_newest_state_of_an_item_counts(artifacts: Artifacts) -> None:
    recorded = read(
        artifacts,
        4,
        [
            states(artifacts, (0, "completed", 1, 2), (1, job_chunks.WAITING, 1, 3), (2, "stuck", 1, 1)),
            states(artifacts, (2, job_chunks.LIVE, 2, 0)),
        ],
        [],
    )
    assert recorded.positions.tolist() == [1, 2, 3]
    assert [recorded.waits(position) for position in (1, 2, 3)] == [3, None, None]
    assert recorded.lives.tolist() == [1, 1, 2, 0]


def test_outcomes_of_earlier_lives_and_of_ended_items_are_no_part_of_it(artifacts: Artifacts) -> None:
    life = {"recipe_sha256": "new", "hint": "shorter", "restarts": 1}
    recorded = read(
        artifacts,
        2,
        [states(artifacts, (0, "completed", 1, 1))],
        [
            outcomes(artifacts, (0, 1, 1, "check", {"passed": True}), (1, 1, 1, "check", {"passed": False})),
            outcomes(artifacts, (1, 2, 0, job_chunks.RECIPE, life), (1, 2, 1, "check", {"passed": True})),
        ],
    )
    assert recorded.life(1) == Life(2, "new", "shorter", 1)
    assert recorded.judgement(1, 1, 0) == ("check", {"passed": True})
    assert recorded.judgement(0, 1, 0) is None
    assert recorded.count(1) == 1


def test_an_item_in_which_the_recipe_hangs_is_known_even_if_it_has_ended(artifacts: Artifacts) -> None:
    hangs = outcomes(artifacts, (0, 1, 2, job_chunks.HANGS, {"message": "too long"}))
    recorded = read(artifacts, 1, [states(artifacts, (0, "failed", 1, 2))], [hangs])
    assert recorded.hung == {(0, 1): (2, "too long")}
    assert recorded.count(0) == 0
