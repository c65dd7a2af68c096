"""Further nodes of a Ray cluster, on this machine."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path

import psutil
import ray

from inference.residents import directory
from tests.support.rows import until


def gpus() -> float:
    return float(ray.cluster_resources().get("GPU", 0))


def stop_engines() -> None:
    """Stop all engines. The next test sees none of them."""
    until(lambda: not directory.stop_all())


def kill(node: subprocess.Popen[bytes]) -> None:
    """Kill a node with all that runs there, at once."""
    root = psutil.Process(node.pid)
    for process in [root, *root.children(recursive=True)]:
        with suppress(psutil.NoSuchProcess):  # it went with its parent
            process.kill()


@contextmanager
def gpu_node(cluster: str, *options: str) -> Iterator[Callable[[], None]]:
    """Run a node with one GPU, or so Ray believes: engine echo asks for one and uses none. Yields what kills it."""
    before = gpus()
    command = [str(Path(sys.executable).parent / "ray"), "start", f"--address={cluster}", "--block"]
    command += ["--num-cpus=1", "--num-gpus=1", "--object-store-memory=80000000", "--disable-usage-stats"]
    node = subprocess.Popen([*command, *options], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

    try:
        until(lambda: gpus() == before + 1, seconds=120)
        yield partial(kill, node)
    finally:
        if node.poll() is None:
            directory.stop_all()  # a node with engines takes half a minute to stop
        node.terminate()
        node.wait(180)
        until(lambda: gpus() <= before, seconds=120)
