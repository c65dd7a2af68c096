"""The replicas that the queue needs: as many as keep its deadlines, and not one more."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from store import speeds
from store.queue import BacklogEntry
from store.records import Batch
from store.speeds import Expected, Measurement, Throughput
from tasks.context import AppContext
from tasks.scheduling import demand, dispatch
from tasks.scheduling.demand import Demand, replicas_needed
from tasks.scheduling.policy import Limits, RecentUsage
from tests.support.stacks import ROOT

sys.path.append(str(ROOT / "benchmarks"))
import simulation

SPEED = Throughput(
    work_per_second=1.0,
    work_per_request=1.0,
    bytes_per_request=100,
    spread=0.0,
    measurements=1000,
    lead=Expected(simulation.LEAD_SECONDS, 0.0),
)
LIMITS = Limits(1, {"m": 1, "n": 1}, fills=dict.fromkeys("mn", dispatch.DRAIN_SECONDS))


def entry(batch: str, seconds: int, due: float, *, model: str = "m", infeasible: bool = False) -> BacklogEntry:
    """Work of so many seconds of one replica."""
    segments = math.ceil(seconds / simulation.SEGMENT_SECONDS)
    return BacklogEntry(
        batch,
        "p",
        infeasible,
        due,
        model,
        "decode",
        False,
        segments,
        seconds,
        100 * seconds,
        0,  # type: ignore[arg-type]
    )


def needed(
    entries: Sequence[BacklogEntry], limits: Limits = LIMITS, measured: Sequence[str] = ("m", "n")
) -> dict[str, int | None]:
    throughputs = {(model, "decode"): SPEED for model in measured}
    return replicas_needed(entries, {}, throughputs, limits, RecentUsage({}, 0.0), now=0.0)


@given(st.lists(st.tuples(st.integers(1, 5000), st.integers(1, 4)), min_size=1, max_size=12))
def test_it_is_the_least_number_that_keeps_all_deadlines_in_the_simulator(sizes: list[tuple[int, int]]) -> None:
    """Each batch has a window of a few times its own work, and all are there at once: an overload for one replica."""
    # Due at no moment at which a segment can end. The simulator starts what comes first, so that is what is due first.
    batches = sorted((seconds * times + 20.123, seconds) for seconds, times in sizes)
    arrivals = [simulation.Arrival(0.0, "p", "m", float(seconds), due) for due, seconds in batches]

    def all_kept(replicas: int) -> bool:
        outcome = simulation.kept(arrivals, {"m": 1}, LIMITS.min_share, lambda batch: batch.due_at, speed=replicas)
        return outcome["kept"] == 1.0

    entries = [entry(str(number), seconds, due) for number, (due, seconds) in enumerate(batches)]
    least = next(filter(all_kept, range(1, demand.MOST + 1)), None)
    assert least is None or needed(entries) == {"m": least}


def test_an_empty_queue_needs_none() -> None:
    assert needed([]) == {}


def test_a_model_that_was_never_measured_has_no_number_and_leaves_others_theirs() -> None:
    entries = [entry("a", 1000, 550), entry("b", 1000, 1, model="n")]
    assert needed(entries, measured=["m"]) == {"m": 2, "n": None}


def test_a_deadline_that_nothing_can_keep_asks_for_no_more_than_the_others_need() -> None:
    assert needed([entry("gone", 100_000, -5), entry("a", 100, 1000)]) == {"m": 1}


def test_a_batch_that_is_out_of_reach_today_counts_with_more_replicas() -> None:
    assert needed([entry("a", 1000, 550, infeasible=True)]) == {"m": 2}


def test_each_model_has_its_own_number() -> None:
    entries = [entry("a", 1000, 550), entry("b", 1000, 220, model="n")]
    assert needed(entries, Limits(2, {"m": 1, "n": 1})) == {"m": 2, "n": 6}


def test_there_is_a_most(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(demand, "MOST", 3)
    within_reach, beyond = entry("a", 1000, 365), entry("b", 10_000, 400)
    assert needed([within_reach, beyond]) == {"m": 3}
    assert needed([beyond]) == {"m": 1}, "all that three could do for it is to be late"


@pytest.fixture
def measured(connected: AppContext) -> AppContext:
    """Model echo was measured with ten requests a second."""
    measurement = Measurement(seconds=60.0, requests=600, bytes=60_000.0, tokens=0, squares=0.0, in_flight=256)
    with connected.database.write() as session:
        for _ in range(10):
            speeds.measure(
                speeds.locked(session, "echo", connected.models["echo"].config_sha256, "decode"), measurement
            )
    return connected


def test_the_queue_of_a_deployment_says_what_it_needs(measured: AppContext, new_batch: Callable[..., Batch]) -> None:
    new_batch(30_000, window="1h")  # 3,000 s of what was measured
    demand.update(measured, {"echo": 1})
    assert demand.read(measured)["echo"] == Demand(needed=1, running=1)
    new_batch(30_000, window="1h")
    demand.update(measured, {"echo": 1})
    assert demand.read(measured)["echo"] == Demand(needed=2, running=1)


def test_two_replicas_were_each_half_as_fast_as_both(measured: AppContext, new_batch: Callable[..., Batch]) -> None:
    new_batch(30_000, window="1h")
    demand.update(measured, {"echo": 2})
    assert demand.read(measured)["echo"] == Demand(needed=2, running=2)
    demand.update(measured, {})  # they are gone, and their speed is still the last that was measured
    assert demand.read(measured)["echo"] == Demand(needed=2, running=0)


def test_what_was_said_long_ago_says_nothing(measured: AppContext, monkeypatch: pytest.MonkeyPatch) -> None:
    demand.update(measured, {})
    assert demand.read(measured)["echo"] == Demand(needed=0, running=0)
    monkeypatch.setattr(demand, "FRESH_SECONDS", -1.0)
    assert demand.read(measured)["echo"] == Demand(needed=None, running=0)
