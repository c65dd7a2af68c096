"""What answers have used is counted with them, once, at the price of their batch."""

from __future__ import annotations

import json
import threading
import time
from typing import Any

import pytest

from batchyard.errors import LeaseLost
from batchyard.models import ModelSpec, Tariff
from store import batches
from store.accounting import usage
from store.accounting.months import Month
from store.records import Batch, DailyUsage
from tasks.context import AppContext
from tasks.execution import segment as segments
from tasks.execution.answering import _configuration
from tasks.execution.chunk_writer import ChunkWriter
from tasks.scheduling.throughput import ThroughputMeter
from tests.support.planned import (
    MODEL,
    answers,
    dispatched,
    end_batch,
    lose,
    marked,
    plan_batch,
    reload,
    started,
    the_segment,
)
from tests.tasks.execution.conftest import DirectedEngine

TARIFF = Tariff(currency="EUR", input="1", cached_input="0.5", output="2")  # type: ignore[arg-type]


def priced(context: AppContext, project: str, *texts: str, tariff: Tariff | None = TARIFF, **options: Any) -> Batch:
    """A planned batch of chats whose model has this tariff."""
    batch = plan_batch(context, project, texts, **options)
    spec = ModelSpec(name=MODEL, engine="echo", price=tariff)
    with context.database.write() as session:
        batches.set_model(session, batch.id, MODEL, spec.model_dump(mode="json"))
    return reload(context.database, batch)


def append(context: AppContext, batch: Batch, *lines: int, shared: tuple[int, ...] = (), segment: int = 0) -> None:
    """Answer lines of a pending segment, and end it. Each has 3 input tokens, 1 of them cached, and 2 output tokens."""
    writer = ChunkWriter(context, started(context.database, batch, segment), threading.Event())
    for some, is_shared in ((lines, False), (shared, True)):
        writer.add(marked(answers(some), is_shared))
    writer.flush()


def cost(context: AppContext, batch: Batch) -> dict[str, Any] | None:
    with context.database.read() as session:
        own = usage.costs(session, [batch.id]).get(batch.id)
    return own and own.document


def euros(millionths: str) -> dict[str, Any]:
    return {"amount": millionths, "currency": "EUR", "unpriced_requests": 0}


def test_a_batch_costs_what_its_computed_tokens_cost(context: AppContext, project: str) -> None:
    batch = priced(context, project, "one", "two", "three")
    assert cost(context, batch) is None, "nothing is answered yet"
    append(context, batch, 1, 2)
    # Each: 2 tokens at 1, 1 from the prefix cache at 0.5, 2 at 2: 6.5 millionths.
    assert cost(context, batch) == euros("0.000013")


def test_an_answer_that_is_anothers_costs_nothing(context: AppContext, project: str) -> None:
    batch = priced(context, project, "one", "two", "three")
    append(context, batch, 1, shared=(2, 3))
    assert cost(context, batch) == euros("0.0000065")
    with context.database.read() as session:
        (row,) = session.query(DailyUsage).all()
    assert (row.requests, row.shared_requests, row.input_tokens, row.cached_tokens) == (3, 2, 3, 1)


def test_a_holder_that_has_lost_its_segment_adds_neither_answers_nor_cost(context: AppContext, project: str) -> None:
    batch = priced(context, project, "one", "two")
    stale = ChunkWriter(context, started(context.database, batch), threading.Event())
    lose(context.database, the_segment(context.database, batch).id)
    append(context, batch, 1, 2)
    stale.add(marked(answers([1, 2])))
    with pytest.raises(LeaseLost):
        stale.flush()
    assert cost(context, batch) == euros("0.000013")


def test_a_chunk_that_is_appended_again_costs_once(
    context: AppContext, project: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    batch = priced(context, project, "one", "two")
    lease = started(context.database, batch)
    table = marked(answers([1, 2]))
    for _ in range(2):  # as after a COMMIT whose outcome was unclear
        writer = ChunkWriter(context, lease, threading.Event())
        writer.add(table)
        writer.flush()
    assert cost(context, batch) == euros("0.000013")


def test_a_later_price_changes_neither_the_past_nor_a_batch_that_runs(context: AppContext, project: str) -> None:
    batch = priced(context, project, "one", "two", segment_requests=1)
    append(context, batch, 1)
    context.models[MODEL] = ModelSpec(name=MODEL, engine="echo", price=TARIFF.model_copy(update={"output": 99}))
    append(context, batch, 2, segment=1)
    assert cost(context, batch) == euros("0.000013")


def test_a_configuration_that_was_mended_keeps_the_batchs_price(context: AppContext, project: str) -> None:
    batch = priced(context, project, "one")
    lease = started(context.database, batch)
    context.models[MODEL] = ModelSpec(name=MODEL, engine="echo", replicas=2)
    object.__setattr__(lease, "held", "no weights")
    mended = _configuration(context, lease)
    assert (mended.replicas, mended.price) == (2, TARIFF)
    assert reload(context.database, batch).models[MODEL]["price"]["currency"] == "EUR"


def test_a_model_without_a_tariff_has_usage_and_no_cost(context: AppContext, project: str) -> None:
    batch = priced(context, project, "one", tariff=None)
    append(context, batch, 1)
    assert cost(context, batch) is None
    with context.database.read() as session:
        (line,) = usage.listed(session, Month.of(), ["model"], project)
    assert (line.model, line.amounts.input_tokens, line.currency, line.cost) == (MODEL, 3, None, None)


def test_time_is_charged_once_however_many_segments_share_it(context: AppContext, project: str) -> None:
    by_hour = Tariff(currency="EUR", hour="3600")  # type: ignore[arg-type]
    batch = priced(context, project, "one", "two", "three", "four", tariff=by_hour, segment_requests=2)
    began = time.time()
    leases = [started(context.database, batch, number) for number in (0, 1)]
    spec = ModelSpec.model_validate(batch.models[MODEL])
    writers = [ChunkWriter(context, lease, threading.Event(), ThroughputMeter(lease, spec)) for lease in leases]
    for line, writer in ((1, writers[0]), (3, writers[1]), (2, writers[0]), (4, writers[1])):
        time.sleep(0.05)
        writer.add(marked(answers([line], seconds=[0.05])))
        writer.flush()
    passed = time.time() - began
    own = cost(context, batch)
    assert own is not None
    assert 0.05 <= float(own["amount"]) <= passed + 0.01, "a euro for each second"


def test_the_manifest_says_what_the_batch_has_cost(
    context: AppContext, project: str, engine: DirectedEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    batch = priced(context, project, "one", "two")
    assert segments.run(context, *dispatched(context.database, batch), "here/1/task")
    ended = end_batch(context, batch)
    with context.database.read() as session:
        files = {artifact.name: file.sha256 for artifact, file in batches.artifacts(session, [batch.id])[ended.id]}
    manifest = json.loads(context.artifacts.read(files["manifest.json"]))
    assert manifest["cost"] == euros("0.000013")
    assert manifest["models"][MODEL]["config"]["price"]["input"] == "1"
