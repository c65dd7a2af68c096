"""Live requests beside batches in simulated time: engine echo behind the admission of the real ones, and no stack.

    python benchmarks/live_steps.py [--model h100-8b|a100x4-70b|llm-d] [--replicas 2] [--seconds 80]

The runs are those of `live.py`. Gateway, network and Python take no time here, so that the figures are the policies'
alone, equal on every machine. Tables go to `live-steps-*.md` in `benchmarks/results`.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import itertools
import math
import random
import time
from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

import harness
from live import Outcome, report, request
from live_presets import PRESETS, Preset, Scenario

from batchyard.models import LiveSettings, ModelSpec
from inference.engines.echo import Echo
from inference.progress import PROGRESS, RequestProgress
from inference.residents.admission import AdmissionQueue, Preempted
from inference.residents.batch_share import BatchShare
from tests.support import simulated_time

WARM_SECONDS = 20.0
"""Batches run so long before the first live request."""
WITHOUT_TARGETS = {"bound_steps": False, "ttft_ms": 1e9, "itl_ms": 1e9}


class Replica:
    """An engine, and what decides who enters it, as in the actor of a resident engine."""

    def __init__(self, preset: Preset, live: dict[str, Any]) -> None:
        settings = LiveSettings(**live)
        self.engine = Echo(ModelSpec(name="m", engine="echo", engine_args=preset.arguments, live=settings), 1e9)
        bounds, places = self.engine.bounds_steps, self.engine.capacity
        share = BatchShare(places, 2 * places, settings.ttft_ms / 1000, settings.itl_ms / 1000, bounded=bounds)
        self.admission = AdmissionQueue(2 * places, math.inf, places=places, share=share)
        self.live = 0
        self.answered: list[tuple[float, int]] = []

    async def batch(self, rows: Iterator[tuple[int, dict[str, Any]]]) -> None:
        """Answer rows of batches, one after the other. Requests of tier flex enter before, as before a long batch."""
        for number, body in rows:
            progress = RequestProgress()
            PROGRESS.set(progress)
            while True:
                progress.output_tokens = 0
                with contextlib.suppress(Preempted):
                    begun = lambda progress=progress: self.engine.has_begun(progress)  # noqa: E731
                    async with self.admission.admit((math.inf, number), preemptible=True, has_begun=begun):
                        await self.engine.answer(harness.CHAT, body)
                        self.answered.append((time.monotonic(), body["max_tokens"]))
                        break

    async def stream(self, body: dict[str, Any], outcome: Outcome, *, flex: bool) -> None:
        """Answer a live request, and note when its tokens came."""
        progress = RequestProgress(live=True, began_at=time.monotonic())  # the default is the real clock's
        progress.on_first = lambda seconds: self._measured("first", seconds, outcome.first)
        progress.on_gap = lambda seconds, _: self._measured("gap", seconds, outcome.gaps)
        PROGRESS.set(progress)
        self.live += 1
        try:
            turn = self.admission.admit((time.monotonic(), 0)) if flex else self.admission.admit_live("project")
            async with turn:
                await self.engine.answer(harness.CHAT, body)
        finally:
            self.live -= 1
        outcome.live_tokens += progress.output_tokens

    def _measured(self, kind: str, seconds: float, values: list[float]) -> None:
        values.append(seconds)
        self.admission.measured(kind, seconds)


async def scene(preset: Preset, scenario: Scenario, settings: dict[str, Any], replicas: int, parts: Any) -> Outcome:
    """Run the scenario once."""
    loop, outcome, chance = asyncio.get_running_loop(), Outcome(), random.Random(7)
    time.monotonic = loop.time  # of admission and progress; asyncio's own loop has `time`
    engines = [Replica(preset, settings) for _ in range(replicas)]
    lengths = random.Random(1)
    rows = ((number, request(lengths, scenario, scenario.batch_length(lengths))) for number in itertools.count())
    workers = [
        asyncio.create_task(engine.batch(rows))
        for engine in (engines if parts["batch"] else ())
        for _ in range(3 * engine.engine.capacity)
    ]
    at = began = WARM_SECONDS
    streams = []
    for number, rate in enumerate(scenario.rates):
        end = began + (number + 1) * scenario.phase_seconds
        while parts["live"] and (at := at + chance.expovariate(rate)) < end:
            await asyncio.sleep(at - loop.time())
            body = request(chance, scenario, scenario.live_length(chance))
            replica = min(engines, key=lambda engine: engine.live)
            streams.append(asyncio.create_task(replica.stream(body, outcome, flex=parts["tier"] == "flex")))
        at = end
    await asyncio.sleep(began + scenario.seconds - loop.time())
    until = loop.time()
    await asyncio.gather(*streams)
    for worker in workers:
        worker.cancel()
    answered = [entry for engine in engines for entry in engine.answered]
    outcome.batch_tokens = sum(tokens for answered_at, tokens in answered if began <= answered_at < until)
    outcome.redone = sum(engine.admission.preemptions for engine in engines)
    return outcome


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--replicas", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=80)
    parser.add_argument("--model", choices=[name for name in PRESETS if name != "simulated"], default="h100-8b")
    parser.add_argument("--only", nargs="*", help="the runs to make")
    options = parser.parse_args()
    preset = PRESETS[options.model]
    scenario = preset.scenario(options.seconds, options.replicas)
    both = {"live": True, "batch": True, "tier": "default"}
    runs: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
        "live alone": ({**both, "batch": False}, preset.live),
        "batches alone": ({**both, "live": False}, preset.live),
        "both, unprotected": ({**both, "tier": "flex"}, WITHOUT_TARGETS),
        "both, as shipped": (both, preset.live),
        "both, limits of places": (both, {**preset.live, "bound_steps": False}),
        "both, vLLM's priority alone": (both, WITHOUT_TARGETS),
    }
    outcomes: dict[str, Outcome] = {}
    machine, clock = harness.machine(), time.monotonic
    for name, (parts, settings) in runs.items():
        if not options.only or name in options.only:
            outcomes[name] = simulated_time.run(scene(preset, scenario, settings, options.replicas, parts))
            time.monotonic = clock
    if len(outcomes) < len(runs):
        print(report(scenario, outcomes))
        return
    kept = {name: outcome.figures() for name, outcome in outcomes.items()}
    name = f"live-steps-{options.model}" + (f"-{options.replicas}-replicas" if options.replicas > 1 else "")
    note = f"{preset.note()} Simulated time: engine and admission alone, without gateway and network."
    facts = {"machine": machine, "simulated": True, "scenario": asdict(scenario), "runs": kept}
    harness.write(name, facts, note, report(scenario, outcomes))


if __name__ == "__main__":
    main()
