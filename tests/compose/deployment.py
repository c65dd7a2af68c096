"""docker-compose.yml with its images, as somebody without a GPU runs it."""

from __future__ import annotations

import json
import os
import secrets
import signal
import subprocess
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import openai
import yaml

from batchyard.local import ports
from tests.compose.engine import docker
from tests.support import shared
from tests.support.stacks import ROOT, RunningStack

FILES = (ROOT / "docker-compose.yml", ROOT / "deploy/compose/cpu.yml")
OURS = [name for name, service in yaml.safe_load(FILES[0].read_text())["services"].items() if "env_file" in service]
MODELS = f"""{shared.models(Path("/app/examples"), Path("/data/calls"))}
[models.mini]
engine = "vllm"
source = "./examples/models/mini"
max_in_flight = 4
[models.mini.engine_args]
dtype = "float32"
max_model_len = 512
"""


@dataclass
class Deployment:
    """A compose project of its own, with its own volumes."""

    folder: Path
    pip: Path
    project: str = field(default_factory=lambda: f"by-test-{secrets.token_hex(3)}")
    port: int = field(default_factory=ports.free)
    password: str = field(default_factory=lambda: secrets.token_hex(16))

    def __post_init__(self) -> None:
        (self.folder / "models.toml").write_text(MODELS)
        (self.folder / "models").mkdir()
        service = {"environment": shared.SETTINGS}
        (self.folder / "tests.yml").write_text(yaml.safe_dump({"services": dict.fromkeys(OURS, service)}))

    @property
    def image(self) -> str:
        return f"{self.project}:cpu"

    def compose(self, *arguments: str) -> str:
        """Run `docker compose` on this project, and return its output.

        Raises:
            subprocess.CalledProcessError: it failed; what it said is on standard error.
        """
        settings = {
            "IMAGE": self.image,
            "VLLM": "yes",
            "PIP_CONFIG_FILE": str(self.pip),
            "MODELS_FILE": str(self.folder / "models.toml"),
            "MODELS_FOLDER": str(self.folder / "models"),
            "PORT": str(self.port),
            "FLOWER_PORT": str(ports.free()),
            "POSTGRES_PASSWORD": self.password,
            "FLOWER_BASIC_AUTH": f"user:{self.password}",
            "RAY_AUTH_TOKEN": self.password,
        }
        files = [option for file in (*FILES, self.folder / "tests.yml") for option in ("--file", str(file))]
        command = ["docker", "compose", "--project-name", self.project, *files, *arguments]
        environment = os.environ | settings
        return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, env=environment).stdout.strip()

    def up(self) -> float:
        """Start all, and return the seconds until all were healthy."""
        started = time.monotonic()
        self.compose("up", "--detach", "--quiet-pull", "--wait", "--wait-timeout", "240")
        return time.monotonic() - started

    def client(self) -> RunningStack:
        """A client with the admin key. It asks again while a part of the deployment is away."""
        key = self.compose("exec", "-T", "web", "cat", "/data/admin.key")
        stack = RunningStack.elsewhere(f"http://127.0.0.1:{self.port}", key)
        stack.client = openai.OpenAI(base_url=f"{stack.url}/v1", api_key=key, max_retries=20)
        return stack

    def containers(self) -> dict[str, dict[str, Any]]:
        """What the engine says of each service's container."""
        ids = self.compose("ps", "--all", "--quiet").split()
        inspected = json.loads(docker("inspect", *ids))
        return {container["Config"]["Labels"]["com.docker.compose.service"]: container for container in inspected}

    def kill(self, name: str) -> None:
        """Kill a container's first process, as a crash would: `docker kill` would not be followed by a restart."""
        os.kill(self.containers()[name]["State"]["Pid"], signal.SIGKILL)

    def wait_for(self, name: str, *, restarts: int, seconds: float = 150) -> None:
        """Wait until a service has been restarted so often, and is healthy."""
        deadline = time.monotonic() + seconds
        while True:
            container = self.containers()[name]
            if container["RestartCount"] >= restarts and container["State"]["Health"]["Status"] == "healthy":
                return
            assert time.monotonic() < deadline, self.compose("logs", "--tail", "60", name)
            time.sleep(0.5)

    def left(self, kind: str) -> list[str]:
        """The names of what the project has of a kind: `container`, `network` or `volume`."""
        ours = f"label=com.docker.compose.project={self.project}"
        command = ["ls", "--all"] if kind == "container" else ["ls"]
        name = "{{.Names}}" if kind == "container" else "{{.Name}}"
        return docker(kind, *command, "--filter", ours, "--format", name).split()
