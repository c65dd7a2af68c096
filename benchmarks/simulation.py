"""The dispatch policy beyond the scale of this machine: recorded or synthetic arrivals, replayed in simulated time.

The policy is the code that dispatch runs (tasks.scheduling.policy), over as many engines and batches as asked for.
Beside it run first-come-first-served, the earliest due time without a minimum share for every project, and an oracle:
the best of several policies that know all durations and put aside batches that cannot be done in time any more. Nothing
here is a speed of any model. Writes `benchmarks/results/simulation.json` and `simulation.md`.

    python benchmarks/simulation.py [--batches 40000] [--engines 50] [--seeds 2] [--database data/batchyard.db]
    python benchmarks/simulation.py --batches 1000000 --engines 1000 --seeds 1 --loads 0.9 --brief --name simulation-1M
"""

from __future__ import annotations

import argparse
import math
import random
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import harness
from sqlalchemy import func, select

from store.database import Database
from store.records import Batch, Segment, Speed
from store.segments import PendingSegment
from tasks.scheduling.dispatch import DRAIN_SECONDS
from tasks.scheduling.policy import Limits, SegmentPolicy
from tasks.scheduling.replay import Replay, SegmentCost

SEGMENT_SECONDS = 120.0
LEAD_SECONDS = 3.0
WINDOWS = [(1, 0.15), (6, 0.2), (12, 0.25), (24, 0.3), (72, 0.1)]
"""Completion windows in hours, and the share of batches with each."""
PROJECTS = [0.3, 0.2, 0.15, 0.1, *[0.025] * 10]
"""The share of the work of each project."""
MODELS = [0.5, 0.25, 0.15, 0.1]
"""The share of the work, and of the engines, of each model."""


@dataclass(frozen=True)
class Arrival:
    """A batch that arrives at `at`; `work` is in seconds of one engine."""

    at: float
    project_id: str
    model: str
    work: float
    due_at: float


def arrivals(number: int, engines: int, load: float, seed: int) -> list[Arrival]:
    """Return Poisson arrivals that are busier by day than by night, with sizes over three orders of magnitude."""
    chance = random.Random(seed)
    hours, weights = zip(*WINDOWS, strict=True)
    drawn = []
    for _ in range(number):
        window = 3600.0 * chance.choices(hours, weights)[0]
        (model,) = chance.choices(range(len(MODELS)), MODELS)
        capacity = max(1, round(MODELS[model] * engines))
        # No batch is larger than all engines' work in a third of its window.
        work = min(chance.lognormvariate(math.log(300), 1.5), window * capacity / 3)
        (project,) = chance.choices(range(len(PROJECTS)), PROJECTS)
        drawn.append((f"p{project:02}", f"m{model}", work, window))
    rate = load * engines / (sum(work for _, _, work, _ in drawn) / number)  # batches a second
    batches, at = [], 0.0
    for project_id, model, work, window in drawn:
        at += chance.expovariate(rate * (1 + 0.5 * math.sin(2 * math.pi * at / 86400)))
        batches.append(Arrival(at, project_id, model, work, at + window))
    return batches


def recorded(url: str) -> list[Arrival]:
    """Return the batches of a deployment's database, with their work by its measured speeds."""
    database = Database(url)
    with database.read() as session:
        speeds = {
            model: seconds / requests
            for model, seconds, requests in session.execute(
                select(Speed.model, func.sum(Speed.seconds), func.sum(Speed.requests)).group_by(Speed.model)
            )
        }
        rows = session.execute(
            select(Batch.created_at, Batch.project_id, Segment.model, func.sum(Segment.requests), Batch.due_at)
            .join(Segment, Segment.batch_id == Batch.id)
            .group_by(Batch.id, Segment.model)
            .order_by(Batch.created_at)
        ).all()
    database.close()
    return [
        Arrival(at - rows[0][0], project_id, model, int(requests) * speeds[model], due_at - rows[0][0])
        for at, project_id, model, requests, due_at in rows
        if model in speeds
    ]


class ForecastingPolicy(SegmentPolicy):
    """The policy, with the forecast of a segment when it is next; dispatch forecasts every few seconds."""

    def __init__(self, limits: Limits, infeasible: Callable[[PendingSegment], bool]) -> None:
        super().__init__(limits)
        self._infeasible = infeasible

    def next(self) -> PendingSegment | None:
        while (segment := super().next()) is not None:
            if segment.infeasible or not self._infeasible(segment):
                return segment
            self.release(segment)
            self.add(segment._replace(infeasible=True))
        return None


Urgency = Callable[[Arrival], float]
Estimate = Callable[[], float]
"""Draws an estimate of a batch's work, relative to the truth."""


def kept(
    batches: list[Arrival],
    engines: dict[str, int],
    min_share: float,
    urgency: Urgency,
    estimate: Estimate | None = None,
    speed: float = 1.0,
) -> dict[str, float]:
    """Return the share of batches that ended in time, of all and of the worst project, and the number of segments.

    Args:
        urgency: replaces a batch's due time in the policy.
        estimate: None if the policy does not ask which batches can still end in time.
        speed: of an engine, relative to the one that the batches' work is measured in.
    """
    fills = dict.fromkeys(engines, DRAIN_SECONDS)
    limits = Limits(sum(engines.values()), engines, min_share=min_share, fills=fills, engines=engines)
    remaining = [batch.work for batch in batches]
    segments = [math.ceil(batch.work / SEGMENT_SECONDS) for batch in batches]
    estimates = [] if estimate is None else [estimate() for _ in batches]
    replay: Replay

    def infeasible(segment: PendingSegment) -> bool:
        number = int(segment.batch_id)
        batch = batches[number]
        least = max(batch.work / segments[number], remaining[number] / engines[batch.model])
        return replay.now + least * estimates[number] > batch.due_at

    policy = ForecastingPolicy(limits, infeasible) if estimate is not None else SegmentPolicy(limits)
    replay = Replay(policy, 0.0, engines)
    ended_at = [math.inf] * len(batches)
    unfinished = list(segments)
    next_id = 0

    def record(ended: Iterable[tuple[float, PendingSegment]]) -> None:
        for at, segment in ended:
            number = int(segment.batch_id)
            remaining[number] -= batches[number].work / segments[number]
            unfinished[number] -= 1
            if not unfinished[number]:
                ended_at[number] = at

    for number, batch in enumerate(batches):
        record(replay.run(until=batch.at))
        cost = SegmentCost(LEAD_SECONDS, batch.work / segments[number] / speed)
        due = urgency(batch)
        for index in range(segments[number]):
            # One request for each second of work.
            segment = PendingSegment(
                *(False, due, str(number), index),
                *(next_id, batch.model, batch.project_id, batch.work / segments[number]),
            )
            replay.submit(segment, cost)
            next_id += 1
    record(replay.run())
    projects: dict[str, list[bool]] = {}
    for batch, at in zip(batches, ended_at, strict=True):
        projects.setdefault(batch.project_id, []).append(at <= batch.due_at)
    shares = [sum(ok) / len(ok) for ok in projects.values()]
    return {
        "kept": sum(map(sum, projects.values())) / len(batches),
        "worst_project": min(shares),
        "segments": next_id,
    }


def compare(batches: list[Arrival], engines: dict[str, int], min_share: float, *, brief: bool) -> dict[str, Any]:
    """Run every policy over the same arrivals; `brief`: one oracle, and no variants of our own policy."""
    started = time.perf_counter()
    chance = random.Random(1)

    def guess() -> float:
        # An estimate is off by a quarter, and dispatch takes its lower end (forecast.soonest).
        return chance.lognormvariate(0, 0.25) / 1.5

    outcomes = {"batchyard": kept(batches, engines, min_share, lambda batch: batch.due_at, guess)}
    outcomes["batchyard"]["seconds"] = time.perf_counter() - started
    if not brief:
        outcomes["without a floor"] = kept(batches, engines, 0.0, lambda batch: batch.due_at, guess)
        outcomes["earliest due time only"] = kept(batches, engines, 0.0, lambda batch: batch.due_at)
    outcomes["first come, first served"] = kept(batches, engines, 0.0, lambda batch: batch.at)
    orders: list[Urgency] = [
        lambda batch: batch.due_at,
        lambda batch: batch.due_at - batch.work / engines[batch.model],
        lambda batch: batch.work,
    ]
    oracles = [kept(batches, engines, 0.0, order, lambda: 1.0) for order in orders[: 1 if brief else None]]
    outcomes["oracle"] = max(oracles, key=lambda outcome: outcome["kept"])
    return outcomes


def capacities(engines: int) -> dict[str, int]:
    return {f"m{number}": max(1, round(share * engines)) for number, share in enumerate(MODELS)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batches", type=int, default=40_000)
    parser.add_argument("--engines", type=int, default=50)
    parser.add_argument("--loads", type=float, nargs="+", default=[0.7, 0.9, 1.0, 1.1])
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--floor", dest="min_share", type=float, default=0.25, help="BATCHYARD_FAIR_SHARE")
    parser.add_argument("--brief", action="store_true", help="fewer policies beside ours")
    parser.add_argument("--database", help="replay the batches recorded there, on as many engines as asked for")
    parser.add_argument("--name", default="simulation", help="name of the results' files")
    arguments = parser.parse_args()
    runs = []
    if arguments.database:
        batches = recorded(arguments.database)
        engines = dict.fromkeys({batch.model for batch in batches}, arguments.engines)
        outcomes = compare(batches, engines, arguments.min_share, brief=arguments.brief)
        runs.append({"load": None, "seed": None, "found": outcomes})
    else:
        for load in arguments.loads:
            for seed in range(arguments.seeds):
                batches = arrivals(arguments.batches, arguments.engines, load, seed)
                outcomes = compare(batches, capacities(arguments.engines), arguments.min_share, brief=arguments.brief)
                runs.append({"load": load, "seed": seed, "found": outcomes})
    report = {"machine": harness.machine("sqlalchemy"), "arguments": vars(arguments), "runs": runs}
    rows = []
    for load in dict.fromkeys(run["load"] for run in runs):
        seeds = [run["found"] for run in runs if run["load"] == load]
        for policy in seeds[0]:
            mean = {name: sum(run[policy][name] for run in seeds) / len(seeds) for name in ("kept", "worst_project")}
            rows.append(["recorded" if load is None else f"{load:.0%}", policy, f"{mean['kept']:.2%}"])
            rows[-1].append(f"{mean['worst_project']:.2%}")
    first = runs[0]["found"]["batchyard"]
    harness.write(
        arguments.name,
        report,
        f"{len(batches):,} batches ({first['segments']:,} segments) on {arguments.engines:,} engines, simulated; means "
        f"over {len({run['seed'] for run in runs})} seeds. One replay took {first['seconds']:.1f} s.",
        harness.table(["load", "policy", "deadlines kept", "of the worst project's"], rows),
    )


if __name__ == "__main__":
    main()
