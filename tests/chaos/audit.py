"""The audit at the end of a campaign: every batch and job has ended, every line and item is there once, and the numbers
agree."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import httpx
import openai

from batchyard.statuses import TERMINAL
from tests.chaos import relay
from tests.chaos.deployment import PROJECTS, Deployment
from tests.chaos.monitor import CallLog

OF_ENDINGS = {"cancelled": "batch_cancelled", "expired": "batch_expired"}
"""The error code of lines that have no answer, by the status of their batch."""


@dataclass
class Audit:
    """What became of all batches and jobs.

    Attributes:
        ends: batches by status. Those of jobs are among them.
        jobs: jobs by status.
        items: items of jobs, by state.
        lost, doubled: lines of inputs that no file has, and that are there more than once.
        codes: error lines by status of the batch and code.
        wrong: everything else that is not as it must be.
        answered, calls: requests that an echo engine has answered, and that its log says it ran.
        invented: answers without a call.
        redone: calls more than answers, of batches that were completed.
        abandoned: the same of batches that were cancelled or expired.
    """

    ends: Counter[str] = field(default_factory=Counter)
    jobs: Counter[str] = field(default_factory=Counter)
    items: Counter[str] = field(default_factory=Counter)
    lines: int = 0
    lost: int = 0
    doubled: int = 0
    not_ended: int = 0
    codes: Counter[tuple[str, str]] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)
    answered: int = 0
    calls: int = 0
    invented: int = 0
    redone: int = 0
    abandoned: int = 0

    @property
    def clean(self) -> bool:
        return not (self.lost or self.doubled or self.not_ended or self.invented or self.wrong)


def audit(deployment: Deployment, calls: CallLog, sent: list[str]) -> Audit:
    """Look at every batch of every project, and at the engines' own logs."""
    result = Audit()
    answers: Counter[str] = Counter()
    ended_early: set[str] = set()
    there = set()
    for project in PROJECTS:
        client = deployment.client(project)
        for batch in client.batches.list(limit=100):
            there.add(batch.id)
            _batch(result, client, batch, answers, ended_early)
        for job in _jobs(client):
            there.add(job["id"])
            _job(result, client, job)
    result.wrong += [f"{id_}: created and not listed" for id_ in sent if id_ not in there]
    result.answered = sum(answers.values())
    result.calls = sum(calls.counts.values())
    for name in calls.counts.keys() | answers.keys():
        more = calls.counts.get(name, 0) - answers[name]
        result.invented += max(0, -more)
        if name in ended_early:
            result.abandoned += max(0, more)
        else:
            result.redone += max(0, more)
    return result


def _batch(result: Audit, client: openai.OpenAI, batch: Any, answers: Counter[str], ended_early: set[str]) -> None:
    result.ends[batch.status] += 1
    if batch.status not in TERMINAL:
        result.not_ended += 1
        return
    inputs = {line["custom_id"]: line for line in _lines(client, batch.input_file_id)}
    result.lines += len(inputs)
    good, bad = _lines(client, batch.output_file_id), _lines(client, batch.error_file_id)
    if batch.in_progress_at is None:  # it was over before it was validated: it has no lines
        if batch.status == "failed" and batch.failed_at < batch.expires_at:
            result.wrong.append(f"{batch.id}: failed within its window: {batch.errors}")
        return
    texts = {name: line["body"]["messages"][0]["content"] for name, line in inputs.items()}
    there = Counter(line["custom_id"] for line in good + bad)
    result.lost += sum(name not in there for name in inputs)
    result.doubled += sum(number - 1 for number in there.values() if number > 1)

    def expect(condition: bool, what: str) -> None:
        if not condition:
            result.wrong.append(f"{batch.id} ({batch.status}): {what}")

    expect(there.keys() <= inputs.keys(), "answers to lines that the input does not have")
    counts = batch.request_counts
    expect(counts.total == len(inputs), f"total is {counts.total}, lines {len(inputs)}")
    expect(counts.completed == len(good), f"completed is {counts.completed}, lines of the output file {len(good)}")
    codes = Counter((line["error"] or {}).get("code") or str(line["response"]["status_code"]) for line in bad)
    failed = len(bad) - sum(codes[code] for code in OF_ENDINGS.values())
    expect(counts.failed == failed, f"failed is {counts.failed}, failed lines of the error file {failed}")
    result.codes.update({(batch.status, code): number for code, number in codes.items()})
    for status, code in OF_ENDINGS.items():
        expect(code not in codes or batch.status == status, f"{codes[code]} lines say {code}")
    expect("engine_unavailable" not in codes, f"{codes['engine_unavailable']} lines say engine_unavailable")
    tokens = Counter[str]()
    for line in good:
        body, text = line["response"]["body"], texts[line["custom_id"]]
        tokens["input"] += body["usage"]["prompt_tokens"]
        tokens["output"] += body["usage"]["completion_tokens"]
        expect(body["choices"][0]["message"]["content"] == text, f"{line['custom_id']} has another's answer")
    usage = (batch.usage.input_tokens, batch.usage.output_tokens)
    expect(usage == (tokens["input"], tokens["output"]), f"usage is {usage}, tokens of its lines {dict(tokens)}")
    for line in good + [line for line in bad if line["response"] is not None]:
        answers[_name(texts[line["custom_id"]])] += 1
    if batch.status != "completed":
        ended_early |= set(map(_name, texts.values()))


def _name(text: str) -> str:
    """Return the name of a request, by which the engines' log knows it: its first word."""
    return text.partition(" ")[0]


def _jobs(client: openai.OpenAI) -> list[dict[str, Any]]:
    page = client.get("/jobs", cast_to=httpx.Response, options={"params": {"limit": 100}}).json()
    assert not page["has_more"], "a campaign has no more than 100 jobs of a project"
    return list(page["data"])


def _job(result: Audit, client: openai.OpenAI, job: dict[str, Any]) -> None:
    """Look at the results of a job. Its requests are those of its batches."""
    result.jobs[job["status"]] += 1
    if job["status"] not in TERMINAL:
        result.not_ended += 1
        return
    rows = {row["custom_id"]: row["prompt"] for row in _lines(client, job["input_file_id"])}
    files = {entry["name"]: entry["file_id"] for entry in job["batchyard"]["artifacts"]}
    counts = job["request_counts"]

    def expect(condition: bool, what: str) -> None:
        if not condition:
            result.wrong.append(f"{job['id']} ({job['status']}): {what}")

    if job["in_progress_at"] is None:  # it was over before it was validated: it has no items
        expect(job["status"] != "failed" or job["failed_at"] >= job["expires_at"], f"errors {job['errors']}")
        return
    expect(job["status"] in ("completed", *OF_ENDINGS), f"errors {job['errors']}")
    items = _lines(client, files.get("results.jsonl"))
    there = Counter(item["custom_id"] for item in items)
    result.lost += sum(name not in there for name in rows)
    result.doubled += sum(number - 1 for number in there.values() if number > 1)
    expect(there.keys() <= rows.keys(), "items that the input does not have")
    states = Counter(item["state"] for item in items)
    expected = {state: len(rows) if state == "total" else states[state] for state in counts}
    expect(counts == expected, f"counts are {counts}, items {dict(states)}")
    expect(states.keys() <= {"completed", "failed", job["status"]}, f"items are {dict(states)}")
    result.items += states
    for item in items:
        if item["state"] == "completed":
            right = relay.result(item["custom_id"]).items() <= item["result"].items()
            expect(right, f"the result of {item['custom_id']} is {item['result']}")


def _lines(client: openai.OpenAI, file_id: str | None) -> list[dict[str, Any]]:
    if file_id is None:
        return []
    return [json.loads(line) for line in client.files.content(file_id).content.splitlines()]
