"""A short campaign loses nothing; and the campaign's own parts would notice if one did."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from batchyard.local import ports
from tests.chaos import audit, campaign, faults, hosts, relay
from tests.chaos.monitor import CallLog
from tests.support.rows import until
from tests.support.s3 import S3Server, answers
from tests.support.stacks import ROOT, a_chat

SECONDS = 25.0


@pytest.mark.timeout(600)
@pytest.mark.exhaustive
def test_nothing_is_lost_whatever_fails_on_three_hosts() -> None:
    if reason := hosts.missing():
        pytest.skip(reason)
    result = campaign.run(SECONDS / 60, seed=4, gap=3.0, light=True)
    print(result.markdown())
    assert not result.problems
    assert len(result.injector.faults) >= 4
    assert result.audit.lines > 250
    assert result.audit.items["completed"] >= 10


def test_a_seed_always_makes_the_same_plan_and_all_kinds_come_in_it() -> None:
    planned = faults.plan(7, 600, 4.0)
    assert planned == faults.plan(7, 600, 4.0) != faults.plan(8, 600, 4.0)
    assert {fault.kind for fault in planned} == faults.kinds().keys()
    assert len(planned) > 100
    assert max(fault.at + fault.seconds for fault in planned) <= 600


class Client:
    """An API that has one batch, or one job: its files are lists of lines."""

    def __init__(self, status: str = "completed", **files: list[dict[str, Any]]) -> None:
        self._files = files
        good, bad = len(files["output"]), len(files["error"])
        self.batch = SimpleNamespace(
            id="batch_1",
            status=status,
            in_progress_at=1,
            **{f"{name}_file_id": name for name in ("input", "output", "error")},
            request_counts=SimpleNamespace(total=len(files["input"]), completed=good, failed=bad),
            usage=SimpleNamespace(input_tokens=good, output_tokens=good),
        )
        self.files = SimpleNamespace(content=self._content)
        self.batches = SimpleNamespace(list=lambda limit: [self.batch])
        self.jobs: list[dict[str, Any]] = []

    def get(self, path: str, **_: Any) -> SimpleNamespace:
        assert path == "/jobs"
        return SimpleNamespace(json=lambda: {"data": self.jobs, "has_more": False})

    def _content(self, file_id: str) -> SimpleNamespace:
        return SimpleNamespace(content="".join(json.dumps(line) + "\n" for line in self._files[file_id]).encode())


def answer(name: str, text: str = "") -> dict[str, Any]:
    usage = {"prompt_tokens": 1, "completion_tokens": 1}
    body = {"choices": [{"message": {"content": text or name}}], "usage": usage}
    return {"custom_id": name, "response": {"status_code": 200, "body": body}, "error": None}


def failure(name: str, code: str) -> dict[str, Any]:
    return {"custom_id": name, "response": None, "error": {"code": code, "message": ""}}


def audited(calls: dict[str, int], monkeypatch: pytest.MonkeyPatch, **options: Any) -> audit.Audit:
    options["input"] = [a_chat(name, name, model="quick") for name in ("a", "b", "c")]
    client = Client(**options)
    monkeypatch.setattr(audit, "PROJECTS", ("north",))
    log = CallLog([])
    log.counts.update(calls)
    deployment: Any = SimpleNamespace(client=lambda _: client)
    return audit.audit(deployment, log, ["batch_1"])


ONCE = {"a": 1, "b": 1, "c": 1}


def test_the_audit_finds_nothing_wrong_where_every_line_is_there_once(monkeypatch: pytest.MonkeyPatch) -> None:
    result = audited({**ONCE, "b": 3}, monkeypatch, output=[answer("a"), answer("b"), answer("c")], error=[])
    assert result.clean
    assert (result.lines, result.answered, result.calls, result.redone) == (3, 3, 5, 2)


@pytest.mark.parametrize(
    ("what", "output", "error", "calls"),
    [
        ("lost", [answer("a"), answer("b")], [], ONCE),
        ("doubled", [answer("a"), answer("b"), answer("c"), answer("c")], [], {**ONCE, "c": 2}),
        ("invented", [answer("a"), answer("b"), answer("c")], [], {"a": 1, "b": 1}),
        ("wrong", [answer("a"), answer("b", "another's"), answer("c")], [], ONCE),
        ("wrong", [answer("a"), answer("b")], [failure("c", "batch_expired")], ONCE),
        ("wrong", [answer("a"), answer("b")], [failure("c", "engine_unavailable")], ONCE),
    ],
)
def test_the_audit_notices(
    what: str,
    output: list[dict[str, Any]],
    error: list[dict[str, Any]],
    calls: dict[str, int],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    result = audited(calls, monkeypatch, output=output, error=error)
    assert getattr(result, what)
    assert not result.clean


def audited_job(monkeypatch: pytest.MonkeyPatch, counted: int, *items: dict[str, Any]) -> audit.Audit:
    """The audit of a job with two rows, of which `counted` have completed, with these results."""
    client = Client(input=list(relay.rows("t", 2)), output=[], error=list(items))
    client.batches = SimpleNamespace(list=lambda limit: [])
    states = ("failed", "stuck", "expired", "cancelled")
    counts = {"total": 2, "completed": counted, **dict.fromkeys(states, 0)}
    files = [{"name": "results.jsonl", "file_id": "error"}]
    job = {"id": "job_1", "status": "completed", "in_progress_at": 1, "input_file_id": "input", "errors": None}
    client.jobs = [{**job, "request_counts": counts, "batchyard": {"artifacts": files}}]
    monkeypatch.setattr(audit, "PROJECTS", ("north",))
    deployment: Any = SimpleNamespace(client=lambda _: client)
    return audit.audit(deployment, CallLog([]), ["job_1"])


def item(name: str, **changes: Any) -> dict[str, Any]:
    return {"custom_id": name, "state": "completed", "result": relay.result(name) | changes}


def test_the_audit_finds_nothing_wrong_in_a_job_whose_items_are_there_once(monkeypatch: pytest.MonkeyPatch) -> None:
    result = audited_job(monkeypatch, 2, item("q0"), item("q1"))
    assert result.clean
    assert (dict(result.jobs), dict(result.items)) == ({"completed": 1}, {"completed": 2})


@pytest.mark.parametrize(
    ("what", "counted", "items"),
    [
        ("lost", 1, [item("q0")]),
        ("doubled", 3, [item("q0"), item("q1"), item("q1")]),
        ("wrong", 1, [item("q0"), item("q1")]),
        ("wrong", 2, [item("q0"), item("q1", text="another's")]),
        ("wrong", 1, [item("q0"), {**item("q1"), "state": "expired"}]),
    ],
)
def test_the_audit_of_a_job_notices(
    what: str, counted: int, items: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    result = audited_job(monkeypatch, counted, *items)
    assert getattr(result, what)
    assert not result.clean


def test_the_proxy_passes_requests_on_and_refuses_them_while_the_file_exists(
    s3_server: S3Server, tmp_path: Path
) -> None:
    port, refuse = ports.free(), tmp_path / "refuse"
    target = s3_server.endpoint.removeprefix("http://")
    command = [sys.executable, "-m", "tests.chaos.s3_proxy", f"127.0.0.1:{port}", target, str(refuse)]
    proxy = subprocess.Popen(command, cwd=ROOT)
    url = f"http://127.0.0.1:{port}"
    try:
        deadline = time.monotonic() + 180
        while not answers(url):
            assert time.monotonic() < deadline
            time.sleep(0.05)
        kept = socket.create_connection(("127.0.0.1", port))
        kept.sendall(b"GET / HTTP/1.1\r\nHost: s3\r\n\r\n")
        assert kept.recv(12) == b"HTTP/1.1 403"
        refuse.touch()
        with pytest.raises(urllib.error.HTTPError) as refused:
            urllib.request.urlopen(url)
        assert refused.value.code == 503
        kept.settimeout(60)
        with pytest.raises(ConnectionError):  # a connection that is open cannot be used on
            while kept.recv(1000):
                pass
            raise ConnectionResetError
        refuse.unlink()
        until(lambda: answers(url))
    finally:
        proxy.kill()
        proxy.wait()
