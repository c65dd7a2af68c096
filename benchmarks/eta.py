"""How often an ETA's range holds the truth, over random models, sizes, queues and cold starts. All is simulated.

An engine is simulated that runs so many requests at once, each the slower the more there are. Its answers go through
the code that measures speeds and durations (tasks.scheduling.throughput, store.speeds) in simulated time, and the
forecasts are those that a batch would show (tasks.scheduling.forecast): at its submission, and when a quarter and half
of it are answered. The batches of a mix run one after the other; in mixes of a second kind they run side by side, and
are also forecast when each has answers. Nothing here is a speed of any model. Writes `benchmarks/results/eta.json` and
`eta.md`.

    python benchmarks/eta.py [--mixes 50] [--seed 1]
"""

from __future__ import annotations

import argparse
import heapq
import itertools
import math
import random
import statistics
import tempfile
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import harness
import pyarrow as pa

from batchyard.models import ModelSpec
from store import keys, segments, speeds
from store.database import Database
from store.queue import BacklogEntry
from store.records import Project
from tasks.scheduling import forecast, throughput
from tasks.scheduling.costs import Answered, WorkCosts
from tasks.scheduling.forecast import Forecast
from tasks.scheduling.policy import Limits, RecentUsage
from tasks.scheduling.states import Engines
from tasks.scheduling.throughput import ThroughputMeter

FLUSH_SECONDS = 1.0
BYTES = 400
DAY = 24 * 3600
OTHERS = 8
SOME = 0.001
"""The share of a batch that is answered when each of those side by side has answers."""
MARKS = {0.0: "at submission", SOME: "each has answers", 0.25: "25% answered", 0.5: "50% answered"}


class Clock:
    """Simulated time, in the place of the module `time`."""

    def __init__(self) -> None:
        self.now = 1e9

    def time(self) -> float:
        return self.now

    monotonic = time


@dataclass(frozen=True)
class Model:
    """A simulated model.

    Attributes:
        slots: requests at once; more than that wait.
        holds: requests that run or wait in the engine. Its configuration may not say how many.
        crowd: requests at once with which each takes twice as long as alone.
        token_seconds: of a request that runs alone.
        tokens, cv: mean and coefficient of variation of a request's tokens.
    """

    spec: ModelSpec
    slots: int
    holds: int
    crowd: float
    token_seconds: float
    tokens: float
    cv: float
    start_seconds: float
    lead_seconds: float


def new_model(chance: random.Random, name: str) -> Model:
    slots = chance.choice([8, 16, 32, 64, 128])
    spec = ModelSpec(name=name, engine="echo", max_in_flight=chance.choice([slots, 2 * slots, None]))
    return Model(
        spec,
        slots,
        holds=spec.in_flight(slots),
        crowd=slots * 10 ** chance.uniform(-1, 1),
        token_seconds=10 ** chance.uniform(-2.5, -1.3),
        tokens=chance.choice([10, 30, 100]),
        cv=chance.choice([0, 0.5, 1.0, 1.5]),
        start_seconds=10 ** chance.uniform(0.5, 2),
        lead_seconds=chance.uniform(0.2, 3),
    )


def lengths(chance: random.Random, model: Model, number: int, factor: float) -> list[int]:
    if not model.cv:
        return [max(1, round(model.tokens * factor))] * number
    sigma = math.sqrt(math.log(1 + model.cv**2))
    mean = math.log(model.tokens * factor) - sigma**2 / 2
    return [max(1, round(chance.lognormvariate(mean, sigma))) for _ in range(number)]


def answers(model: Model, arrivals: list[tuple[float, list[int]]]) -> Iterator[tuple[float, int, int, float]]:
    """Yield (seconds, batch, tokens, seconds in the engine) of each answer.

    Args:
        arrivals: when the engine gets the first requests of each batch, in seconds, and all their tokens. A batch
            enters the engine before those that come later, unless it would end after them. But of OTHERS places one
            goes to another batch, as a caller needs a moment until it has sent the next request.
    """
    coming = deque(sorted((at, number) for number, (at, _) in enumerate(arrivals)))
    waiting: list[tuple[float, int, deque[int]]] = []
    queued = deque[tuple[float, int, int]]()
    running: list[tuple[float, int, float, int, int]] = []
    now = progress = 0.0
    order, places = itertools.count(), itertools.count(1)
    while coming or waiting or queued or running:
        while coming and coming[0][0] <= now:
            at, number = coming.popleft()
            tokens = arrivals[number][1]
            alone = sum(tokens) * model.token_seconds * (1 / model.slots + 1 / model.crowd)
            heapq.heappush(waiting, (at + alone, number, deque(tokens)))
        while waiting and len(queued) + len(running) < model.holds:
            entry = waiting[-1] if next(places) % OTHERS == 0 else waiting[0]
            queued.append((now, entry[1], entry[2].popleft()))
            if not entry[2]:
                waiting.remove(entry)
                heapq.heapify(waiting)
        while queued and len(running) < model.slots:
            entered, number, size = queued.popleft()
            heapq.heappush(running, (progress + size, next(order), entered, number, size))
        seconds = model.token_seconds * (1 + len(running) / model.crowd)
        if coming and (not running or coming[0][0] < now + (running[0][0] - progress) * seconds):
            progress += (coming[0][0] - now) / seconds
            now = coming[0][0]
            continue
        ends, _, entered, number, size = heapq.heappop(running)
        now += (ends - progress) * seconds
        progress = ends
        yield now, number, size, now - entered


@dataclass
class Run:
    """One batch that runs, and the forecasts of its end: (mark, time, forecast)."""

    batch_id: str
    tokens: list[int]
    marks: list[float]
    meter: ThroughputMeter | None = None
    pending: list[tuple[int, float]] = field(default_factory=list)
    answered: list[int] = field(default_factory=list)
    flushed_at: float = -math.inf
    answered_at: float = math.inf
    ended_at: float = math.inf
    estimates: list[tuple[float, float, Forecast | None]] = field(default_factory=list)

    @property
    def unanswered(self) -> int:
        return len(self.tokens) - len(self.answered)

    def reached(self) -> bool:
        """Return whether its next mark is reached."""
        return bool(self.marks) and len(self.answered) >= max(1, self.marks[0] * len(self.tokens))


class Simulation:
    """One model with its history, in a database of its own."""

    def __init__(self, database: Database, project_id: str, model: Model, chance: random.Random, clock: Clock) -> None:
        self.database, self.project_id, self.model, self.chance, self.clock = database, project_id, model, chance, clock
        self.warm = False
        self.runs: list[Run] = []
        segments.beside = self._beside  # type: ignore[assignment]

    def _usual(self, seconds: float) -> float:
        """One time of something that usually takes this long."""
        return seconds * self.chance.lognormvariate(0, 0.2)

    def run(self, batches: list[list[int]]) -> Run:
        """Run batches one after the other. Return the last one, with its forecasts."""
        runs = [Run(f"b{number}", tokens, []) for number, tokens in enumerate(batches)]
        runs[-1].marks = [0.25, 0.5]
        self._estimate(runs[-1], 0.0, runs)
        for run in runs:
            self.run_together([run], [0.0])
        self.clock.now = runs[-1].ended_at
        return runs[-1]

    def run_together(self, runs: list[Run], begins: list[float]) -> None:
        """Run batches that begin after so many seconds, side by side, until all are answered."""
        began_at = self.clock.now
        arrivals = []
        for run, begin in zip(runs, begins, strict=True):
            self.clock.now = began_at + begin
            segment: Any = SimpleNamespace(
                model={"name": self.model.spec.name},
                project_id=self.project_id,
                requests=len(run.tokens),
                bytes=BYTES * len(run.tokens),
                request_class="decode",
                batch_id=run.batch_id,
                alone=False,
            )
            run.meter = ThroughputMeter(segment, self.model.spec)
            run.meter.expect(len(run.tokens), self.model.holds)
            if not self.warm:
                with run.meter.excluded():
                    self.clock.now += self._usual(self.model.start_seconds)
                began_at, self.warm = self.clock.now, True
            arrivals.append((self.clock.now + self._usual(self.model.lead_seconds) - began_at, run.tokens))
        self.runs = runs
        for after, number, size, seconds in answers(self.model, arrivals):
            self.clock.now = began_at + after
            run = runs[number]
            run.pending.append((size, seconds))
            if self.clock.now - run.flushed_at >= FLUSH_SECONDS or len(run.pending) == run.unanswered:
                self._append(run)
                self._estimate_where_due(runs)

    def _beside(self, _: Any, segment: Any) -> tuple[dict[str, int], int]:
        others = [run for run in self.runs if run.batch_id != segment.batch_id and run.meter and run.unanswered]
        return {"decode": sum(len(run.answered) for run in others)}, sum(run.unanswered for run in others)

    def _append(self, run: Run) -> None:
        """Measure what came since the last chunk of a batch, and finish the batch if that is all."""
        columns = {
            "input_tokens": pa.array([0] * len(run.pending), pa.int64()),
            "output_tokens": pa.array([size for size, _ in run.pending], pa.int64()),
            "seconds": pa.array([seconds for _, seconds in run.pending], pa.float64()),
        }
        run.answered += [size for size, _ in run.pending]
        run.pending, run.flushed_at = [], self.clock.now
        assert run.meter is not None
        with self.database.write() as session:
            run.meter.measure(session, pa.table(columns))
            if not run.unanswered:
                finish = self._usual(0.5 + len(run.tokens) / 3000)
                run.answered_at, run.ended_at = self.clock.now, self.clock.now + finish
                speeds.measure_duration(session, "finish", "", "", finish, len(run.tokens))

    def _estimate_where_due(self, runs: list[Run]) -> None:
        if any(not run.answered for run in runs):
            return  # the first mark of a batch that is not alone is that all have answers
        for run in runs:
            while run.reached():
                self._estimate(run, run.marks.pop(0), [other for other in runs if other.unanswered])

    def _estimate(self, run: Run, mark: float, runs: list[Run]) -> None:
        if run.unanswered:
            run.estimates.append((mark, self.clock.now, self._forecasts(runs).get(run.batch_id)))

    def _forecasts(self, runs: list[Run]) -> dict[str, Forecast]:
        """Return the forecasts of batches that run or wait."""
        now, spec = self.clock.now, self.model.spec
        entries = [
            BacklogEntry(
                *(run.batch_id, self.project_id, False, int(now) + DAY, spec.name, "decode", run.meter is not None, 1),
                *(len(run.tokens), BYTES * len(run.tokens), len(run.answered)),
            )
            for run in runs
        ]
        done = {run.batch_id: Answered(len(run.answered), sum(run.answered)) for run in runs if run.answered}
        with self.database.read() as session:
            measured = speeds.throughputs(session, {spec.name: spec})
            finishes = {run.batch_id: throughput.expected_finish(session, [], len(run.tokens)) for run in runs}
        limits = Limits(len(runs), {spec.name: len(runs)})
        forecasts = forecast.forecast(WorkCosts(entries, done, measured), limits, RecentUsage({}, now), now)
        engines = Engines({spec.name} if self.warm else set(), {})
        forecasts = forecast.with_ends(forecasts, entries, measured, engines, now)
        return {
            batch_id: forecast.later(expected, finishes[batch_id], running=batch_id in done)
            for batch_id, expected in forecasts.items()
        }


def _compare(estimate: Forecast, at: float, truth: float) -> dict[str, Any]:
    return {
        "error": abs(estimate.at - truth) / (truth - at),
        "factor": (estimate.latest - at) / max(1e-3, estimate.earliest - at),
        "in_range": estimate.earliest <= truth <= estimate.latest,
        "left_seconds": truth - at,
    }


def compared(run: Run) -> list[dict[str, Any]]:
    """Return how right each forecast of a batch was."""
    return [
        {"mark": mark, **_compare(estimate, at, run.ended_at)}
        for mark, at, estimate in run.estimates
        if estimate is not None and at < run.answered_at
    ]


def history(simulation: Simulation, chance: random.Random, batches: int) -> None:
    """Run a few small batches, one after the other. After that the engine is cold or warm."""
    for _ in range(batches):
        simulation.run([lengths(chance, simulation.model, round(10 ** chance.uniform(0.6, 2)), 1.0)])
    simulation.warm = chance.random() < 0.5


def in_the_queue(simulation: Simulation, chance: random.Random) -> list[dict[str, Any]]:
    """Run a few small batches, then a larger one, sometimes after another one and sometimes on a cold engine."""
    model = simulation.model
    history(simulation, chance, chance.randint(1, 3))
    batches = [
        lengths(chance, model, round(10 ** chance.uniform(2, 3.7)), chance.lognormvariate(0, 0.3))
        for _ in range(chance.choice([1, 1, 2]))
    ]
    return compared(simulation.run(batches))


def side_by_side(simulation: Simulation, chance: random.Random) -> list[dict[str, Any]]:
    """Run two to five batches at once, on an engine of which nothing is known, or what a few small batches say."""
    history(simulation, chance, chance.randint(0, 2))
    runs = [
        Run(
            f"b{number}",
            lengths(chance, simulation.model, round(10 ** chance.uniform(1.7, 3)), chance.lognormvariate(0, 0.3)),
            marks=[SOME, 0.25, 0.5],
        )
        for number in range(chance.randint(2, 5))
    ]
    for run in runs:
        simulation._estimate(run, 0.0, runs)
    simulation.run_together(runs, list(itertools.accumulate(chance.uniform(0, 1) for _ in runs)))
    return [entry for run in runs for entry in compared(run)]


KINDS = {"in the queue": in_the_queue, "side by side": side_by_side}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mixes", type=int, default=50)
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    clock = Clock()
    throughput.time = speeds.time = clock  # type: ignore[assignment]
    estimates: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as folder:
        database = Database(f"sqlite:///{folder}/eta.db")
        database.upgrade()
        with database.write() as session:
            keys.create(session, "default")
            project_id = session.query(Project).one().id
        for kind, mix in KINDS.items():
            chance = random.Random(arguments.seed)
            for number in range(arguments.mixes):
                model = new_model(chance, f"{kind} {number}")
                simulation = Simulation(database, project_id, model, chance, clock)
                estimates += [{"kind": kind, "mix": number} | entry for entry in mix(simulation, chance)]
        database.close()
    rows = []
    for kind, mark in itertools.product(KINDS, MARKS):
        entries = [entry for entry in estimates if (entry["kind"], entry["mark"]) == (kind, mark)]
        if not entries:
            continue
        errors = sorted(entry["error"] for entry in entries)
        factors = sorted(entry["factor"] for entry in entries)
        rows.append(
            [
                f"{kind}, {MARKS[mark]}",
                str(len(entries)),
                f"{sum(entry['in_range'] for entry in entries) / len(entries):.0%}",
                f"{statistics.median(errors):.0%}",
                f"{errors[int(0.9 * len(errors))]:.0%}",
                f"{statistics.median(factors):.1f}",
                f"{factors[int(0.9 * len(factors))]:.1f}",
                f"{factors[-1]:.3g}",
            ]
        )
    columns = [
        "ETA",
        "batches",
        "truth in the range",
        "median error",
        "90 % below",
        "range, median factor",
        "90 % below",
        "greatest",
    ]
    harness.write(
        "eta",
        {"machine": harness.machine("sqlalchemy"), "arguments": vars(arguments), "estimates": estimates},
        f"{arguments.mixes} random mixes each of models, sizes, queues and cold starts, all simulated. In the queue: a "
        "small batch or a few, then one of 100 to 5,000 requests. Side by side: none or a few, then two to five "
        "of 50 to 1,000 requests at once. A range is meant to hold the truth in 80 % of cases; its factor is the "
        "latest end by the earliest.",
        harness.table(columns, rows),
    )


if __name__ == "__main__":
    main()
