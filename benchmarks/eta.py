"""How often an ETA's range holds the truth, over random models, sizes, queues and cold starts. All is simulated.

An engine is simulated that runs so many requests at once, each the slower the more there are. Its answers go through
the code that measures speeds and durations (tasks.scheduling.throughput, store.speeds) in simulated time, and the
forecasts are those that a batch would show (tasks.scheduling.forecast): at its submission, and when a quarter and half
of it are answered. The batches of a mix run one after the other. Nothing here is a speed of any model. Writes
`benchmarks/results/eta.json` and `eta.md`.

    python benchmarks/eta.py [--mixes 50] [--seed 1]
"""

from __future__ import annotations

import argparse
import heapq
import math
import random
import statistics
import tempfile
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
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
from tasks.scheduling.forecast import Answered, Forecast
from tasks.scheduling.policy import Limits, RecentUsage
from tasks.scheduling.states import Engines
from tasks.scheduling.throughput import ThroughputMeter

FLUSH_SECONDS = 1.0
BYTES = 400


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
        crowd: requests at once with which each takes twice as long as alone.
        token_seconds: of a request that runs alone.
        tokens, cv: mean and coefficient of variation of a request's tokens.
    """

    spec: ModelSpec
    slots: int
    crowd: float
    token_seconds: float
    tokens: float
    cv: float
    start_seconds: float
    lead_seconds: float


def new_model(chance: random.Random, number: int) -> Model:
    slots = chance.choice([8, 16, 32, 64, 128])
    spec = ModelSpec(name=f"m{number}", engine="echo", max_in_flight=chance.choice([slots, 2 * slots]))
    return Model(
        spec,
        slots,
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


def answers(model: Model, tokens: list[int]) -> Iterator[tuple[float, int, float]]:
    """Yield (seconds since the engine got the first request, tokens, seconds in the engine) of each answer."""
    waiting, queued = deque(tokens), deque[tuple[float, int]]()
    running: list[tuple[float, int, float, int]] = []
    now = progress = 0.0
    for number in range(len(tokens)):
        while waiting and len(queued) + len(running) < model.spec.in_flight():
            queued.append((now, waiting.popleft()))
        while queued and len(running) < model.slots:
            entered, size = queued.popleft()
            heapq.heappush(running, (progress + size, number + len(waiting), entered, size))
        ends, _, entered, size = heapq.heappop(running)
        now += (ends - progress) * model.token_seconds * (1 + (len(running) + 1) / model.crowd)
        progress = ends
        yield now, size, now - entered


class Simulation:
    """One model with its history, in a database of its own."""

    def __init__(self, database: Database, project_id: str, model: Model, chance: random.Random, clock: Clock) -> None:
        self.database, self.project_id, self.model, self.chance, self.clock = database, project_id, model, chance, clock
        self.warm = False
        self.at_marks: list[dict[str, Any]] = []

    def _usual(self, seconds: float) -> float:
        """One time of something that usually takes this long."""
        return seconds * self.chance.lognormvariate(0, 0.2)

    def run(self, batches: list[list[int]], *, watched: bool = False) -> None:
        """Run batches one after the other; with `watched` keep the forecasts of the last one."""
        marks = [0.0, 0.25, 0.5] if watched else []
        estimates: list[tuple[float, float, Forecast | None]] = []
        if marks:
            estimates.append((marks.pop(0), self.clock.now, self._forecast(batches, [])))
        for position, tokens in enumerate(batches):
            last = position == len(batches) - 1
            segment: Any = SimpleNamespace(
                model={"name": self.model.spec.name},
                project_id=self.project_id,
                requests=len(tokens),
                bytes=BYTES * len(tokens),
                request_class="decode",
            )
            meter = ThroughputMeter(segment, self.model.spec)
            if not self.warm:
                with meter.excluded():
                    self.clock.now += self._usual(self.model.start_seconds)
                self.warm = True
            self.clock.now += self._usual(self.model.lead_seconds)
            first_at, flushed_at = self.clock.now, -math.inf
            pending: list[tuple[int, float]] = []
            answered: list[int] = []
            for after, size, seconds in answers(self.model, tokens):
                self.clock.now = first_at + after
                pending.append((size, seconds))
                if self.clock.now - flushed_at < FLUSH_SECONDS and len(answered) + len(pending) < len(tokens):
                    continue
                self._measure(meter, pending)
                answered += [size for size, _ in pending]
                pending, flushed_at = [], self.clock.now
                while last and marks and len(answered) >= marks[0] * len(tokens):
                    estimates.append((marks.pop(0), self.clock.now, self._forecast([tokens], answered)))
        answered_at = self.clock.now
        requests = len(batches[-1])
        self.clock.now += self._usual(0.5 + requests / 3000)
        with self.database.write() as session:
            speeds.measure_duration(session, "finish", "", "", self.clock.now - answered_at, requests)
        for mark, at, estimate in estimates:
            if estimate is not None and at < answered_at:
                self.at_marks.append(
                    {"mark": mark, "left": self.clock.now - at, **_compare(estimate, at, self.clock.now)}
                )

    def _measure(self, meter: ThroughputMeter, pending: list[tuple[int, float]]) -> None:
        columns = {
            "input_tokens": pa.array([0] * len(pending), pa.int64()),
            "output_tokens": pa.array([size for size, _ in pending], pa.int64()),
            "seconds": pa.array([seconds for _, seconds in pending], pa.float64()),
        }
        with self.database.write() as session:
            meter.measure(session, pa.table(columns))

    def _forecast(self, batches: list[list[int]], answered: list[int]) -> Forecast | None:
        now, spec = self.clock.now, self.model.spec
        entries = [
            BacklogEntry(
                *(f"b{number}", self.project_id, False, number, spec.name, "decode", bool(answered), 1),
                *(len(tokens), BYTES * len(tokens), len(answered)),
            )
            for number, tokens in enumerate(batches)
        ]
        target = entries[-1].batch_id
        done = {target: Answered(len(answered), sum(answered))} if answered else {}
        with self.database.read() as session:
            measured = speeds.throughputs(session, {spec.name: spec})
            finish = throughput.expected_finish(session, [], len(batches[-1]))
        limits = Limits(1, {spec.name: 1})
        forecasts = forecast.forecast(entries, done, measured, limits, RecentUsage({}, now), now)
        engines = Engines({spec.name} if self.warm else set(), {})
        forecasts = forecast.with_ends(forecasts, entries, measured, engines, now)
        return forecast.later(forecasts[target], finish, running=bool(answered)) if target in forecasts else None


def _compare(estimate: Forecast, at: float, truth: float) -> dict[str, Any]:
    return {
        "error": abs(estimate.at - truth) / (truth - at),
        "factor": (estimate.latest - at) / max(1e-3, estimate.earliest - at),
        "in_range": estimate.earliest <= truth <= estimate.latest,
        "left_seconds": truth - at,
    }


def mix(database: Database, project_id: str, number: int, chance: random.Random, clock: Clock) -> Simulation:
    """Run a few small batches, then a larger one, sometimes after another one and sometimes on a cold engine."""
    model = new_model(chance, number)
    simulation = Simulation(database, project_id, model, chance, clock)
    for _ in range(chance.randint(1, 3)):
        simulation.run([lengths(chance, model, round(10 ** chance.uniform(0.6, 2)), 1.0)])
    simulation.warm = chance.random() < 0.5
    batches = [
        lengths(chance, model, round(10 ** chance.uniform(2, 3.7)), chance.lognormvariate(0, 0.3))
        for _ in range(chance.choice([1, 1, 2]))
    ]
    simulation.run(batches, watched=True)
    return simulation


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mixes", type=int, default=50)
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    clock = Clock()
    throughput.time = speeds.time = clock  # type: ignore[assignment]
    segments.beside = lambda *_: (0, 0)
    chance = random.Random(arguments.seed)
    estimates: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as folder:
        database = Database(f"sqlite:///{folder}/eta.db")
        database.upgrade()
        with database.write() as session:
            keys.create(session, "default")
            project_id = session.query(Project).one().id
        for number in range(arguments.mixes):
            simulation = mix(database, project_id, number, chance, clock)
            estimates += [{"mix": number} | entry for entry in simulation.at_marks]
        database.close()
    rows = []
    for mark in (0.0, 0.25, 0.5):
        entries = [entry for entry in estimates if entry["mark"] == mark]
        errors = sorted(entry["error"] for entry in entries)
        factors = sorted(entry["factor"] for entry in entries)
        rows.append(
            [
                "at submission" if not mark else f"{mark:.0%} answered",
                str(len(entries)),
                f"{sum(entry['in_range'] for entry in entries) / len(entries):.0%}",
                f"{statistics.median(errors):.0%}",
                f"{errors[int(0.9 * len(errors))]:.0%}",
                f"{statistics.median(factors):.1f}",
                f"{factors[int(0.9 * len(factors))]:.1f}",
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
    ]
    harness.write(
        "eta",
        {"machine": harness.machine("sqlalchemy"), "arguments": vars(arguments), "estimates": estimates},
        f"{arguments.mixes} random mixes of models, sizes, queues and cold starts, all simulated: a small batch or a "
        "few, then one of 100 to 5,000 requests. A range is meant to hold the truth in 80 % of cases; its factor is "
        "the latest end by the earliest.",
        harness.table(columns, rows),
    )


if __name__ == "__main__":
    main()
