"""Batches side by side on one engine: the range of an ETA can be believed from the first answers of each on."""

from __future__ import annotations

import random
import sys
from pathlib import Path

import pytest

from batchyard.models import ModelSpec
from store import segments, speeds
from store.database import Database
from tasks.scheduling import throughput
from tasks.scheduling.forecast import Forecast

sys.path.append(str(Path(__file__).parents[3] / "benchmarks"))
from eta import Clock, Model, Run, Simulation


class Watched(Simulation):
    """A simulation that keeps the forecasts of all batches from the moment on at which each has answers."""

    forecasts: list[tuple[float, str, Forecast]]

    def _estimate_where_due(self, runs: list[Run]) -> None:
        if all(run.answered for run in runs):
            unfinished = [run for run in runs if run.unanswered]
            entries = self._forecasts(unfinished).items()
            self.forecasts += [(self.clock.now, batch_id, forecast) for batch_id, forecast in entries]


def test_the_range_of_three_batches_that_begin_together_can_be_believed(
    database: Database, project: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An engine that was never measured decodes 16 requests at once, and holds fewer than its configuration says."""
    clock = Clock()
    for module in (throughput, speeds):
        monkeypatch.setattr(module, "time", clock)
    monkeypatch.setattr(segments, "beside", segments.beside)  # the simulation replaces it
    spec = ModelSpec(name="decoder", engine="echo")
    model = Model(spec, 16, 32, 1e9, 0.02, tokens=30, cv=0.5, start_seconds=2.0, lead_seconds=0.3)
    chance = random.Random(1)
    runs = [Run(f"b{number}", [chance.randint(10, 60) for _ in range(300)], []) for number in range(3)]
    simulation = Watched(database, project, model, chance, clock)
    simulation.forecasts = []
    simulation.run_together(runs, [0.0, 0.2, 0.4])
    assert len(simulation.forecasts) > 50
    ends = {run.batch_id: run.ended_at for run in runs}
    right = [forecast.earliest <= ends[batch_id] <= forecast.latest for at, batch_id, forecast in simulation.forecasts]
    assert sum(right) / len(right) > 0.8, simulation.forecasts
    for at, batch_id, forecast in simulation.forecasts:
        widest = 20 if at < simulation.forecasts[0][0] + 5 else 5
        if ends[batch_id] - at > 2:
            assert (forecast.latest - at) / (forecast.earliest - at) < widest, (batch_id, forecast, ends[batch_id] - at)
