"""docker-compose.yml in a container engine, from the build of its image to its end: `make compose-test`.

The tests are steps of one story, and run in this order. Needs root, Docker with its plugin compose, and debootstrap
where no image can be pulled.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.compose import engine
from tests.compose.deployment import OURS, Deployment
from tests.compose.engine import docker
from tests.support.stacks import ROOT, RunningStack, a_chat

pytestmark = [
    pytest.mark.stack,
    pytest.mark.skipif(not shutil.which("docker"), reason="needs Docker and its plugin compose"),
    pytest.mark.skipif(os.geteuid() != 0, reason="needs root: it kills processes of containers"),
]
STEADY = ["redis", "postgres", *(name for name in OURS if name != "migrate")]
# Those that start a stack of their own, or look into its data folder or its broker, are not among them.
CONTRACT = (
    *("batches", "endings", "errors", "files", "inline_requests", "lines", "live", "models", "open_batches"),
    *("results", "retry", "types", "validation"),
)
CPU_WHEELS = ("PIP_FIND_LINKS", "PIP_EXTRA_INDEX_URL")
PLAIN = {"PIP_CONFIG_FILE": os.devnull}
SETTLE_SECONDS, IDLE_SECONDS = 20, 40
KILLED = 60  # requests of the batch in which a container is killed


@pytest.fixture(scope="module")
def deployment(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Deployment]:
    """Nothing is built or started yet. All that it starts ends, and its volumes and its image go."""
    with engine.running(), engine.pip_configuration() as pip:
        show("stand-ins", ", ".join(engine.provide_images(pip)) or "none")
        deployment = Deployment(tmp_path_factory.mktemp("compose"), pip)
        try:
            yield deployment
        finally:
            deployment.compose("down", "--volumes", "--timeout", "10")
            subprocess.run(["docker", "image", "rm", deployment.image], capture_output=True, check=False)


@pytest.fixture(scope="module")
def client(deployment: Deployment) -> RunningStack:
    return deployment.client()


def show(what: str, value: object) -> None:
    """Print a measurement: `make compose-test` has pytest leave output as it is."""
    print(f"\ncompose-test: {what}: {value}", flush=True)


def the_batch(client: RunningStack, requests: int, **body: Any) -> Any:
    chats = [
        a_chat(f"r{number}", f"What is {number} + 7?", "mini", max_tokens=24, **body) for number in range(requests)
    ]
    return client.submit(chats)


def ids(client: RunningStack, batch: Any) -> list[str]:
    return sorted(line["custom_id"] for line in client.lines(batch.output_file_id))


def test_the_image_for_cpus_is_built_on_request(deployment: Deployment) -> None:
    started = time.monotonic()
    deployment.compose("build", "--quiet")
    show("build", f"{time.monotonic() - started:.0f} s")
    size = int(docker("image", "inspect", deployment.image, "--format", "{{.Size}}")) / 1e9
    show("size of the image for CPUs", f"{size:.2f} GB")
    assert size < 6


def test_no_layer_has_a_secret_or_an_index(deployment: Deployment) -> None:
    history = docker("history", "--no-trunc", "--format", "{{.CreatedBy}}", deployment.image)
    configuration = docker("image", "inspect", deployment.image, "--format", "{{json .Config}}")
    lines = deployment.pip.read_text().splitlines()
    private = [value for line in lines for value in line.partition(" = ")[2].split() if "://" in value]
    for secret in (deployment.password, *private):
        assert secret not in history + configuration
    command = "cat /etc/pip.conf /root/.config/pip/pip.conf 2>/dev/null; ls /root/.cache/pip 2>/dev/null; true"
    assert docker("run", "--rm", "--user", "0", deployment.image, "sh", "-c", command) == ""


def test_the_packages_of_the_image_for_gpus_can_be_had() -> None:
    """Its wheels for CUDA are many GB: they are resolved, and not installed. Their index is not that of CPU wheels."""
    extras = "server,vllm,audio,postgres,s3,oidc,otel"
    packages = [f"{ROOT}[{extras}]", str(ROOT / "deploy/server")]
    command = [sys.executable, "-m", "pip", "install", "--dry-run", "--ignore-installed", "--quiet", "--report", "-"]
    started = time.monotonic()
    environment = {name: value for name, value in os.environ.items() if name not in CPU_WHEELS} | PLAIN
    resolved = subprocess.run([*command, *packages], check=True, stdout=subprocess.PIPE, text=True, env=environment)
    report = json.loads(resolved.stdout)
    versions = {each["metadata"]["name"].lower(): each["metadata"]["version"] for each in report["install"]}
    show(
        "packages of the image for GPUs",
        f"{len(versions)}, resolved in {time.monotonic() - started:.0f} s; torch {versions['torch']}",
    )
    assert {"vllm", "torch", "batchyard", "batchyard-server"} <= versions.keys()


def test_all_services_become_healthy(deployment: Deployment) -> None:
    show("up, until all were healthy", f"{deployment.up():.0f} s")
    containers = deployment.containers()
    assert containers.pop("migrate")["State"]["ExitCode"] == 0
    states = {name: container["State"] for name, container in containers.items()}
    assert {name: state["Health"]["Status"] for name, state in states.items()} == dict.fromkeys(STEADY, "healthy")
    time.sleep(SETTLE_SECONDS)
    before = {name: engine.cpu_seconds(container["Id"]) for name, container in containers.items()}
    time.sleep(IDLE_SECONDS)
    cores = {
        name: (engine.cpu_seconds(container["Id"]) - before[name]) / IDLE_SECONDS
        for name, container in containers.items()
    }
    memory = {name: memory_bytes(state["Pid"]) for name, state in states.items()}
    for name in sorted(memory, key=lambda name: -memory[name]):
        show(f"idle {name}", f"{memory[name] / 2**20:.0f} MiB (PSS), {cores[name]:.2%} of a core")
    show(
        "idle, all",
        f"{sum(memory.values()) / 2**20:.0f} MiB, {sum(cores.values()):.2%} of a core, health checks included",
    )


def memory_bytes(pid: int) -> int:
    """The memory of a process and all below it (PSS)."""
    first = psutil.Process(pid)
    return sum(process.memory_full_info().pss for process in (first, *first.children(recursive=True)))


def test_no_process_is_root_or_can_become_it(deployment: Deployment) -> None:
    for name, container in deployment.containers().items():
        if name == "migrate":
            continue
        first = psutil.Process(container["State"]["Pid"])
        for process in [first, *first.children(recursive=True)]:
            assert 0 not in process.uids(), (name, process.cmdline())
            status = Path(f"/proc/{process.pid}/status").read_text()
            assert "CapBnd:\t0000000000000000" in status and "NoNewPrivs:\t1" in status, name


def test_each_container_is_confined(deployment: Deployment) -> None:
    for name, container in deployment.containers().items():
        host = container["HostConfig"]
        assert host["ReadonlyRootfs"] and host["PidsLimit"], name
        assert host["Memory"] or name == "ray-worker", name
    with pytest.raises(subprocess.CalledProcessError):
        deployment.compose("exec", "-T", "web", "touch", "/app/file")


def test_vllm_answers_a_batch(client: RunningStack) -> None:
    started = time.monotonic()
    batch = client.wait(the_batch(client, 20), seconds=240)
    assert batch.status == "completed", batch.to_json()
    assert ids(client, batch) == sorted(f"r{number}" for number in range(20))
    show("first batch on vLLM, its start included", f"{time.monotonic() - started:.0f} s")


def test_the_contract_holds(client: RunningStack) -> None:
    files = [f"tests/contract/test_{name}.py" for name in CONTRACT]
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:schemathesis", "--durations=3", *files]
    environment = os.environ | {"BATCHYARD_TEST_KEY": client.key}
    subprocess.run([*command, "--deployment", client.url], check=True, cwd=ROOT, env=environment)


@pytest.mark.parametrize("name", STEADY)
def test_a_container_that_is_killed_comes_back_and_nothing_is_lost(
    deployment: Deployment, client: RunningStack, name: str
) -> None:
    started = time.monotonic()
    batch = client.caught(
        lambda: the_batch(client, KILLED, min_tokens=24),
        lambda batch: batch.status == "in_progress" and batch.request_counts.completed > 0,
    )
    restarts = deployment.containers()[name]["RestartCount"]
    deployment.kill(name)
    deployment.wait_for(name, restarts=restarts + 1)
    healthy = time.monotonic() - started
    batch = client.wait(batch, seconds=240)
    assert batch.status == "completed", batch.to_json()
    assert ids(client, batch) == sorted(f"r{number}" for number in range(KILLED))
    show(f"{name} killed", f"healthy after {healthy:.0f} s, batch complete after {time.monotonic() - started:.0f} s")


def test_down_leaves_nothing_but_the_volumes_and_the_second_up_finds_them(deployment: Deployment) -> None:
    before = deployment.client()
    batch = before.wait(the_batch(before, 5))
    deployment.compose("down")
    assert (deployment.left("container"), deployment.left("network")) == ([], [])
    assert {name.partition("_")[2] for name in deployment.left("volume")} == {"data", "postgres", "redis"}
    show("second up, until all were healthy", f"{deployment.up():.0f} s")
    after = deployment.client()
    assert after.key == before.key
    assert ids(after, after.client.batches.retrieve(batch.id)) == [f"r{number}" for number in range(5)]
    assert after.wait(the_batch(after, 5), seconds=240).status == "completed"
