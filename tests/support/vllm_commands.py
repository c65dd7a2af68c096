"""vLLM's commands, to compare answers with: `vllm serve` and `vllm run-batch`.

Their command line wants a distribution named vllm, so their modules are run.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import psutil

from batchyard.local.process import kill
from tests.support import held_ports

_SERVE, _RUN_BATCH = "vllm.entrypoints.launchers.api_server.entry", "vllm.entrypoints.launchers.run_batch"
# vLLM starts processes that import the script again.
_SCRIPT = """import runpy
if __name__ == "__main__":
    runpy.run_module({module!r}, run_name="__main__")
"""
CPU = {"dtype": "float32", "max-model-len": 256, "kv-cache-memory-bytes": 64 * 2**20, "gpu-memory-utilization": 0.1}
"""Flags of a small model on the CPU, as the engine's arguments of the tests."""
ENVIRONMENT = {"HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1"}
START_SECONDS, BATCH_SECONDS = 600.0, 600.0


def flags(model: Path, name: str, **more: Any) -> list[str]:
    """Return the command line of a small model on the CPU. Underscores stand for dashes, True for no value."""
    named = {"model": model, "served-model-name": name, "enforce-eager": True, **CPU, **more}
    words: list[str] = []
    for flag, value in named.items():
        values = value if isinstance(value, list) else [] if value is True else [value]
        words += [f"--{flag.replace('_', '-')}", *map(str, values)]
    return words


def serve_command(script: Path, *arguments: str) -> list[str]:
    """Return the command line of `vllm serve` with these arguments, by a script that is written for it."""
    return [*_command(_SERVE, script), *arguments]


@contextmanager
def serving(log: Path, *arguments: str) -> Iterator[httpx.Client]:
    """Run `vllm serve` with these arguments until the block ends. Yield a client of it, which is ready."""
    port = str(held_ports.hold())
    command = serve_command(log.with_suffix(".py"), *arguments, "--host", "127.0.0.1", "--port", port)
    with (
        log.open("w") as output,
        subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT, env={**os.environ, **ENVIRONMENT}) as server,
        httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=60) as client,
    ):
        try:
            deadline = time.monotonic() + START_SECONDS
            while not _healthy(client):
                assert server.poll() is None and time.monotonic() < deadline, log.read_text()
                time.sleep(0.2)
            yield client
        finally:
            server.terminate()
            try:
                server.wait(20)
            except subprocess.TimeoutExpired:
                kill([*psutil.Process(server.pid).children(recursive=True), psutil.Process(server.pid)])


def run_batch(folder: Path, requests: str, *arguments: str) -> list[dict[str, Any]]:
    """Return the output lines of `vllm run-batch` for the lines of requests. It must not fail."""
    source, output = folder / "run_batch_in.jsonl", folder / "run_batch_out.jsonl"
    source.write_text(requests)
    command = [*_command(_RUN_BATCH, folder / "run_batch.py"), "-i", str(source), "-o", str(output), *arguments]
    ended = subprocess.run(
        command, capture_output=True, text=True, timeout=BATCH_SECONDS, env={**os.environ, **ENVIRONMENT}
    )
    assert ended.returncode == 0, ended.stderr
    return [json.loads(line) for line in output.read_text().splitlines()]


def _command(module: str, script: Path) -> list[str]:
    script.write_text(_SCRIPT.format(module=module))
    return [sys.executable, str(script)]


def _healthy(client: httpx.Client) -> bool:
    try:
        return client.get("/health").is_success
    except httpx.TransportError:
        return False
