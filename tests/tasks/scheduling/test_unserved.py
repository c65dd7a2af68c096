"""A batch whose model was removed from models.toml says so, waits for the model, and ends with the reason."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace

import pytest
from sqlalchemy import select, update

from batchyard.models import ModelSpec
from store import holds
from store.records import Batch, Event
from tasks import metrics
from tasks.context import AppContext
from tasks.execution import segment
from tasks.scheduling import deadlines, dispatch
from tests.support.messages import SentMessages
from tests.support.planned import output_of, plan_batch, reload


@pytest.fixture
def batch(context: AppContext, project: str) -> Batch:
    return plan_batch(context, project, ["one", "two"])


@pytest.fixture
def without(context: AppContext) -> AppContext:
    """The deployment after its only model was replaced by another."""
    return replace(context, models={"other": ModelSpec(name="other", engine="echo")})


def reason(context: AppContext, batch: Batch) -> str | None:
    with context.database.read() as session:
        held = holds.of_batches(session, [batch.id])
    return held[batch.id].reason if held else None


def announced(context: AppContext) -> list[str]:
    with context.database.read() as session:
        return list(session.scalars(select(Event.batch_id).where(Event.type == "batch.held")))


def test_a_batch_whose_model_is_gone_is_held_and_told_of_once(
    context: AppContext, without: AppContext, batch: Batch, new_batch: Callable[..., Batch], sent: SentMessages
) -> None:
    other = new_batch(1, model="other")
    for _ in range(3):
        deadlines.tick(without)
        dispatch.run(without)
    assert "models.toml" in (reason(without, batch) or "")
    assert reason(without, other) is None
    assert announced(without) == [batch.id]
    assert len(sent.of("segment")) == 1, "the other model runs"
    (entry,) = [entry for entry in metrics.collect(without).queue.models if entry.model == "echo"]
    assert entry.held == reason(without, batch)


def test_it_goes_on_when_the_model_is_back(
    context: AppContext, without: AppContext, batch: Batch, sent: SentMessages
) -> None:
    deadlines.tick(without)
    dispatch.run(without)
    assert sent.of("segment") == []
    deadlines.tick(context)
    dispatch.run(context)
    assert (len(sent.of("segment")), reason(context, batch)) == (1, None)
    assert announced(context) == [batch.id]


@pytest.mark.usefixtures("frozen_time")
def test_it_ends_with_the_reason_when_its_window_is_nearly_over(
    without: AppContext, batch: Batch, sent: SentMessages
) -> None:
    deadlines.tick(without)
    dispatch.run(without)
    assert sent.of("segment") == []
    with without.database.write() as session:
        expires_at = int(time.time()) + 30
        session.execute(update(Batch).values(expires_at=expires_at, created_at=expires_at - 86400))
    dispatch.run(without)
    ((segment_id, epoch, *_),) = sent.of("segment")
    assert segment.run(without, segment_id, epoch, "here/1/task")
    lines = output_of(without, batch)
    assert {line["error"]["code"] for line in lines} == {"model_not_found"}
    assert "model 'echo'" in lines[0]["error"]["message"]
    assert reload(without.database, batch).failed == 2
