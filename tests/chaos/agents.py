"""A job of recipe agent for campaigns: 8 turns an item, with tools that note their calls.

Engine `echo` says what a tool has returned, and so calls what stands in it. A request's name is the first word of its
last message: `run1-3.7` is the first of an item, `run1-3.0` its last, which calls nothing. A call between two of them
is of tool `count`, which may be made again, or of `book`, which may not. An item whose booking was interrupted is told
so, says it, and is done: it makes none of the requests behind that one.
"""

from __future__ import annotations

import io
import json
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
from sqlalchemy.orm import Session

from store.artifacts import Artifacts
from store.formats import job_chunks
from store.jobs import chunk_records
from tests.chaos.program import Program

ITEMS = 200
TURNS = 8
LOG = "tools"
INTERRUPTED = "interrupted"
"""The name of each request behind an interrupted booking: its text is the error, which does not say whose it is."""
MODELS = """
[models.echo]
engine = "echo"
max_in_flight = 64
engine_args = { latency_ms = 500, call_log = "{calls}/calls" }
"""
TOOLS = '''
import json
import os
import time

from batchyard.recipes import tool


def reply(name, left):
    if left == 0:
        return f"{name}.0 done"
    call = {"name": "book" if left % 3 == 0 else "count", "arguments": {"name": name, "left": left}}
    return f"{name}.{left} <tool_call>{json.dumps(call)}</tool_call>"


def noted(kind, name, left, key):
    log = os.open("{calls}/tools", os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    os.write(log, f"{name}.{left} {kind} {key}\\n".encode())
    os.close(log)
    time.sleep(0.2)
    return reply(name, left - 1)


@tool("count", "retriable")
def count(name: str, left: int, idempotency_key: str) -> str:
    """Count one down."""
    return noted("count", name, left, idempotency_key)


@tool("book", "once")
def book(name: str, left: int, idempotency_key: str) -> str:
    """Count one down, as a booking does that must not be made twice."""
    return noted("book", name, left, idempotency_key)
'''


def tool_of(left: int) -> str:
    """Return the tool that a turn with so many left calls."""
    return "book" if left % 3 == 0 else "count"


def rows(items: int, tag: str) -> Iterator[dict[str, Any]]:
    """Yield the rows of a job whose requests' names begin with this tag."""
    left = TURNS - 1
    for number in range(items):
        call = {"name": tool_of(left), "arguments": {"name": f"{tag}-{number}", "left": left}}
        prompt = f"{tag}-{number}.{left} <tool_call>{json.dumps(call)}</tool_call>"
        yield {"custom_id": f"q{number}", "prompt": prompt}


def requests(items: int, tag: str) -> Counter[str]:
    """Return how often each request of such a job is made, if no call is interrupted."""
    return Counter(f"{tag}-{number}.{left}" for number in range(items) for left in range(TURNS))


def body(file_id: str) -> dict[str, Any]:
    """Return the body of POST /v1/jobs for a file of these rows."""
    options = {"model": "echo", "tools": ["count", "book"], "max_turns": TURNS + 1}
    return {"recipe": "agent", "input_file_id": file_id, "options": options}


def name_of(log: Path, line: str) -> str:
    """Return the name of the request that a line of a log belongs to. Each request has one such line."""
    if log.name == LOG:
        return ""
    return line.partition(" ")[0] if "-" in line.partition(".")[0] else INTERRUPTED


def interrupted(line: bytes) -> tuple[str, int] | None:
    """Return number and turns of an item whose booking was interrupted, by its line of the results; None of others."""
    item = json.loads(line)
    errors = [use["error"] for turn in item["result"].get("turns", ()) for use in turn["tool_calls"]]
    return (item["custom_id"][1:], len(item["result"]["turns"])) if "interrupted" in errors else None


def program(items: int = ITEMS) -> Program:
    """Return the job that a campaign of kills runs again and again."""
    return Program(
        summary=f"recipe agent: {TURNS} turns, tools that may be called again and tools that may not",
        models=MODELS,
        logs=("calls", LOG),
        rows=partial(rows, items),
        requests=partial(requests, items),
        ends=Counter(completed=items),
        body=body,
        artifacts=("results.jsonl",),
        name_of=name_of,
        files={"tools.py": TOOLS},
        interrupted=interrupted,
    )


@dataclass
class ToolAudit:
    """What the tools have noted, and what is recorded of their calls.

    Attributes:
        made: how often each call was made, by tool and key, of the run under way.
        in_flight: calls that were begun and not recorded as ended, at the kills.
    """

    log: Path
    artifacts: Artifacts
    made: Counter[tuple[str, str]] = field(default_factory=Counter)
    in_flight: int = 0
    interrupted: int = 0
    _known: dict[str, int] = field(default_factory=dict)

    def begin(self) -> None:
        """Begin a run."""
        self.log.write_text("")
        self.made.clear()
        self.in_flight = self.interrupted = 0

    def note_kill(self, session: Session, job_id: str) -> None:
        """Count the calls that a kill may cut off."""
        chunks = chunk_records.of_job(session, job_id, "judgement")
        for chunk in chunks:
            if chunk.sha256 not in self._known:
                kinds = job_chunks.read(self.artifacts, chunk.sha256, ["kind"])["kind"].to_pylist()
                self._known[chunk.sha256] = kinds.count(job_chunks.CALLED)
        ended = sum(self._known[chunk.sha256] for chunk in chunks)
        self.in_flight += max(0, len(self.log.read_text().splitlines()) - ended)

    def wrong(self, journal: bytes) -> list[str]:
        """Return what is wrong with the calls of a job that has ended, by its journal."""
        for line in self.log.read_text().splitlines():
            _, tool, key = line.split()
            self.made[tool, key] += 1
        begun: set[tuple[str, str]] = set()
        ended: dict[str, bool] = {}
        for row in pq.read_table(io.BytesIO(journal)).to_pylist():
            if row["kind"] == job_chunks.CALL:
                value = json.loads(row["value"])
                begun.add((value["tool"], value["key"]))
            elif row["kind"] == job_chunks.CALLED:
                value = json.loads(row["value"])
                ended[value["key"]] = value["ok"]
                self.interrupted += not value["ok"]
        again = sum(number - 1 for (tool, _), number in self.made.items() if tool == "count")
        problems = {
            "calls were made and not recorded": self.made.keys() - begun,
            "calls were recorded, and their end was not": {call for call in begun if call[1] not in ended},
            "calls have an outcome, and were never made": {
                (tool, key) for tool, key in begun if ended.get(key) and not self.made[tool, key]
            },
            "calls to be made once were made again": {
                call for call, number in self.made.items() if call[0] == "book" and number > 1
            },
        }
        wrong = [f"{len(calls)} {what}: {sorted(calls)[:3]}" for what, calls in problems.items() if calls]
        if again > self.in_flight:
            wrong.append(f"{again} calls were made again, {self.in_flight} in flight at the kills")
        return wrong
