"""vLLM's commands, to compare answers with: `vllm serve`. Its command line wants a distribution named vllm."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx

from batchyard.local import ports

SERVE = 'import runpy; runpy.run_module("vllm.entrypoints.launchers.api_server.entry", run_name="__main__")'
CPU = {"dtype": "float32", "max-model-len": 256, "kv-cache-memory-bytes": 64 * 2**20, "gpu-memory-utilization": 0.1}
"""Flags of a small model on the CPU, as the engine's arguments of the tests."""
START_SECONDS = 120.0


def flags(model: Path, name: str, **more: Any) -> list[str]:
    """Return the command line of a small model on the CPU. Underscores stand for dashes, True for no value."""
    named = {"model": model, "served-model-name": name, "enforce-eager": True, **CPU, **more}
    words: list[str] = []
    for flag, value in named.items():
        values = value if isinstance(value, list) else [] if value is True else [value]
        words += [f"--{flag.replace('_', '-')}", *map(str, values)]
    return words


@contextmanager
def serving(log: Path, *arguments: str) -> Iterator[httpx.Client]:
    """Run `vllm serve` with these arguments until the block ends. Yield a client of it, which is ready."""
    port = str(ports.free())
    script = log.with_suffix(".py")
    script.write_text(f"if __name__ == '__main__':\n    {SERVE}\n")  # it starts processes that import it again
    command = [sys.executable, str(script), *arguments, "--host", "127.0.0.1", "--port", port]
    environment = {**os.environ, "HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1"}
    with (
        log.open("w") as output,
        subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT, env=environment) as server,
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
                server.kill()


def _healthy(client: httpx.Client) -> bool:
    try:
        return client.get("/health").is_success
    except httpx.TransportError:
        return False
