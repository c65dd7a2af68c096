"""A stack that joins a Ray cluster which somebody else started, and which has no Batchyard."""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest
import ray

from tests.support.foreign_cluster import ForeignCluster
from tests.support.ray_nodes import kill
from tests.support.stacks import PATIENCE, ROOT, RunningStack, a_chat

BIN = Path(sys.executable).parent
MODELS = """
[models.echo]
engine = "echo"
max_in_flight = 8
num_gpus = 1
[models.echo.engine_args]
latency_ms = 200
"""


@pytest.fixture(scope="module")
def cluster() -> Iterator[ForeignCluster]:
    with closing(ForeignCluster()) as cluster:
        cluster.start()
        yield cluster


def settings(cluster: ForeignCluster) -> dict[str, str]:
    return {"RAY_ADDRESS": cluster.address, "BATCHYARD_ALLOW_SIMULATED": "1", "BATCHYARD_RAY_SHIP_CODE": "1"}


@pytest.mark.exhaustive
def test_a_batch_completes_while_nodes_without_our_code_come_and_go(
    cluster: ForeignCluster, start_stack: Callable[..., RunningStack]
) -> None:
    first = cluster.join()
    stack = start_stack(MODELS, **settings(cluster), BATCHYARD_LEASE_SECONDS="10")
    batch = stack.submit([a_chat(f"r{number}", "hello") for number in range(200)])
    stack.wait(batch, until=lambda batch: batch.request_counts.completed >= 40)
    kill(first)
    cluster.join()
    batch = stack.wait(batch)
    assert batch.status == "completed", json.dumps(batch.to_dict())
    ids = Counter(line["custom_id"] for line in stack.lines(batch.output_file_id))
    assert ids == Counter(f"r{number}" for number in range(200))


@pytest.mark.parametrize(
    "command",
    [
        [BIN / "batchyard", "up", "--port", "0"],
        [BIN / "batchyard", "doctor"],
        [sys.executable, "-m", "batchyard.local.services", "worker"],
    ],
)
def test_who_would_join_a_cluster_of_another_python_ends_at_once_and_names_both(
    cluster: ForeignCluster, tmp_path: Path, command: list[str | Path]
) -> None:
    (tmp_path / "models.toml").write_text(MODELS)
    cluster.recorded_python("3.9.1")
    try:
        ended = subprocess.run(
            command,
            cwd=tmp_path,
            env={**os.environ, **settings(cluster), "PYTHONPATH": str(ROOT)},
            capture_output=True,
            text=True,
            timeout=PATIENCE * 120,
        )
    finally:
        cluster.recorded_python(platform.python_version())
    assert ended.returncode == 2
    assert f"the cluster has Python 3.9.1 and Ray {ray.__version__}; here are Python" in ended.stderr
