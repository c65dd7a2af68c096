"""The tables that a caller sends arrive as they were: answers, deaths, and the error that ended a run."""

from __future__ import annotations

import json

import pyarrow as pa
import pytest

from batchyard.errors import EngineError, EngineStartError
from inference.answers import Death
from inference.ray import tables
from inference.residents.replies import EngineReply

ROWS = pa.table({"line": pa.array([7, 3], pa.int32()), "custom_id": ["a", "b"]})
REPLIES = [
    EngineReply(200, b'{"choices": []}', None, 5, 4, 2, 0.5),
    EngineReply(None, None, {"code": "request_timeout", "message": "too long"}),
]


def test_answers_are_output_lines_in_the_order_of_their_rows() -> None:
    first, second = tables.answers(ROWS, REPLIES).to_pylist()
    assert (first["line"], first["ok"], json.loads(first["answer"])["custom_id"]) == (7, True, "a")
    assert (first["input_tokens"], first["cached_tokens"], first["output_tokens"], first["seconds"]) == (5, 4, 2, 0.5)
    assert (second["line"], second["ok"], second["input_tokens"]) == (3, False, 0)
    assert json.loads(second["answer"])["error"]["code"] == "request_timeout"


def test_a_packed_table_arrives_as_it_was_in_packs_of_a_bounded_size(monkeypatch: pytest.MonkeyPatch) -> None:
    answers = pa.concat_tables([tables.answers(ROWS, REPLIES)] * 50).combine_chunks()
    assert [pack.num_rows for pack in tables.packed(answers)] == [1], "one row, which Ray Data passes on at once"
    monkeypatch.setattr(tables, "PACKED_BYTES", answers.nbytes // 4)
    packs = list(tables.packed(answers))
    assert len(packs) > 3 and all(pack.nbytes < answers.nbytes for pack in packs)
    arrived = [table for pack in packs for table in tables.unpacked(pack)]
    assert pa.concat_tables(arrived).equals(answers)


@pytest.mark.parametrize("kind", [EngineError, EngineStartError])
def test_the_error_that_ended_a_run_is_raised_as_it_was(kind: type[EngineError]) -> None:
    (pack,) = tables.packed(kind("no kernel image"))
    with pytest.raises(EngineError, match="no kernel image") as raised:
        next(tables.unpacked(pack))
    assert type(raised.value) is kind


def test_the_death_of_an_engine_arrives_as_it_was() -> None:
    death = Death("mini", "mini/0", 1, "killed by SIGKILL", 12, "runs_again")
    (pack,) = tables.packed(death)
    assert pack.num_rows == 1 and list(tables.unpacked(pack)) == [death]


def test_a_table_without_answers_arrives_as_it_was() -> None:
    empty = tables.answers(ROWS, REPLIES).slice(0, 0)
    (pack,) = tables.packed(empty)
    (arrived,) = tables.unpacked(pack)
    assert arrived.equals(empty)
