"""A running `batchyard up` with a client."""

from __future__ import annotations

import json
import os
import re
import secrets
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, cast

import openai
import psutil
import redis

from batchyard.local.process import kill, tagged
from batchyard.statuses import TERMINAL
from tests.support.postgresql import create_database
from tests.support.s3 import S3Server

ROOT = Path(__file__).parents[2]
PATIENCE = 3
"""How many times longer than on a quick and idle machine tests wait before they fail."""


@dataclass
class RunningStack:
    """A `batchyard up` that a test has started, with a client."""

    process: subprocess.Popen[str]
    data: Path
    url: str
    key: str
    environment: dict[str, str] = field(default_factory=dict)
    """The settings it was started with."""
    client: openai.OpenAI = field(init=False)

    def __post_init__(self) -> None:
        self.client = openai.OpenAI(base_url=f"{self.url}/v1", api_key=self.key, max_retries=0)

    def submit(self, requests: list[dict[str, Any]] | str | bytes, **options: Any) -> Any:
        """Upload requests and create a batch of them."""
        if isinstance(requests, list):
            requests = "".join(json.dumps(request) + "\n" for request in requests)
        content = requests.encode() if isinstance(requests, str) else requests
        file = self.client.files.create(file=("in.jsonl", content), purpose="batch")
        options = {"endpoint": "/v1/chat/completions", "completion_window": "24h"} | options
        return self.client.batches.create(input_file_id=file.id, **options)

    def submit_endless(self, **options: Any) -> Any:
        """Create a batch that runs for minutes: its 30 requests time out one after another. Cancel it at the end."""
        return self.submit([a_chat(f"id-{number}", "hello", model="endless") for number in range(30)], **options)

    def wait(self, batch: Any, *, until: Callable[[Any], bool] | None = None, seconds: float = 120) -> Any:
        """Wait until a batch has ended or `until` holds, and return it."""
        began = time.monotonic()
        while not (batch.status in TERMINAL or (until is not None and until(batch))):
            waited = time.monotonic() - began
            assert waited < PATIENCE * seconds, f"still {batch.status} after {waited:.0f} s: {batch.to_json()}"
            time.sleep(0.1 if until is not None else _pause(waited))
            batch = self.client.batches.retrieve(batch.id)
        return batch

    def caught(self, create: Callable[[], Any], until: Callable[[Any], bool]) -> Any:
        """Return a batch that runs and for which `until` holds. One that has ended before that was seen is no use."""
        for _ in range(3):
            batch = self.wait(create(), until=until)
            if batch.status not in TERMINAL:
                return batch
        raise AssertionError(f"three batches have ended unseen: {batch.to_json()}")

    def stopped_amid(
        self, create: Callable[[], Any], until: Callable[[Any], bool], processes: Callable[[], list[psutil.Process]]
    ) -> tuple[Any, list[psutil.Process]]:
        """Return a batch as `caught` does, with `processes` that it needs, suspended.

        Who kills them kills them amid the batch, however late this process gets there.
        """
        for _ in range(3):
            batch = self.caught(create, until)
            stopped = processes()
            for process in stopped:
                process.suspend()
            batch = self.client.batches.retrieve(batch.id)
            if batch.status == "in_progress" and batch.request_counts.completed < batch.request_counts.total * 3 / 4:
                return batch, stopped
            for process in stopped:
                process.resume()
        raise AssertionError(f"three batches were nearly over: {batch.to_json()}")

    def wait_for_job(self, job: dict[str, Any], *, seconds: float = 240) -> dict[str, Any]:
        """Wait until a job has ended, and return it."""
        began = time.monotonic()
        while job["status"] not in TERMINAL:
            waited = time.monotonic() - began
            assert waited < PATIENCE * seconds, f"still {job['status']} after {waited:.0f} s: {job}"
            time.sleep(_pause(waited))
            job = cast(dict[str, Any], self.client.get(f"/jobs/{job['id']}", cast_to=object))
        return job

    def lines(self, file_id: str | None) -> list[dict[str, Any]]:
        """Return the lines of an output or error file; an empty list if there is no such file."""
        if file_id is None:
            return []
        return [json.loads(line) for line in self.client.files.content(file_id).content.splitlines()]

    def artifact(self, batch: Any, name: str) -> bytes:
        file_id = next(entry["file_id"] for entry in batch.batchyard["artifacts"] if entry["name"] == name)
        return self.client.files.content(file_id).content

    def processes(self, name: str) -> list[psutil.Process]:
        """Return a process by its name, with its descendants. Wait for the next one if it was killed."""
        deadline = time.monotonic() + PATIENCE * 60
        while True:
            with suppress(FileNotFoundError, ValueError, psutil.NoSuchProcess):  # its pid is not yet written
                process = psutil.Process(int((self.data / "run" / f"{name}.pid").read_text()))
                if process.status() != psutil.STATUS_ZOMBIE:
                    return [process, *process.children(recursive=True)]
            assert time.monotonic() < deadline, f"{name} does not run"
            time.sleep(0.05)

    def engines(self, model: str) -> list[dict[str, Any]]:
        """Return what the stack has published of a model's engines."""
        with redis.Redis.from_url(self.processes("web")[0].environ()["REDIS_URL"]) as client:
            published = [json.loads(value) for value in client.hgetall("batchyard:engines").values()]  # type: ignore[union-attr]
        return [engine for engine in published if engine["model"] == model]

    def in_project(self, name: str) -> RunningStack:
        """Create a project with a key, and return the same stack as a client with that key sees it."""
        created = cast(dict[str, Any], self.client.post("/keys", body={"project": name}, cast_to=object))
        return replace(self, key=created["key"])

    def limit_segments(self, project: str, most: int | None) -> None:
        """Let so many segments of a project run at once: with 0 its batches wait, and with None they go on."""
        projects = cast(dict[str, Any], self.client.get("/projects", cast_to=object))["data"]
        project_id = next(entry["id"] for entry in projects if entry["name"] == project)
        self.client.post(f"/projects/{project_id}", body={"max_segments": most}, cast_to=object)

    @classmethod
    def start(cls, models: str, **environment: str) -> RunningStack:
        """Start a stack with these models (TOML) and settings, in a new data folder; returns once it is ready."""
        folder = Path(tempfile.mkdtemp(prefix="by-"))  # short: the path of a socket is limited
        (folder / "models.toml").write_text(models)
        return cls.restart(folder / "data", **environment)

    @classmethod
    def restart(
        cls,
        data: Path,
        program: Path = Path(sys.executable).parent / "batchyard",
        options: Sequence[str] = (),
        models: bool = True,
        **environment: str,
    ) -> RunningStack:
        """Start a stack on a data folder that may exist, by a `batchyard` of another venv if `program` names one.

        Args:
            options: more options of `up`.
            models: the models file beside the data folder is named.
        """
        command = [str(program), "up", "--port", "0", "--flower-port", "0"]
        command += ["--data", str(data), *options]
        command += ["--models", str(data.parent / "models.toml")] if models else []
        with (data.parent / "up.log").open("a") as log:
            process = subprocess.Popen(
                command,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                cwd=data.parent,
                env={"BATCHYARD_LIVE_START_SECONDS": "300", **os.environ, **environment},  # slow machines start slowly
            )
        assert process.stdout is not None
        ready = re.search(r"ready: (\S+)", process.stdout.readline())
        assert ready is not None, (data.parent / "up.log").read_text()
        return cls(process, data, ready[1], (data / "admin.key").read_text().strip(), environment)

    def become(self, again: RunningStack) -> None:
        """Be this one from now on: the stack was started again."""
        self.process, self.data, self.url, self.key = again.process, again.data, again.url, again.key
        self.client = again.client

    @classmethod
    def elsewhere(cls, url: str, key: str) -> RunningStack:
        """A deployment that somebody else has started: a client's view of it."""
        return cls(cast(Any, None), cast(Any, None), url, key)

    @property
    def database_url(self) -> str:
        """The URL of its database."""
        return self.environment.get("DATABASE_URL") or f"sqlite:///{self.data / 'batchyard.db'}"

    def kill(self) -> None:
        """Kill every process of the stack at once: a graceful end takes up to 20 s."""
        self.process.kill()
        self.process.wait()
        while processes := tagged(str(self.data)):
            kill(processes)


def _pause(waited: float) -> float:
    """Return after how many seconds to look again at what ends for good: each look takes CPU from what it waits for."""
    return min(0.5, max(0.1, waited / 10))


def on_servers(postgresql: str, s3_server: S3Server) -> dict[str, str]:
    """Return the settings of a stack that keeps its state in a new database of PostgreSQL, and in S3."""
    artifacts = {"ARTIFACTS_URL": s3_server.url(secrets.token_hex(8)), **s3_server.environment}
    return {"DATABASE_URL": create_database(postgresql), **artifacts}


def a_chat(custom_id: str, content: str, model: str = "echo", **body: Any) -> dict[str, Any]:
    """Return a line of a batch file: a request for a chat completion."""
    body = {"model": model, "messages": [{"role": "user", "content": content}], **body}
    return {"custom_id": custom_id, "method": "POST", "url": "/v1/chat/completions", "body": body}
