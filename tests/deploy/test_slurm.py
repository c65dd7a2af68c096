"""Jobs of a real SLURM serve a stack outside: they come, end in each way that jobs end, and nothing is lost."""

from __future__ import annotations

import json
import shutil
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from batchyard.models import vllm_installed
from inference.engines.openai.discovery import EndpointFile
from tests.support import slurm, vllm_commands
from tests.support.rows import until
from tests.support.slurm import NODES, SlurmCluster
from tests.support.stacks import ROOT, RunningStack, a_chat

pytestmark = pytest.mark.skipif(bool(slurm.missing()), reason=slurm.missing())

SCRIPT = str(ROOT / "deploy/slurm/serve.sbatch")
MODELS = """
[models.served]
engine = "openai"
max_in_flight = 4
[models.served.engine_args]
endpoint_folder = "{folder}"
"""


@pytest.fixture(scope="module")
def cluster() -> Iterator[SlurmCluster]:
    with closing(SlurmCluster()) as cluster:
        cluster.start()
        yield cluster


@pytest.fixture
def folder(cluster: SlurmCluster) -> Iterator[Path]:
    """The folder with the endpoint files; before and after a test it has none, and no job runs."""
    yield cluster.folder / "endpoints"
    cluster.cancel_all()
    shutil.rmtree(cluster.folder / "endpoints", ignore_errors=True)


@pytest.fixture(scope="module")
def outside(cluster: SlurmCluster, start_stack: Callable[..., RunningStack]) -> RunningStack:
    """A stack whose one model is what jobs serve."""
    return start_stack(MODELS.format(folder=cluster.folder / "endpoints"))


def serve(cluster: SlurmCluster, folder: Path, *options: str, seconds: float = 0.3) -> str:
    """Submit a job whose server takes so many seconds for an answer; returns its id."""
    server = (sys.executable, "-m", "tests.support.slurm_server", "{port}", "served", str(seconds))
    return cluster.submit([*options, SCRIPT], str(folder), "served", *server)


def entry(folder: Path, job: str) -> EndpointFile:
    """Wait for the endpoint file of a job; returns its content as the engine reads it."""
    file = folder / f"slurm-{job}.json"
    until(file.exists)
    return EndpointFile.model_validate_json(file.read_text())


def has_left(folder: Path, job: str) -> Callable[[], bool]:
    return lambda: not (folder / f"slurm-{job}.json").exists()


def begin(stack: RunningStack, number: int, **body: Any) -> Any:
    """Submit a batch of so many requests, and wait until some are answered."""
    batch = stack.submit([a_chat(f"r{one}", f"text {one}", model="served", **body) for one in range(number)])
    return stack.wait(batch, until=lambda batch: batch.request_counts.completed >= 10)


def check_complete(stack: RunningStack, batch: Any, number: int) -> None:
    """Wait for the end of a batch: each request is answered, and once, and no answer was broken off."""
    batch = stack.wait(batch)
    assert batch.status == "completed" and batch.error_file_id is None, json.dumps(batch.to_dict())
    lines = stack.lines(batch.output_file_id)
    assert Counter(line["custom_id"] for line in lines) == Counter(f"r{one}" for one in range(number))
    assert {line["response"]["body"]["choices"][0]["finish_reason"] for line in lines} <= {"stop", "length"}


def test_a_job_that_is_cancelled_leaves_its_batch_to_the_next_one(
    cluster: SlurmCluster, folder: Path, outside: RunningStack
) -> None:
    first = serve(cluster, folder)
    assert entry(folder, first).host in NODES
    batch = begin(outside, 60)
    second = serve(cluster, folder)
    assert entry(folder, second).host != entry(folder, first).host
    cluster.run("scancel", first)
    until(has_left(folder, first))
    check_complete(outside, batch, 60)
    assert list(folder.iterdir()) == [folder / f"slurm-{second}.json"], "the other file and no temporary one"


@pytest.mark.exhaustive
def test_the_only_job_is_requeued_and_serves_the_rest_of_its_batch(
    cluster: SlurmCluster, folder: Path, outside: RunningStack
) -> None:
    job = serve(cluster, folder)
    before = entry(folder, job)
    batch = begin(outside, 120)
    cluster.run("scontrol", "requeue", job)
    until(has_left(folder, job))
    assert outside.client.batches.retrieve(batch.id).status == "in_progress"
    assert entry(folder, job).started_at > before.started_at
    check_complete(outside, batch, 120)


# SLURM looks at time limits every 30 s; `scancel` sends the same signal at once.
@pytest.mark.parametrize("signal", ["of scancel", pytest.param("of the time limit", marks=pytest.mark.exhaustive)])
@pytest.mark.exhaustive
def test_a_job_near_its_time_limit_ends_by_itself_and_no_request_is_asked_twice(
    cluster: SlurmCluster, folder: Path, outside: RunningStack, signal: str
) -> None:
    limit = ("--time=1", "--signal=B:USR1@20") if signal == "of the time limit" else ()
    first = serve(cluster, folder, *limit, seconds=1)
    entry(folder, first)
    batch = begin(outside, 240)
    if not limit:
        cluster.run("scancel", "--batch", "--signal=USR1", first)
    until(has_left(folder, first), 60)
    assert cluster.job_state(first) == "RUNNING"
    second = serve(cluster, folder, seconds=0.02)
    until(lambda: cluster.job_state(first) == "COMPLETED")
    check_complete(outside, batch, 240)
    outputs = cluster.output(first) + cluster.output(second)
    asked = Counter(line for line in outputs.splitlines() if line.startswith("asked"))
    assert asked == Counter(f"asked text {one}" for one in range(240))


@pytest.mark.exhaustive
def test_a_job_whose_node_is_lost_leaves_a_file_that_its_next_run_replaces(
    cluster: SlurmCluster, folder: Path, outside: RunningStack
) -> None:
    job = serve(cluster, folder)
    lost = entry(folder, job).host
    batch = begin(outside, 80)
    cluster.kill_node(lost)
    assert entry(folder, job).host == lost, "nobody could remove it"
    until(lambda: not has_left(folder, job)() and entry(folder, job).host != lost, 60)
    check_complete(outside, batch, 80)
    cluster.start_node(lost)


def test_a_server_that_ends_takes_its_file_along_and_its_job_has_failed(cluster: SlurmCluster, folder: Path) -> None:
    job = cluster.submit([SCRIPT], str(folder), "served", "bash", "-c", "exit 3")
    until(lambda: cluster.job_state(job) == "FAILED")
    assert "the server has ended before it was ready" in cluster.output(job)
    assert has_left(folder, job)()


def test_a_job_leaves_the_file_that_its_twin_on_another_node_has_written(cluster: SlurmCluster, folder: Path) -> None:
    job = serve(cluster, folder)
    twin = entry(folder, job).model_copy(update={"host": "another"}).model_dump_json()
    (folder / f"slurm-{job}.json").write_text(twin)
    cluster.run("scancel", job)
    until(lambda: cluster.job_state(job) == "CANCELLED" and "the file goes" in cluster.output(job))
    cluster.cancel_all()
    assert (folder / f"slurm-{job}.json").read_text() == twin


@pytest.mark.vllm
@pytest.mark.skipif(not vllm_installed(), reason="vLLM is not installed")
@pytest.mark.exhaustive
def test_a_job_with_vllm_is_requeued_amid_a_batch(
    cluster: SlurmCluster, folder: Path, outside: RunningStack, tmp_path: Path
) -> None:
    flags = vllm_commands.flags(ROOT / "examples/models/mini", "served", shutdown_timeout=25, port="{port}")
    export = ",".join(f"{name}={value}" for name, value in vllm_commands.ENVIRONMENT.items())
    command = vllm_commands.serve_command(tmp_path / "serve.py", *flags)
    job = cluster.submit([f"--export=ALL,{export}", SCRIPT], str(folder), "served", *command)
    before = entry(folder, job)
    batch = begin(outside, 600, max_tokens=64, ignore_eos=True)
    cluster.run("scontrol", "requeue", job)
    until(has_left(folder, job), 10)
    assert outside.client.batches.retrieve(batch.id).status == "in_progress"
    assert entry(folder, job).started_at > before.started_at
    check_complete(outside, batch, 600)
