"""The clients of a campaign: batches and jobs of several models and projects, some cancelled, some with short windows,
some batches retried."""

from __future__ import annotations

import json
import math
import random
import threading
import time
import uuid
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

import openai
from openai import BaseModel
from pydantic import ConfigDict

from batchyard.statuses import TERMINAL
from tests.chaos import relay
from tests.chaos.deployment import PROJECTS, SERVED, Deployment

T = TypeVar("T")
OPEN_BATCHES = 8
"""Batches and jobs of a project that have not ended, at most."""
JOBS = 3
"""One of so many is a job."""
GIVE_UP_SECONDS = 240


@dataclass
class Sent:
    """A batch or a job of a client. `tag` begins the texts of its requests; a retry has none of its own."""

    project: str
    id: str
    tag: str | None


class Workload:
    """Clients that create batches and jobs until `end` is set.

    Attributes:
        sent: the batches and the jobs that exist.
        failures: what calls met, by operation and status: clients try again after each.
        unclear: operations that never succeeded.
    """

    def __init__(self, deployment: Deployment, seed: int, end: threading.Event) -> None:
        self._deployment = deployment
        self._seed = seed
        self._end = end
        self.sent: list[Sent] = []
        self.retried: set[str] = set()
        self.failures: Counter[tuple[str, str]] = Counter()
        self.unclear: list[str] = []
        self._threads = [threading.Thread(target=self._run, args=(name,), daemon=True) for name in PROJECTS]

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    def join(self) -> None:
        for thread in self._threads:
            thread.join()

    def _run(self, project: str) -> None:
        random_ = random.Random(f"{self._seed}/{project}")
        client = self._deployment.client(project)
        open_: dict[str, Any] = {}
        cancel_at: dict[str, float] = {}
        number = 0
        while not self._end.is_set():
            if len(open_) < OPEN_BATCHES:
                number += 1
                if (batch := self._create(client, project, random_, number)) is not None:
                    open_[batch.id] = batch
                    if random_.random() < 0.15:
                        cancel_at[batch.id] = time.monotonic() + random_.uniform(1, 30)
            for batch_id in list(open_):
                batch = self._try("retrieve", lambda id_=batch_id: _retrieve(client, id_), seconds=5)
                if batch is None:
                    continue
                if batch.status in TERMINAL:
                    del open_[batch_id]
                    if (
                        getattr(batch, "error_file_id", None)  # a job has none
                        and random_.random() < 0.3
                        and (again := self._retry(client, project, batch))
                    ):
                        open_[again.id] = again
                elif time.monotonic() > cancel_at.get(batch_id, math.inf):
                    del cancel_at[batch_id]
                    self._try("cancel", lambda id_=batch_id: _cancel(client, id_), seconds=5)
            self._end.wait(0.5)

    def _create(self, client: openai.OpenAI, project: str, random_: random.Random, number: int) -> Any:
        model = random_.choice(SERVED)
        tag = f"{project}-{number}"
        job = number % JOBS == 2
        if job:
            lines = list(relay.rows(tag, random_.randint(20, 60)))
        else:
            lines = [_request(f"{tag}-{n}", model, random_) for n in range(random_.randint(20, 300))]
        window = f"{random_.randint(10, 60)}s" if random_.random() < 0.2 else "24h"
        content = "".join(json.dumps(line) + "\n" for line in lines).encode()
        file = self._try("upload", lambda: client.files.create(file=(f"{tag}.jsonl", content), purpose="batch"))
        if file is None:
            return None
        key = {"Idempotency-Key": uuid.UUID(int=random_.getrandbits(128)).hex}
        body = {"input_file_id": file.id, "endpoint": "/v1/chat/completions", "completion_window": window}
        if job:
            body = relay.body(file.id, model, completion_window=window)
        batch = self._try("create", lambda: _post(client, "/jobs" if job else "/batches", body, key))
        if batch is not None:
            self.sent.append(Sent(project, batch.id, tag))
        return batch

    def _retry(self, client: openai.OpenAI, project: str, batch: Any) -> Any:
        if batch.id in self.retried:
            return None
        self.retried.add(batch.id)
        key, body = {"Idempotency-Key": f"retry-{batch.id}"}, {"completion_window": "24h"}
        again = self._try("retry", lambda: _post(client, f"/batches/{batch.id}/retry", body, key))
        if again is not None:
            self.sent.append(Sent(project, again.id, None))
        return again

    def _try(self, operation: str, call: Callable[[], T], seconds: float = GIVE_UP_SECONDS) -> T | None:
        """Call until it succeeds, for `seconds`. A refusal (4xx) is final."""
        deadline = time.monotonic() + seconds
        while True:
            try:
                return call()
            except openai.APIStatusError as error:
                self.failures[operation, str(error.status_code)] += 1
                if error.status_code < 500 and error.status_code != 429:
                    if error.status_code != 409:
                        self.unclear.append(f"{operation}: {error.status_code} {error.message[:200]}")
                    return None
                if error.status_code not in (429, 503) and len(self.unclear) < 50:
                    self.unclear.append(f"{operation}: {error.status_code} {error.message[:200]}")
            except openai.APIError as error:
                self.failures[operation, type(error).__name__] += 1
            if time.monotonic() > deadline or self._end.wait(1.0):
                return None


class Work(BaseModel):
    """What is known of a batch or a job."""

    model_config = ConfigDict(extra="allow")
    id: str
    status: str


def _post(client: openai.OpenAI, path: str, body: dict[str, Any], headers: dict[str, str]) -> Work:
    return client.post(path, cast_to=Work, body=body, options={"headers": headers})


def _path(id_: str) -> str:
    return f"/jobs/{id_}" if id_.startswith("job_") else f"/batches/{id_}"


def _retrieve(client: openai.OpenAI, id_: str) -> Work:
    return client.get(_path(id_), cast_to=Work)


def _cancel(client: openai.OpenAI, id_: str) -> Work:
    return client.post(f"{_path(id_)}/cancel", cast_to=Work)


def _request(name: str, model: str, random_: random.Random) -> dict[str, Any]:
    """Return a request whose text is unlike every other's: its first word names it."""
    text = " ".join([name, *(f"w{random_.randrange(1000)}" for _ in range(random_.randrange(1, 12)))])
    body = {"model": model, "messages": [{"role": "user", "content": text}]}
    return {"custom_id": name, "method": "POST", "url": "/v1/chat/completions", "body": body}
