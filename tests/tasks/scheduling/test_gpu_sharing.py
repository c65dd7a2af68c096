"""A model that waits for GPUs holds back later work of the models that have them, for a while."""

from __future__ import annotations

import pytest

from store.segments import PendingSegment
from tasks.context import AppContext
from tasks.scheduling import gpu_sharing
from tasks.scheduling.gpu_sharing import EngineDemand


def waiting(model: str, due_at: float) -> PendingSegment:
    return PendingSegment(False, due_at, "batch", 0, 1, model, "project")


def test_a_demand_stands_until_it_is_cleared(connected: AppContext) -> None:
    gpu_sharing.record_demand(connected, "late", 500, ["holder"])
    gpu_sharing.record_demand(connected, "late", 400, ["holder", "other"])
    (demand,) = gpu_sharing.demands(connected)
    assert (demand.model, demand.due_at, demand.holders) == ("late", 400, ["holder", "other"])
    gpu_sharing.clear_demand(connected, "late")
    assert gpu_sharing.demands(connected) == []


def test_a_demand_that_is_not_renewed_expires(connected: AppContext, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu_sharing, "SECONDS", 0.0)
    gpu_sharing.record_demand(connected, "late", 500, ["holder"])
    assert gpu_sharing.demands(connected) == []


def test_a_holder_whose_work_is_due_later_starts_nothing() -> None:
    demands = [EngineDemand(500, ["later", "sooner", "idle"], 0.0)]
    queue = [waiting("later", 501.0), waiting("sooner", 499.0), waiting("sooner", 900.0), waiting("free", 900.0)]
    assert gpu_sharing.blocked(demands, queue) == {"later"}


def test_a_model_that_waits_for_gpus_tries_nothing_while_their_holders_have_work_due_sooner() -> None:
    """It would hold a slot in vain, and take the GPUs in the holder's first idle moment."""
    demands = [EngineDemand(500, ["holder"], 0.0, "late")]
    assert gpu_sharing.blocked(demands, [waiting("late", 500.0), waiting("holder", 499.0)]) == {"late"}
    assert gpu_sharing.blocked(demands, [waiting("late", 500.0), waiting("holder", 500.0)]) == set()
    assert gpu_sharing.blocked(demands, [waiting("late", 400.0), waiting("holder", 450.0)]) == set()
    assert gpu_sharing.blocked(demands, [waiting("late", 500.0), waiting("holder", 600.0)]) == {"holder"}
    assert gpu_sharing.blocked(demands, [waiting("late", 500.0)]) == set(), "the holder only ends what it runs"


def test_a_redis_that_is_away_holds_no_work_back(context: AppContext) -> None:
    gpu_sharing.record_demand(context, "late", 500, ["holder"])
    gpu_sharing.clear_demand(context, "late")
    assert gpu_sharing.demands(context) == []
