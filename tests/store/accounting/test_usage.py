"""Usage is summed by day, model, project and key, at the prices of each batch."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from batchyard import tariffs
from batchyard.models import Tariff
from store import keys
from store.accounting import usage
from store.accounting.months import Month
from store.database import Database
from store.records import Batch, DailyUsage
from tests.support.jobs import create_job
from tests.support.planned import started
from tests.support.spending import spend

NewBatch = Callable[..., Batch]


def test_usage_is_listed_by_day_model_project_and_key_and_of_one_month(database: Database, project: str) -> None:
    with database.write() as session:
        other = keys.create(session, "other")
        other_id = keys.authenticate(session, other.key).project_id  # type: ignore[union-attr]
        day = Month(2026, 11).first + 22
        for number, (owner, key, model, price) in enumerate(
            [(project, "k1", "a", 1_000_000), (project, "k2", "b", None), (other_id, "k3", "a", 2_000_000)]
        ):
            session.add(_row(f"batch_{number}", owner, key, model, day, price))
        session.add(_row("batch_9", project, "k1", "a", Month(2026, 12).first, 1_000_000))
    with database.read() as session:
        every = usage.listed(session, Month(2026, 11), ["project", "model"], None)
        own = usage.listed(session, Month(2026, 11), ["day", "key"], project)
        spent = usage.used(session, Month(2026, 11), "project_id", {project: project, other_id: other_id})
    found = {(line.project_id, line.model): line.cost for line in every}
    assert found == {(project, "a"): 1, (project, "b"): None, (other_id, "a"): 2}
    assert [(line.day, line.key_id) for line in own] == [(day, "k1"), (day, "k2")]
    assert spent == {project: (2_000_000, {"EUR": 1}), other_id: (1_000_000, {"EUR": 2})}


def _row(batch_id: str, project_id: str, key_id: str, model: str, day: int, price: int | None) -> DailyUsage:
    """A million input tokens."""
    amounts = dict.fromkeys(("failed", "shared_requests", "cached_tokens", "output_tokens", "bytes", "milliseconds"), 0)
    prices = {} if price is None else {"currency": "EUR", "input_price": price, "cached_price": 0}
    more = {} if price is None else {"output_price": 0, "hour_price": 0}
    own = {"batch_id": batch_id, "project_id": project_id, "key_id": key_id, "model": model, "day": day}
    return DailyUsage(**own, **amounts, **prices, **more, requests=1, input_tokens=1_000_000)


@pytest.mark.usefixtures("frozen_time")
def test_what_a_batch_has_used_is_added_up_by_day_at_its_price(database: Database, new_batch: NewBatch) -> None:
    batch = new_batch(5)
    lease = started(database, batch)
    lease.model["price"] = Tariff(currency="EUR", input="1", output="2").model_dump(mode="json")  # type: ignore[arg-type]
    amounts = tariffs.NOTHING._replace(requests=1, input_tokens=1_000_000, output_tokens=500_000)
    with database.write() as session:
        for _ in range(2):
            usage.add(session, lease, amounts)
        (row,) = session.query(DailyUsage).all()
        assert (row.requests, row.input_tokens, row.output_tokens) == (2, 2_000_000, 1_000_000)
        assert dict(usage.costs(session, [batch.id])[batch.id].amounts) == {"EUR": 4}
        assert usage.costs(session, ["batch_other"]) == {}


def test_a_job_has_cost_what_it_and_the_jobs_it_started_have_cost(database: Database, project: str) -> None:
    with database.write() as session:
        parent = create_job(session, project)
        child = create_job(session, project, parent_id=parent.id)
        ids = [parent.id, child.id]
    for number, job_id in enumerate(ids, 1):
        spend(database, project, number, job_id=job_id)
    with database.read() as session:
        costs = usage.job_costs(session, ids)
    assert {job_id: dict(cost.amounts) for job_id, cost in costs.items()} == {ids[0]: {"EUR": 3}, ids[1]: {"EUR": 2}}


def test_the_newest_batches_that_an_engine_computed_come_first(database: Database, project: str) -> None:
    for tokens, size in ((1, 100), (2, 0), (3, 100), (4, 100)):
        spend(database, project, 1, input_tokens=tokens, bytes=size)
    spend(database, project, 1, model="other", input_tokens=9)
    with database.read() as session:
        recent = usage.recent(session, project, "echo", 2)
    assert [amounts.input_tokens for amounts in recent] == [4, 3]
