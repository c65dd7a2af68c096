"""Requests come to an open batch while others of it run: all of an append or none, each custom_id once."""

from __future__ import annotations

import itertools
import json
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from sqlalchemy import func, select, update

from batchyard.errors import ConflictError, NotFoundError, RateLimitError, RequestError, TooLargeError
from batchyard.models import ModelSpec
from store import batches, segments
from store.database import Database
from store.deletion import garbage, retention
from store.keys import Principal
from store.records import Append, AppendedId, Batch, File, Segment
from store.work import overview
from tasks.context import AppContext
from tasks.finishing import finalize
from tasks.intake import appending
from tests.support.batches import open_batch
from tests.support.messages import SentMessages
from tests.support.planned import answers, end_batch, finish_segment, reload
from tests.support.stacks import ROOT, a_chat


@pytest.fixture
def batch(database: Database, project: str) -> Batch:
    """An open batch without requests."""
    with database.write() as session:
        return open_batch(session, project)


def lines(*custom_ids: str, **body: Any) -> bytes:
    return "".join(json.dumps(a_chat(name, f"hello {name}", **body)) + "\n" for name in custom_ids).encode()


def add(context: AppContext, batch: Batch, content: bytes, key: str | None = None) -> Append:
    return appending.run(context, batch.project_id, batch.id, content, key)


def close(database: Database, batch: Batch) -> Batch:
    with database.write() as session:
        return batches.close(session, Principal(batch.project_id, False, "key-1", "ada"), batch.id)


def texts(context: AppContext, file_id: str | None) -> list[dict[str, Any]]:
    """The lines of a file."""
    with context.database.read() as session:
        sha256 = session.get_one(File, file_id).sha256
    return [json.loads(line) for line in context.artifacts.read(sha256).splitlines()]


def test_requests_run_as_they_come_and_stand_in_the_files_in_the_order_in_which_they_came(
    context: AppContext, batch: Batch
) -> None:
    assert (batch.status, batch.open, batch.total) == ("in_progress", True, 0)
    first = add(context, batch, lines("r1", "r2"))
    finish_segment(context, batch, answers([2, 1]))
    second = add(context, batch, b"\n" + lines("r3") + b"\r\n")
    assert [(append.first_line, append.requests) for append in (first, second)] == [(1, 2), (3, 1)]
    finish_segment(context, batch, answers([3]), number=1)
    with context.database.write() as session:
        batches.end_running(session)
    assert reload(context.database, batch).status == "in_progress", "it may get more"
    close(context.database, batch)
    ended = end_batch(context, batch)
    assert (ended.status, ended.completed, ended.simulated) == ("completed", 3, True)
    assert [line["custom_id"] for line in texts(context, ended.output_file_id)] == ["r1", "r2", "r3"]
    assert texts(context, ended.input_file_id) == [a_chat(name, f"hello {name}") for name in ("r1", "r2", "r3")]


def test_the_same_key_adds_once_and_answers_as_the_first_time(context: AppContext, batch: Batch) -> None:
    first = add(context, batch, lines("a"), "k")
    assert add(context, batch, lines("a"), "k").id == first.id
    with pytest.raises(ConflictError) as refused:
        add(context, batch, lines("b"), "k")
    assert refused.value.code == "idempotency_key_reused"
    close(context.database, batch)
    assert add(context, batch, lines("a"), "k").id == first.id, "a repeated request may come after the end"
    assert reload(context.database, batch).total == 1


@pytest.mark.parametrize(
    ("content", "code", "says"),
    [
        (lines("b", "a"), "duplicate_custom_id", "The custom_id 'a' is in the batch already"),
        (lines("b", "b"), "duplicate_custom_id", "Line 2: The custom_id 'b' is used on line 1 already"),
        (lines("b") + b"{}\n{}\n", "missing_required_parameter", "Line 2: Missing required parameter"),
        (lines("b", model="none"), "model_not_found", "Line 1: The provided model 'none' is not supported here"),
        (b"\n\n", "empty_file", "The file has no requests"),
    ],
)
def test_a_bad_line_is_named_and_nothing_is_added(
    context: AppContext, batch: Batch, content: bytes, code: str, says: str
) -> None:
    add(context, batch, lines("a"))
    with pytest.raises(RequestError, match=says) as refused:
        add(context, batch, content)
    assert refused.value.code == code and refused.value.message.endswith("Nothing was added.")
    assert reload(context.database, batch).total == 1
    add(context, batch, lines("b"))


def test_a_misspelt_parameter_is_told_of_once_with_its_line_in_the_batch(
    new_context: Callable[..., AppContext], batch: Batch
) -> None:
    context = new_context()
    server = {"endpoints": [{"url": "http://127.0.0.1:1/v1"}]}  # which may know a parameter that nobody else does
    context.models["theirs"] = ModelSpec(name="theirs", engine="openai", engine_args=server)
    add(context, batch, lines("a"))
    add(context, batch, lines("b", "c", model="theirs", temperatur=1))
    add(context, batch, lines("d", model="theirs", temperatur=1))
    warnings = reload(context.database, batch).warnings or []
    assert [(entry["line"], entry["param"]) for entry in warnings] == [(2, "body.temperatur")]


def test_a_limit_of_cost_that_no_model_reaches_is_told_of_once(context: AppContext, batch: Batch) -> None:
    with context.database.write() as session:
        session.execute(update(Batch).where(Batch.id == batch.id).values(stop_when={"cost": 5}))
    for name in ("a", "b"):
        add(context, batch, lines(name))
    (warning,) = reload(context.database, batch).warnings or []
    assert (warning["param"], "models without a price: echo" in warning["message"]) == ("stop_when.cost", True)


def test_requests_that_no_engine_will_run_are_answered_at_once(
    new_context: Callable[..., AppContext], batch: Batch
) -> None:
    context = new_context()
    source = str(ROOT / "examples/models/nano")
    context.models["nano"] = ModelSpec(
        name="nano", engine="transformers", source=source, engine_args={"max_model_len": 64}
    )
    add(context, batch, lines("a") + json.dumps(a_chat("long", "x " * 500, model="nano")).encode())
    now = reload(context.database, batch)
    assert (now.total, now.failed, now.refused, now.models.keys()) == (2, 1, 1, {"echo", "nano"})
    close(context.database, batch)
    with context.database.read() as session:
        pending = select(Segment.number).where(Segment.batch_id == batch.id, Segment.state == "pending")
        number = session.scalars(pending).one()
    finish_segment(context, batch, answers([1], custom_ids={1: "a"}), number=number)
    ended = end_batch(context, batch)
    (line,) = texts(context, ended.error_file_id)
    assert (line["custom_id"], line["response"]["body"]["error"]["code"]) == ("long", "context_length_exceeded")


@pytest.mark.long
@pytest.mark.races
def test_clients_that_add_at_once_lose_nothing_and_share_no_line(context: AppContext, batch: Batch) -> None:
    def add_some(client: int) -> list[Append]:
        return [add(context, batch, lines(f"{client}-{number}-a", f"{client}-{number}-b")) for number in range(5)]

    with ThreadPoolExecutor(4) as pool:
        appended = list(itertools.chain.from_iterable(pool.map(add_some, range(4))))
    assert sorted(append.first_line for append in appended) == list(range(1, 41, 2))
    assert reload(context.database, batch).total == 40


@pytest.mark.races
def test_of_clients_that_send_the_same_key_at_once_one_adds(context: AppContext, batch: Batch) -> None:
    with ThreadPoolExecutor(4) as pool:
        ids = {append.id for append in pool.map(lambda _: add(context, batch, lines("a"), "k"), range(4))}
    assert len(ids) == 1 and reload(context.database, batch).total == 1


@pytest.mark.parametrize(
    ("settings", "error", "code"),
    [
        ({"max_requests": 2}, RequestError, "too_many_tasks"),
        ({"max_file_bytes": 300}, TooLargeError, "file_too_large"),
        ({"max_bytes_in_flight": 300}, RateLimitError, "rate_limit_exceeded"),
    ],
)
def test_a_batch_has_no_more_requests_and_bytes_than_a_file(
    new_context: Callable[..., AppContext], batch: Batch, settings: dict[str, int], error: type[RequestError], code: str
) -> None:
    context = new_context(**settings)
    add(context, batch, lines("a"))
    with pytest.raises(error) as refused:
        add(context, batch, lines("b", "c"))
    assert refused.value.code == code
    assert reload(context.database, batch).total == 1


def test_bytes_count_as_in_flight_until_the_end(context: AppContext, batch: Batch) -> None:
    add(context, batch, lines("a"))
    with context.database.write() as session:
        assert overview.bytes_in_flight(session, batch.project_id) == len(lines("a"))
        batches.cancel(session, batch.project_id, batch.id)
        session.execute(update(Batch).values(status="cancelled"))
        assert overview.bytes_in_flight(session, batch.project_id) == 0


def test_a_batch_that_is_not_open_says_why_it_takes_nothing(
    context: AppContext, batch: Batch, new_batch: Callable[..., Batch]
) -> None:
    with pytest.raises(ConflictError, match="was closed, or made of a file"):
        add(context, new_batch(1), lines("a"))
    close(context.database, batch)
    close(context.database, batch)
    with pytest.raises(ConflictError, match=r"was closed, or made of a file\. Create another one") as refused:
        add(context, batch, lines("a"))
    assert refused.value.code == "batch_closed"
    with pytest.raises(NotFoundError):
        appending.run(context, "proj_other", batch.id, lines("a"), None)


def test_an_open_batch_is_finished_as_soon_as_it_is_closed_or_cancelled(
    context: AppContext, batch: Batch, project: str, sent: SentMessages
) -> None:
    with context.database.write() as session:
        other = open_batch(session, project)
        batches.cancel(session, project, other.id)
    close(context.database, batch)
    finalize.start_ready(context)
    assert sorted(sent.ids("finish")) == [batch.id, other.id]


def test_an_open_batch_ends_at_its_window(context: AppContext, database: Database, project: str) -> None:
    with database.write() as session:
        answered, unanswered, empty = (open_batch(session, project) for _ in range(3))
    add(context, answered, lines("r1"))
    finish_segment(context, answered, answers([1]))
    add(context, unanswered, lines("r1"))
    with database.write() as session:
        session.execute(update(Batch).values(expires_at=1))
        assert set(batches.expire(session)) == {answered.id, unanswered.id, empty.id}
    outcomes = [reload(database, batch).outcome for batch in (answered, unanswered, empty)]
    assert outcomes == ["completed", "expired", "completed"]
    with pytest.raises(ConflictError, match="has status 'finalizing'"):
        add(context, answered, lines("r2"))
    ended = end_batch(context, empty)
    assert (ended.status, ended.total, ended.output_file_id) == ("completed", 0, None)
    ended = end_batch(context, unanswered)
    assert (ended.status, ended.expired) == ("expired", 1)


def test_plans_are_kept_while_the_batch_runs_and_custom_ids_while_it_is_open(context: AppContext, batch: Batch) -> None:
    add(context, batch, lines("a"))
    with context.database.read() as session:
        ((plan_sha256, _),) = segments.plans(session, batch.id)
        assert garbage.referenced(session, [plan_sha256], 0, 0) == {plan_sha256}

    def purged() -> int:
        with context.database.write() as session:
            for old in retention.others(time.time(), 0):
                if old.record is AppendedId and (keys := retention.find(session, old)):
                    retention.purge(session, old, keys)
            return session.scalar(select(func.count()).select_from(AppendedId)) or 0

    assert purged() == 1
    close(context.database, batch)
    assert purged() == 0
