"""How far in advance anybody can know when a job ends whose answers have very different lengths, in simulated time.

The jobs are those of `jobs.py`: items of three stages, one after the other, on an engine of 128 slots. An oracle knows
the distribution of the lengths, what has been answered, and for how long each request has run. It draws what is left
many times, and expects the median of the ends. No ETA that knows less does better. Its errors at a quarter, half and
three quarters of the time, in parts of the whole time, go to `benchmarks/results/eta-bound.json` and `eta-bound.md`.

    python benchmarks/eta_bound.py [--items 300 1000] [--cv 1.5 0.5] [--jobs 40] [--draws 15]
"""

from __future__ import annotations

import argparse
import heapq
from collections.abc import Sequence
from typing import Any

import harness
import numpy as np
import numpy.typing as npt

from jobs import DEPTH, MEAN_TOKENS, MS_PER_TOKEN, QUARTERS, SLOTS

Lengths = npt.NDArray[np.float64]
Times = npt.NDArray[np.float64]
MOST_TOKENS = 2000


class Law:
    """Lognormal lengths in seconds, as `jobs.py` draws them."""

    def __init__(self, cv: float, seed: int) -> None:
        self._sigma = float(np.sqrt(np.log(1 + cv**2)))
        self._mean = float(np.log(MEAN_TOKENS)) - self._sigma**2 / 2
        self._draws = np.random.default_rng(seed)

    def draw(self, shape: tuple[int, ...]) -> Lengths:
        """Return lengths."""
        tokens = np.clip(self._draws.lognormal(self._mean, self._sigma, shape), 1, MOST_TOKENS)
        return np.asarray(tokens * MS_PER_TOKEN / 1000)

    def longer_than(self, seconds: Times) -> Lengths:
        """Return lengths of which each is above its bound in `seconds`, as far as any is."""
        lengths = self.draw(seconds.shape)
        for _ in range(1000):
            short = lengths <= seconds
            if not short.any():
                break
            lengths[short] = self.draw((int(short.sum()),))
        return np.maximum(lengths, seconds)


def played(lengths: Lengths) -> tuple[float, Times]:
    """Return the end of the items with these lengths (items x stages), and when each request began.

    A slot that is free takes the request of the deepest stage.
    """
    items, depth = lengths.shape
    waiting = [(0, item) for item in range(items)]
    running: list[tuple[float, int, int]] = []
    began = np.full(lengths.shape, np.inf)
    now = 0.0
    while waiting or running:
        while waiting and len(running) < SLOTS:
            stage, item = heapq.heappop(waiting)
            began[item, -stage] = now
            heapq.heappush(running, (now + lengths[item, -stage], item, -stage))
        now, item, stage = heapq.heappop(running)
        if stage + 1 < depth:
            heapq.heappush(waiting, (-stage - 1, item))
    return now, began


def error(law: Law, lengths: Lengths, part: float, draws: int) -> float:
    """Return by how much of the whole time the oracle's expectation misses the end, when `part` of it has passed."""
    end, began = played(lengths)
    at = part * end
    answered, runs = began + lengths <= at, (began <= at) & (began + lengths > at)
    ends = []
    for _ in range(draws):
        others = np.where(answered, lengths, law.draw(lengths.shape))
        others[runs] = law.longer_than(at - began[runs])
        ends.append(played(others)[0])
    return (float(np.median(ends)) - end) / end


def errors(items: int, cv: float, jobs: int, draws: int) -> dict[str, Any]:
    """Return the median and the 90 % bound of the oracle's absolute errors at each quarter."""
    law = Law(cv, seed=items)
    misses: dict[float, list[float]] = {part: [] for part in QUARTERS}
    for _ in range(jobs):
        lengths = law.draw((items, DEPTH))
        for part in QUARTERS:
            misses[part].append(abs(error(law, lengths, part, draws)))
    quarters = {part: [float(np.median(miss)), float(np.percentile(miss, 90))] for part, miss in misses.items()}
    return {"items": items, "cv": cv, "jobs": jobs, "errors": quarters}


def table(runs: Sequence[dict[str, Any]]) -> str:
    columns = ["items", "cv of lengths", *(f"error at {part:.0%}, median (90 % below)" for part in QUARTERS)]
    rows = [
        [f"{run['items']:,}", run["cv"], *(f"{median:.0%} ({most:.0%})" for median, most in run["errors"].values())]
        for run in runs
    ]
    return harness.table(columns, rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--items", type=int, nargs="+", default=[300, 1000])
    parser.add_argument("--cv", type=float, nargs="+", default=[1.5, 0.5])
    parser.add_argument("--jobs", type=int, default=40, help="jobs of each kind")
    parser.add_argument("--draws", type=int, default=15, help="draws of what is left, at each quarter of each job")
    options = parser.parse_args()
    runs = [errors(items, cv, options.jobs, options.draws) for items in options.items for cv in options.cv]
    notes = (
        f"Simulated, without a stack: items of {DEPTH} stages, {SLOTS} slots, lengths lognormal. The oracle knows "
        "their distribution, every answer so far and how long each request has run, and expects the median of "
        f"{options.draws} draws of the rest, over {options.jobs} jobs."
    )
    harness.write("eta-bound", {"machine": harness.machine("numpy"), "runs": runs}, table(runs), notes)


if __name__ == "__main__":
    main()
