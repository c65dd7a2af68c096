"""ETAs: a table of queues with their forecasts, and forecasts against a replay with known durations."""

from __future__ import annotations

import math
import random
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import pytest

from batchyard.statuses import BACKGROUND
from store.queue import BacklogEntry
from store.speeds import Expected, Throughput
from tasks.scheduling.costs import Answered, WorkCosts
from tasks.scheduling.deadlines import sla
from tasks.scheduling.forecast import Forecast, forecast, with_chains, with_ends
from tasks.scheduling.policy import Limits, RecentUsage
from tasks.scheduling.states import Engines

HOUR = 3600.0


def throughput(requests_per_second: float, tokens: float = 0, **values: float) -> Throughput:
    """A well measured model. Each request has `tokens` tokens and counts as one more."""
    measured = Throughput(
        work_per_second=requests_per_second * (1 + tokens),
        work_per_request=1 + tokens,
        bytes_per_request=100,
        spread=0.0,
        measurements=1000,
    )
    return replace(measured, **values)


def backlog_entry(
    requests: int,
    *,
    batch: str = "mine",
    answered: int = 0,
    due: float = 24 * HOUR,
    model: str = "m",
    project: str = "p",
    segments: int = 1,
    active: bool = False,
    size: int = 100,
    kind: str = "decode",
    priority: int = 0,
) -> BacklogEntry:
    counts = (segments, requests, size * requests, answered, priority)
    return BacklogEntry(batch, project, False, int(due), model, kind, active, *counts)  # type: ignore[arg-type]


@dataclass
class Case:
    """A queue, and the hours until the batch `mine` is done."""

    name: str
    entries: Sequence[BacklogEntry]
    hours: float | None
    throughputs: dict[tuple[str, str], Throughput] = field(default_factory=lambda: {("m", "decode"): throughput(1)})
    answered: dict[str, Answered] = field(default_factory=dict)
    limits: Limits = field(default_factory=lambda: Limits(2, {"m": 2, "n": 2, "o": 2}))


TEN_AN_HOUR = {("m", "decode"): throughput(10 / HOUR)}
ONE_SLOT = Limits(1, {"m": 1, "n": 1})
N_AND_M = {("m", "decode"): throughput(1), ("n", "decode"): throughput(2)}
BOTH_CLASSES = {("m", "prefill"): throughput(2, tokens=1000), ("m", "decode"): throughput(1, tokens=100)}
CASES = [
    Case("1,000 rows, 100 done in 10 hours", [backlog_entry(1000, answered=100, active=True)], 90, TEN_AN_HOUR),
    Case("nothing was ever measured", [backlog_entry(1000)], None, {}),
    Case("nothing is done, but the model is known from other batches", [backlog_entry(3600)], 1),
    Case("all but one row is done", [backlog_entry(3600, answered=3599, active=True)], 1 / HOUR),
    Case(
        "a batch that is due later waits",
        [backlog_entry(3600), backlog_entry(7200, batch="late", due=48 * HOUR)],
        1,
        limits=ONE_SLOT,
    ),
    Case(
        "a batch that is due sooner goes first",
        [backlog_entry(3600), backlog_entry(7200, batch="soon", due=HOUR)],
        3,
        limits=ONE_SLOT,
    ),
    Case(
        "one of its project that is due sooner but has a lower priority waits",
        [backlog_entry(3600), backlog_entry(7200, batch="soon", due=HOUR, priority=-1)],
        1,
        limits=ONE_SLOT,
    ),
    Case(
        "its priority makes no other project wait",
        [backlog_entry(3600, priority=1), backlog_entry(7200, batch="soon", due=HOUR, project="q")],
        3,
        limits=ONE_SLOT,
    ),
    Case(
        "of what runs already only the rest is before it",
        [backlog_entry(3600), backlog_entry(7200, batch="soon", answered=3600, active=True)],
        2,
        limits=ONE_SLOT,
    ),
    Case(
        "of a batch due later that runs already, the segment in hand is before it",
        [
            backlog_entry(3600),
            backlog_entry(1800, batch="late", due=48 * HOUR, active=True),
            backlog_entry(72000, batch="late", due=48 * HOUR, segments=40),
        ],
        1.5,
        limits=ONE_SLOT,
    ),
    Case("two segments share one engine", [backlog_entry(3600, segments=2)], 1),
    Case(
        "a longer segment that began at the same time lets it go first",
        [backlog_entry(3600, active=True), backlog_entry(7200, batch="soon", due=HOUR, active=True)],
        1,
        limits=Limits(2, {"m": 2}),
    ),
    Case(
        "a shorter segment that began at the same time is before it",
        [backlog_entry(3600, active=True), backlog_entry(1800, batch="soon", due=HOUR, active=True)],
        1.5,
        limits=Limits(2, {"m": 2}),
    ),
    Case(
        "a segment that is due sooner fills the engine, whose second slot stays free",
        [backlog_entry(3600), backlog_entry(7200, batch="soon", due=HOUR)],
        3,
        limits=Limits(2, {"m": 2}),
    ),
    Case(
        "another model's long queue leaves it the idle engine",
        [backlog_entry(3600), backlog_entry(360_000, batch="soon", model="n", due=1, segments=100)],
        1,
        N_AND_M,
    ),
    Case(
        "another model's queue is beside it",
        [backlog_entry(3600), backlog_entry(72000, batch="soon", model="n", due=1)],
        1,
        N_AND_M,
    ),
    Case(
        "another model's queue is before it where the slots are few",
        [backlog_entry(3600), backlog_entry(7200, batch="soon", model="n", due=1)],
        2,
        N_AND_M,
        limits=ONE_SLOT,
    ),
    Case(
        "of a batch of two models the slower counts", [backlog_entry(3600), backlog_entry(3600, model="n")], 1, N_AND_M
    ),
    Case(
        "a batch of two models, one never measured",
        [backlog_entry(3600), backlog_entry(3600, model="o")],
        None,
        N_AND_M,
    ),
    Case("its engine is paused", [backlog_entry(3600)], None, limits=Limits(2, {"m": 0})),
    Case("its model is served no more", [backlog_entry(3600, model="gone")], None, {("gone", "decode"): throughput(1)}),
    Case("its project may run nothing", [backlog_entry(3600)], None, limits=Limits(2, {"m": 2}, {"p": 0})),
    Case(
        "another's paused engine holds up nobody",
        [backlog_entry(3600), backlog_entry(3600, batch="soon", model="n", due=1)],
        1,
        N_AND_M,
        limits=Limits(1, {"m": 1, "n": 0}),
    ),
    Case(
        "behind something that was never measured, nobody knows",
        [backlog_entry(3600), backlog_entry(1, batch="soon", model="o", due=1)],
        None,
        limits=Limits(1, {"m": 1, "o": 1}),
    ),
    Case("prefill-heavy rows take their own speed", [backlog_entry(7200, kind="prefill")], 1, BOTH_CLASSES),
    Case("decode-heavy rows take theirs", [backlog_entry(3600)], 1, BOTH_CLASSES),
    Case("prompts twice as long take twice the time", [backlog_entry(7200, kind="prefill", size=200)], 2, BOTH_CLASSES),
    Case("a class that was never measured goes by the other", [backlog_entry(3600, kind="prefill")], 1),
    Case(
        "answers of this batch are twice as long as the model's usual ones",
        [backlog_entry(36000, answered=18000, active=True)],
        10,
        {("m", "decode"): throughput(1, tokens=99)},
        {"mine": Answered(18000, 18000 * 199)},
    ),
    Case(
        "each segment takes a while to begin",
        [backlog_entry(3600, segments=10)],
        1.5,
        {("m", "decode"): throughput(1, lead=Expected(180, 0))},
        limits=ONE_SLOT,
    ),
    Case(
        "of the background, which nothing else runs beside",
        [backlog_entry(3600, segments=10, priority=BACKGROUND)],
        1.0,
        limits=ONE_SLOT,
    ),
    Case(
        "of the background, while other work of its model is there",
        [backlog_entry(3600, active=True, priority=BACKGROUND), backlog_entry(36, batch="other", project="q")],
        None,
    ),
    Case(
        "of a batch beside one of the background that runs, which makes way",
        [backlog_entry(3600), backlog_entry(3600, batch="spare", active=True, priority=BACKGROUND)],
        1.0,
    ),
    Case(
        "of which only the first one's takes time where segments begin while others drain",
        [backlog_entry(3600, segments=10)],
        1.05,
        {("m", "decode"): throughput(1, lead=Expected(180, 0))},
        limits=Limits(2, {"m": 2}, fills={"m": 200}),
    ),
]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_the_eta_of(case: Case) -> None:
    mine = forecast(
        WorkCosts(case.entries, case.answered, case.throughputs), case.limits, RecentUsage({}, 0.0), now=0.0
    ).get("mine")
    if case.hours is None:
        assert mine is None
    else:
        assert mine is not None
        assert mine.at / HOUR == pytest.approx(case.hours, rel=0.02)
        assert mine.earliest < mine.at < mine.latest


def test_another_projects_urgent_batch_leaves_this_one_its_share() -> None:
    entries = [
        backlog_entry(3600, segments=100),
        backlog_entry(36000, batch="soon", project="q", due=1, segments=1000),
    ]
    throughputs = {("m", "decode"): throughput(1)}
    forecasts = forecast(
        WorkCosts(entries, {}, throughputs), replace(ONE_SLOT, min_share=0.5), RecentUsage({}, 0.0), now=0.0
    )
    assert 3.6 < forecasts["mine"].at / HOUR < 4.0  # a quarter of the time: half of an even share
    assert forecasts["soon"].at / HOUR == pytest.approx(11)


def test_the_range_narrows_as_more_is_measured() -> None:
    widths = []
    for requests, measurements in ((0, 1), (100, 10), (5000, 1000)):
        throughputs = {("m", "decode"): throughput(1, spread=0.5, measurements=measurements)}
        answers = {"mine": Answered(requests, 0)}
        mine = forecast(
            WorkCosts([backlog_entry(10_000)], answers, throughputs), ONE_SLOT, RecentUsage({}, 0.0), now=0.0
        )["mine"]
        widths.append((mine.latest - mine.earliest) / mine.at)
    assert widths == sorted(widths, reverse=True)
    assert widths[-1] < 0.3


def test_a_segment_whose_requests_are_all_answered_ends_now() -> None:
    entries = [backlog_entry(100, answered=100, active=True)]
    forecasts = forecast(
        WorkCosts(entries, {}, {("m", "decode"): throughput(1)}), ONE_SLOT, RecentUsage({}, 0.0), now=5.0
    )
    assert forecasts == {"mine": Forecast(5.0, 5.0, 5.0)}


def test_a_job_ends_no_sooner_than_the_longest_of_its_items() -> None:
    even = throughput(10, in_flight=100, limit=200)  # a request takes 10 s
    work_ends = Forecast(1020, 1010, 1030)
    assert with_chains(work_ends, even, [(1, 50), (3, 7)], None, 1000).at == pytest.approx(1030)
    assert with_chains(work_ends, even, [(1, 50)], None, 1000) == work_ends
    uneven = throughput(10, in_flight=100, limit=200, request_spread=1.5)
    assert with_chains(work_ends, uneven, [(3, 50)], None, 1000).at > 1060


def test_a_job_whose_items_go_through_turns_empties_slowly() -> None:
    uneven = throughput(10, in_flight=100, limit=200, request_spread=1.5)
    work_ends = Forecast(2000, 1900, 2100)
    one, three = (with_chains(work_ends, uneven, [(turns, 100)], (turns, 900), 1000).at for turns in (1, 3))
    assert 2010 < one < three < 2100
    assert with_chains(work_ends, throughput(10), [(3, 100)], (3, 900), 1000).at == 2000, "one at a time, of one length"


def test_a_long_queue_is_forecast_several_segments_at_a_time_and_comes_out_the_same() -> None:
    rng = random.Random(5)
    entries = [
        backlog_entry(
            2000 * segments, batch=f"b{number:03}", due=number * HOUR, segments=segments, model=rng.choice("mn")
        )
        for number, segments in enumerate(rng.choices(range(1, 400), k=60))
    ]
    forecasts = forecast(WorkCosts(entries, {}, N_AND_M), Limits(2, {"m": 1, "n": 1}), RecentUsage({}, 0.0), now=0.0)
    ahead = {"m": 0.0, "n": 0.0}
    for entry in entries:
        ahead[entry.model] += entry.requests / {"m": 1, "n": 2}[entry.model]
        assert forecasts[entry.batch_id].at == pytest.approx(ahead[entry.model], rel=1e-6)
    assert sum(entry.segments for entry in entries) > 4000


@pytest.mark.parametrize(
    ("hours_gone", "answered_share", "eta_hours", "state"),
    [
        (0, 0.0, None, "on_track"),
        (10, 0.1, 13, "on_track"),
        (10, 0.1, 15, "at_risk"),
        (16.7, 0.1, None, "on_track"),
        (16.9, 0.1, None, "at_risk"),
        (16.9, 0.1, 1, "at_risk"),
        (16.9, 0.71, 1, "on_track"),
        (23.9, 0.99, 0.2, "at_risk"),
        (24, 0.999, 0.1, "late"),
        (30, 0.0, None, "late"),
    ],
)
def test_the_sla_state_of_a_batch_with_a_day(
    hours_gone: float, answered_share: float, eta_hours: float | None, state: str
) -> None:
    now = hours_gone * HOUR
    assert sla(now, 0.0, 24 * HOUR, answered_share, None if eta_hours is None else now + eta_hours * HOUR) == state


def test_the_forecast_of_twenty_batches_of_three_models_is_right_though_single_requests_differ() -> None:
    """What the forecast knows are means; what happens are requests whose work varies by a factor."""
    rng = random.Random(1)
    throughputs = {
        (model, "decode"): throughput(speed, tokens=100) for model, speed in (("m", 3), ("n", 10), ("o", 30))
    }
    limits = Limits(2, dict.fromkeys("mno", 2))
    entries = []
    for number in range(20):
        model = rng.choice("mno")
        requests = rng.randint(50, 2000)
        entries.append(backlog_entry(requests, batch=f"b{number}", model=model, due=rng.randint(1, 24) * HOUR))
    expected = forecast(WorkCosts(entries, {}, throughputs), limits, RecentUsage({}, 0.0), now=0.0)
    actual_lanes = [
        entry._replace(requests=max(1, round(entry.requests * rng.lognormvariate(0, 0.2)))) for entry in entries
    ]
    actual = forecast(WorkCosts(actual_lanes, {}, throughputs), limits, RecentUsage({}, 0.0), now=0.0)
    errors = [abs(expected[name].at - actual[name].at) / actual[name].at for name in actual]
    assert statistics.median(errors) < 0.2
    assert all(math.isfinite(expected[name].latest) for name in actual)


def test_the_start_of_an_engine_is_in_the_eta_of_a_batch_that_goes_on_and_unknown_until_one_was_measured() -> None:
    entries = [backlog_entry(1000, answered=100, active=True)]
    answers = {"mine": Forecast(900.0, 900.0, 900.0)}
    starting, there = Engines(set(), {"m": -10.0}), Engines({"m"}, {})

    def end(engines: Engines, **values: Expected) -> float | None:
        measured = {("m", "decode"): replace(throughput(1), **values)}
        expected = with_ends(answers, entries, measured, engines, 0.0).get("mine")
        return None if expected is None else expected.at

    start = Expected(60.0, 0.0)
    assert end(starting, start=start) == 950.0, "10 s of the start are over"
    assert end(there, start=start) == end(there) == 900.0
    assert end(starting) is None, "nobody knows how long the start takes"
