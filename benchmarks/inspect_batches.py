"""inspect-ai on this stack: its batches against its own concurrency, and a run after one that was killed.

Questions to answer on the demo model `mini` with vLLM, greedy, one run of the whole command `inspect eval` after the
other, on a stack that is up and whose engine is warm:

* `10 at once` and `64 at once`: live requests, with its default of connections and with as many as the engine runs;
* `batch`: `--batch` with its defaults: it sends after 15 s, and looks every 15 s;
* `batch, quick`: it sends what has come for a second, and looks every second;
* `batch, again`: the same once more in a project with a result cache, as after a crash.

`make foreign CLIENTS=inspect` makes its environment. Writes `inspect_batches.json` and `inspect_batches.md` in
`benchmarks/results`.

    python benchmarks/inspect_batches.py [--questions 1000] [--rounds 2]
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import harness
import httpx

from batchyard.client.api import ApiClient

ROOT = Path(__file__).parents[1]
INSPECT = ROOT / ".venv-foreign" / "inspect" / "bin" / "inspect"
SEQUENCES = 64
MODELS = f"""
[models.mini]
engine = "vllm"
source = "{ROOT / "examples" / "models" / "mini"}"
[models.mini.engine_args]
dtype = "float32"
max_model_len = 256
max_num_seqs = {SEQUENCES}
kv_cache_memory_bytes = {64 * 2**20}
"""
TASK = """
from inspect_ai import Task, task
from inspect_ai.dataset import Sample
from inspect_ai.scorer import includes


@task
def sums(questions):
    samples = [Sample(input=f"What is {one} + {one % 7}?", target=str(one + one % 7)) for one in range(questions)]
    return Task(dataset=samples, scorer=includes())
"""
WAYS = {
    "10 at once": ["--max-connections", "10"],
    f"{SEQUENCES} at once": ["--max-connections", str(SEQUENCES)],
    "batch": ["--batch"],
    "batch, quick": ["--batch", "quick.json"],
    "batch, again": ["--batch", "quick.json"],
}


def run(folder: Path, server: ApiClient, key: str, questions: int, options: list[str]) -> tuple[float, float]:
    """Return the seconds of an evaluation, and its accuracy."""
    (folder / "task.py").write_text(TASK)
    (folder / "quick.json").write_text(json.dumps({"size": 50000, "send_delay": 1, "tick": 1}))
    words = ["eval", "task.py", "-T", f"questions={questions}", "--model", "openai/mini", "--temperature", "0"]
    words += ["--max-tokens", "16", "--log-format", "json", "--display", "none", "--max-samples", str(questions)]
    logs = folder / f"logs-{time.monotonic_ns()}"
    started = time.monotonic()
    ended = subprocess.run(
        [INSPECT, *words, "--log-dir", logs, *options],
        cwd=folder,
        env={**os.environ, "OPENAI_BASE_URL": f"{server.url}/v1", "OPENAI_API_KEY": key},
        capture_output=True,
        text=True,
    )
    seconds = time.monotonic() - started
    if ended.returncode:
        raise SystemExit(ended.stdout + ended.stderr)
    (log,) = logs.glob("*.json")
    report: dict[str, Any] = json.loads(log.read_text())
    return seconds, report["results"]["scores"][0]["metrics"]["accuracy"]["value"]


def runs(folder: Path, questions: int, rounds: int) -> Iterator[tuple[str, float, float]]:
    """Yield each run's way, seconds and accuracy."""
    with harness.stack(MODELS, {}) as (server, data):
        warming = harness.submit(server, folder, harness.questions(SEQUENCES, "mini"))
        harness.ended(server, str(warming["id"]))
        admin = (data / "admin.key").read_text().strip()
        for number in range(rounds):
            for way, options in WAYS.items():
                key = admin
                if way == "batch, again":  # a project of its own, whose cache a first run fills
                    key = _project_with_cache(server, admin, f"round-{number}")
                    run(folder, server, key, questions, options)
                yield way, *run(folder, server, key, questions, options)


def _project_with_cache(server: ApiClient, admin: str, name: str) -> str:
    """Create a project with a result cache, and return a key of it."""
    with httpx.Client(base_url=server.url, headers={"Authorization": f"Bearer {admin}"}) as client:
        key: str = client.post("/v1/keys", json={"project": name}).json()["key"]
        (project,) = (each for each in client.get("/v1/projects").json()["data"] if each["name"] == name)
        client.post(f"/v1/projects/{project['id']}", json={"cache_bytes": 10**8}).raise_for_status()
    return key


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--questions", type=int, default=1000)
    parser.add_argument("--rounds", type=int, default=2)
    options = parser.parse_args()
    if not INSPECT.exists():
        raise SystemExit("inspect-ai has no environment here: run `make foreign CLIENTS=inspect` first")
    machine = harness.machine("ray")
    seconds: dict[str, list[float]] = {way: [] for way in WAYS}
    accuracies = set()
    with tempfile.TemporaryDirectory(prefix="by-") as folder:
        for way, took, accuracy in runs(Path(folder), options.questions, options.rounds):
            seconds[way].append(took)
            accuracies.add(accuracy)
            print(f"{way}: {took:.1f} s, accuracy {accuracy}", flush=True)
    medians = {way: statistics.median(each) for way, each in seconds.items()}
    report = {
        "machine": machine,
        "settings": {"questions": options.questions, "rounds": options.rounds},
        "seconds": seconds,
        "accuracies": sorted(accuracies),
    }
    rows = [
        [way, f"{each:.1f}", f"{each / medians['10 at once']:.2f}", f"{options.questions / each:.0f}"]
        for way, each in medians.items()
    ]
    harness.write(
        "inspect_batches", report, harness.table(["inspect-ai", "seconds", "times `10 at once`", "samples/s"], rows)
    )


if __name__ == "__main__":
    main()
