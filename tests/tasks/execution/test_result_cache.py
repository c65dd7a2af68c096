"""A project's result cache as a segment sees it: hits come as an engine's answers do, good ones are kept."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import orjson
import pyarrow as pa
import pytest

from batchyard.endpoints import output_lines
from batchyard.errors import UnavailableError
from inference.answers import ANSWERS
from store import cache, projects
from tasks.context import AppContext
from tasks.execution.result_cache import TOKENS, Cache
from tests.support.batches import open_batch
from tests.support.webapps import on_sqlite
from tests.tasks.execution.test_refusals import a_segment

pytestmark = on_sqlite
WEIGHTS = {"engine": "vllm", "model_sha256": "a" * 64}


def requests(*lines: int, chance: tuple[int, ...] = ()) -> pa.Table:
    """Requests to run; those of `chance` have no fingerprint."""
    prints = [None if line in chance else bytes([line]) for line in lines]
    columns = {"line": lines, "custom_id": [f"r{line}" for line in lines], "fingerprint": prints}
    return pa.table(
        columns, schema=pa.schema({"line": pa.int64(), "custom_id": pa.string(), "fingerprint": pa.binary()})
    )


def answers(*lines: int, ok: bool = True) -> pa.Table:
    def row(line: int) -> dict[str, Any]:
        body = orjson.dumps({"choices": [{"text": f"to {line}"}]})
        values: dict[str, Any] = dict.fromkeys(ANSWERS.names)
        return values | {
            "line": line,
            "ok": ok,
            "answer": output_lines.line(f"r{line}", 200, body, None),
            "input_tokens": 3,
            "cached_tokens": 0,
            "output_tokens": 2,
        }

    return pa.Table.from_pylist([row(line) for line in lines], schema=ANSWERS)


def opened(context: AppContext, project: str, size: int | None = 10**6) -> Cache:
    with context.database.write() as session:
        projects.update(session, project, cache_bytes=size)
        batch = open_batch(session, project)
    return Cache(context, a_segment(batch_id=batch.id, project_id=project, cache_bytes=size), "config")


def hits(of: Cache, table: pa.Table, engine: dict[str, str] = WEIGHTS) -> list[dict[str, Any]]:
    return [row for part in of.find(table, engine) for row in part.to_pylist()]


def test_an_answer_that_was_kept_comes_again_with_the_names_of_the_new_request(
    context: AppContext, project: str
) -> None:
    first = opened(context, project)
    assert hits(first, requests(1, 2)) == []
    first.keep(answers(1))
    (hit,) = hits(opened(context, project), requests(2, 1))
    assert (hit["line"], hit["ok"], hit["input_tokens"], hit["output_tokens"], hit["seconds"]) == (1, True, 3, 2, None)
    line = json.loads(hit["answer"])
    assert line["custom_id"] == "r1" and line["response"]["body"]["batchyard"] == {"cached": True}


def test_an_embedding_is_kept_with_its_numbers(context: AppContext, project: str) -> None:
    first = opened(context, project)
    assert hits(first, requests(1)) == []
    body = orjson.dumps({"data": [{"index": 0, "embedding": 2}]})
    row = {"line": 1, "ok": True, "answer": output_lines.line("r1", 200, body, None), **dict.fromkeys(TOKENS, 3)}
    vector = np.array([0.1, 0.5], "<f4").tobytes()
    first.keep(pa.Table.from_pylist([dict.fromkeys(ANSWERS.names) | row | {"vectors": vector}], schema=ANSWERS))
    (hit,) = hits(opened(context, project), requests(1))
    assert json.loads(hit["answer"])["response"]["body"]["data"] == [{"index": 0, "embedding": [0.1, 0.5]}]
    assert hit["vectors"] is None


def test_only_good_answers_to_requests_that_were_looked_up_are_kept(context: AppContext, project: str) -> None:
    first = opened(context, project)
    assert hits(first, requests(1, 2, 3, chance=(3,))) == []
    first.keep(answers(1, ok=False))
    first.keep(answers(3, 4))
    assert hits(opened(context, project), requests(1, 2, 3, 4)) == []


@pytest.mark.parametrize(("size", "engine"), [(None, WEIGHTS), (10**6, {"engine": "openai"})])
def test_without_a_cache_or_known_weights_nothing_is_found_and_nothing_kept(
    context: AppContext, project: str, size: int | None, engine: dict[str, str]
) -> None:
    first = opened(context, project, size)
    assert hits(first, requests(1), engine) == []
    first.keep(answers(1))
    assert hits(opened(context, project), requests(1)) == []


def test_other_weights_give_other_answers(context: AppContext, project: str) -> None:
    first = opened(context, project)
    hits(first, requests(1))
    first.keep(answers(1))
    assert hits(opened(context, project), requests(1), WEIGHTS | {"model_sha256": "b" * 64}) == []


def test_a_database_that_is_away_costs_the_cache_some_answers_and_the_segment_nothing(
    context: AppContext, project: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = opened(context, project)
    hits(first, requests(1))

    def away(*_: Any) -> None:
        raise UnavailableError("the database is away")

    with monkeypatch.context() as patch:
        patch.setattr(cache, "add", away)
        first.keep(answers(1))
    assert hits(opened(context, project), requests(1)) == []
