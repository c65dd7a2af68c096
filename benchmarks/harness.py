"""Shared by the benchmarks: a stack of their own, requests, facts about the machine, and the results' files."""

from __future__ import annotations

import json
import os
import platform
import random
import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path
from typing import Any

import psutil

from batchyard.cli import background
from batchyard.client.api import ApiClient
from batchyard.statuses import TERMINAL

CHAT = "/v1/chat/completions"
RESULTS = Path(__file__).parent / "results"


@contextmanager
def stack(models: str, settings: Mapping[str, str]) -> Iterator[tuple[ApiClient, Path]]:
    """Run a stack with these models (TOML) and settings until the block ends. Yield its client and data folder."""
    with tempfile.TemporaryDirectory(prefix="by-") as folder:
        data, file = Path(folder) / "data", Path(folder) / "models.toml"
        file.write_text(models)
        os.environ.update(settings)
        with background.stack(data, file) as server:
            yield server, data


Body = dict[str, Any]
Batch = dict[str, Any]
WORDS = ("wagon", "yard", "train", "load", "track", "switch", "signal", "cargo", "night", "depot", "rail", "crew")


def words(number: int, seed: int) -> str:
    return " ".join(random.Random(seed).choices(WORDS, k=number))


def chat(content: str, max_tokens: int, system: str | None = None) -> Body:
    messages = [{"role": "user", "content": content}]
    if system is not None:
        messages.insert(0, {"role": "system", "content": system})
    return {"messages": messages, "max_tokens": max_tokens, "temperature": 0, "ignore_eos": True}


def questions(number: int, model: str) -> Iterator[Body]:
    """Yield short chat requests that all differ."""
    for index in range(number):
        messages = [{"role": "user", "content": f"Question {index}: how many wagons are in the yard tonight?"}]
        yield {"model": model, "messages": messages, "max_tokens": 16}


def write_requests(path: Path, bodies: Iterable[Body], endpoint: str = CHAT) -> None:
    """Write a file of requests with the custom_ids r-0, r-1, …"""
    with path.open("w") as file:
        for index, body in enumerate(bodies):
            file.write(json.dumps({"custom_id": f"r-{index}", "method": "POST", "url": endpoint, "body": body}) + "\n")


def submit(
    server: ApiClient, folder: Path, bodies: Iterable[Body], *, endpoint: str = CHAT, window: str = "24h"
) -> Batch:
    """Create a batch of these requests."""
    return server.create(uploaded(server, folder, bodies, endpoint), endpoint=endpoint, completion_window=window)


def uploaded(server: ApiClient, folder: Path, bodies: Iterable[Body], endpoint: str = CHAT) -> str:
    """Upload a file of these requests; returns its id."""
    with tempfile.NamedTemporaryFile("w", dir=folder, suffix=".jsonl") as file:
        write_requests(Path(file.name), bodies, endpoint)
        return server.upload(Path(file.name))


def ended(server: ApiClient, batch_id: str) -> Batch:
    """Wait for a batch to complete, with a delay of a second or 2 % at most. Raises SystemExit if it ends otherwise."""
    started = time.monotonic()
    while (batch := server.batch(batch_id))["status"] not in TERMINAL:
        time.sleep(min(1, max(0.1, (time.monotonic() - started) / 50)))  # ten polls a second cost 5 % of two CPUs
    if batch["status"] != "completed":
        raise SystemExit(f"the batch ended as {batch['status']}: {batch}")
    return batch


def machine(*packages: str) -> dict[str, Any]:
    """Cores, memory, load before the benchmark, and the versions of Python and these packages."""
    return {
        "cores": os.cpu_count(),
        "memory GiB": round(psutil.virtual_memory().total / 2**30),
        "load before": round(os.getloadavg()[0], 1),
        "Python": platform.python_version(),
        **{name: version(name) for name in packages},
    }


def table(columns: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """A Markdown table."""
    lines = [columns, ["---"] * len(columns), *rows]
    return "\n".join(f"| {' | '.join(map(str, line))} |" for line in lines)


def write(name: str, report: Mapping[str, Any], *texts: str) -> None:
    """Write the report as `<name>.json`, and the tables and notes as `<name>.md`. Print the latter.

    `report["machine"]` is the value of `machine`.
    """
    facts = ", ".join(f"{key} {value}" for key, value in report["machine"].items())
    settings = "".join(f" {key}={value}" for key, value in report.get("settings", {}).items())
    text = "\n\n".join([*texts, f"{facts}.{settings}"]) + "\n"
    RESULTS.mkdir(exist_ok=True)
    (RESULTS / f"{name}.json").write_text(json.dumps(report) + "\n")
    (RESULTS / f"{name}.md").write_text(text)
    print(text)
