"""Each object of a watched folder is a batch once, whoever ticks, and its outcome is beside it."""

from __future__ import annotations

import gzip
import json
import os
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import fsspec
import pytest
from flask.testing import FlaskClient
from sqlalchemy import select, update

from batchyard.errors import UnavailableError
from store.records import Batch, Project, Schedule, ScheduleRun, WatchedObject, now
from tasks.context import AppContext
from tasks.intake import imports
from tasks.recurring import schedules, watching
from tests.support.messages import SentMessages
from tests.support.s3 import BUCKET, S3Server
from tests.support.stacks import a_chat
from tests.support.webapps import client_of, close_contexts, context_in

LINE = json.dumps(a_chat("one", "hello")).encode()
BATCH = {"endpoint": "/v1/chat/completions", "completion_window": "24h", "metadata": {"day": "{{date}}"}}


@pytest.fixture
def context(tmp_path: Path, sent: SentMessages) -> Iterator[AppContext]:
    prefixes = f"s3://{BUCKET}/, file://{tmp_path}/in/"
    yield context_in(tmp_path, input_prefixes=prefixes, output_prefixes=prefixes)
    close_contexts()


@pytest.fixture
def client(context: AppContext) -> FlaskClient:
    return client_of(context)


@pytest.fixture(params=["file", "s3"])
def folder(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """A folder of this machine, and one of a real S3 server."""
    if request.param == "file":
        yield f"file://{tmp_path}/in"
        return
    server: S3Server = request.getfixturevalue("s3_server")
    with pytest.MonkeyPatch.context() as patched:
        for name, value in server.environment.items():
            patched.setenv(name, value)
        yield f"s3://{BUCKET}/watched/{abs(hash(request.node.name))}"


def put(url: str, content: bytes = LINE) -> None:
    with fsspec.open(url, "wb", auto_mkdir=True) if url.startswith("file") else fsspec.open(url, "wb") as file:
        file.write(content)


def watch(client: FlaskClient, url: str, **fields: Any) -> Any:
    body = {"name": "inbox", "cron": "* * * * *", "input": {"watch": url}, "batch": BATCH, **fields}
    return client.post("/v1/schedules", json=body)


def tick(context: AppContext) -> None:
    """Make all schedules due, and run them until none is."""
    with context.database.write() as session:
        session.execute(update(Schedule).values(next_run_at=now()))
    while True:
        at = now()
        schedules.run_due(context, at)
        with context.database.read() as session:
            if session.scalar(select(Schedule.id).where(Schedule.next_run_at <= at)) is None:
                return


def names(context: AppContext) -> list[str]:
    with context.database.read() as session:
        return sorted(name or "" for name in session.scalars(select(Batch.name)))


def failures(context: AppContext) -> list[str]:
    with context.database.read() as session:
        return sorted(reason for reason in session.scalars(select(ScheduleRun.reason)) if reason)


def end_all(context: AppContext, status: str = "completed") -> None:
    with context.database.write() as session:
        session.execute(update(Batch).values(status=status, total=1, completed=1))


def outcome(url: str) -> Any:
    with fsspec.open(f"{url}.outcome.json", "rb") as file:
        return json.load(file)


def test_a_new_object_is_a_batch_once_a_rewritten_one_again_and_others_never(
    client: FlaskClient, context: AppContext, folder: str
) -> None:
    assert watch(client, f"{folder}/*.jsonl*").status_code == 200
    tick(context)
    assert names(context) == []
    for name in ("a.jsonl", "b.jsonl.gz", "c.csv", "_SUCCESS", ".a.jsonl", "deeper/d.jsonl", "empty.jsonl"):
        content = b"" if name.startswith("empty") else gzip.compress(LINE) if name.endswith("gz") else LINE
        put(f"{folder}/{name}", content)
    for _ in range(3):
        tick(context)
    assert names(context) == ["a.jsonl", "b.jsonl.gz"]
    put(f"{folder}/a.jsonl", LINE + b"\n" + LINE)
    for _ in range(2):
        tick(context)
    assert names(context) == ["a.jsonl", "a.jsonl", "b.jsonl.gz"] and failures(context) == []


def test_what_became_of_an_object_is_written_beside_it_and_is_no_object(
    client: FlaskClient, context: AppContext, folder: str
) -> None:
    schedule = watch(client, f"{folder}/*").json
    put(f"{folder}/good.jsonl")
    put(f"{folder}/bad.jsonl.gz", b"no gzip")
    tick(context)
    tick(context)
    assert outcome(f"{folder}/bad.jsonl.gz")["status"] == "failed"
    assert outcome(f"{folder}/bad.jsonl.gz")["reason"].startswith(
        "bad.jsonl.gz: The object bad.jsonl.gz cannot be read"
    )
    with pytest.raises(FileNotFoundError):
        outcome(f"{folder}/good.jsonl")  # its batch has not ended
    end_all(context)
    tick(context)
    (run,) = (run for run in client.get(f"/v1/schedules/{schedule['id']}/runs").json["data"] if run["batch_id"])
    assert outcome(f"{folder}/good.jsonl") == {
        "object": "good.jsonl",
        "schedule_id": schedule["id"],
        "status": "completed",
        "reason": None,
        "batch_id": run["batch_id"],
        "request_counts": {"total": 1, "completed": 1, "failed": 0},
        "errors": None,
    }
    tick(context)
    assert names(context) == ["good.jsonl"]


@pytest.mark.long
def test_many_objects_and_two_that_tick_make_each_batch_once(
    client: FlaskClient, context: AppContext, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watching, "AT_ONCE", 10)
    folder = f"file://{tmp_path}/in"
    watch(client, f"{folder}/*.jsonl")
    for number in range(35):
        put(f"{folder}/{number:03d}.jsonl", b"no line" if number % 10 == 3 else LINE)
    with ThreadPoolExecutor(2) as threads:
        list(threads.map(lambda _: tick(context), range(2)))
    tick(context)
    assert names(context) == [f"{number:03d}.jsonl" for number in range(35)]
    assert failures(context) == []
    end_all(context)
    tick(context)
    assert len(list((tmp_path / "in").glob("*.outcome.json"))) == 35


def test_a_limit_of_the_project_leaves_an_object_for_later(tmp_path: Path, sent: SentMessages) -> None:
    folder = f"file://{tmp_path}/in"
    context = context_in(tmp_path, input_prefixes=folder, output_prefixes=folder, max_unvalidated=2)
    watch(client_of(context), f"{folder}/*")
    for name in "abc":
        put(f"{folder}/{name}.jsonl")
    tick(context)
    assert names(context) == ["a.jsonl", "b.jsonl"]
    assert [reason.partition(". ")[0] for reason in failures(context)] == [
        "2 batches and jobs of this project wait to be validated, and 2 may"
    ]
    end_all(context, "cancelled")
    tick(context)
    assert names(context) == ["a.jsonl", "b.jsonl", "c.jsonl"]
    close_contexts()


def test_a_folder_that_the_operator_allows_no_more_is_neither_read_nor_written(
    tmp_path: Path, sent: SentMessages
) -> None:
    folder = f"file://{tmp_path}/in"
    context = context_in(tmp_path, input_prefixes=folder, output_prefixes=folder)
    watch(client_of(context), f"{folder}/*")
    put(f"{folder}/a.jsonl")
    tick(context)
    end_all(context)
    put(f"{folder}/b.jsonl")
    later = context_in(tmp_path, input_prefixes=folder)
    tick(later)
    assert names(later) == ["a.jsonl"] and sorted(path.name for path in (tmp_path / "in").iterdir()) == [
        "a.jsonl",
        "b.jsonl",
    ]
    assert [reason.partition(": ")[2] for reason in failures(later)] == [
        "none is allowed; the operator allows prefixes with BATCHYARD_OUTPUT_PREFIXES."
    ]
    close_contexts()


def test_an_object_that_cannot_be_read_keeps_no_other_from_its_turn(
    client: FlaskClient, context: AppContext, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = f"file://{tmp_path}/in"
    watch(client, f"{folder}/*.jsonl")
    for name in ("a", "b", "c"):
        put(f"{folder}/{name}.jsonl")
    whole = imports.one

    def one(context: AppContext, project_id: str, source: Any, stored: Any) -> Any:
        if stored.name == "a.jsonl":
            raise UnavailableError("the bucket cannot be read: Permission denied")
        if stored.name == "b.jsonl":
            raise UnavailableError("The bucket takes longer than 120 s to read.", code=imports.TOO_SLOW)
        return whole(context, project_id, source, stored)

    monkeypatch.setattr(imports, "one", one)
    for _ in range(2):
        tick(context)
    assert names(context) == ["c.jsonl"]
    reasons = failures(context)
    assert set(reasons) == {
        "a.jsonl: the bucket cannot be read: Permission denied",
        "b.jsonl: The bucket takes longer than 120 s to read.",
    }
    assert sum(reason.startswith("b.jsonl") for reason in reasons) == 1, "it has had its turn"
    assert outcome(f"{folder}/b.jsonl")["status"] == "failed"
    monkeypatch.setattr(imports, "one", whole)
    tick(context)
    assert names(context) == ["a.jsonl", "c.jsonl"]


def test_odd_names_harm_no_other_object(client: FlaskClient, context: AppContext, tmp_path: Path) -> None:
    folder = f"file://{tmp_path}/in"
    watch(client, f"{folder}/*")
    long = f"{'n' * 245}.jsonl"
    put(f"{folder}/good.jsonl")
    for name in (b"\xff\xfe.jsonl", long.encode()):
        Path(os.fsdecode(bytes(tmp_path / "in") + b"/" + name)).write_bytes(LINE)
    tick(context)
    end_all(context)
    for _ in range(2):
        tick(context)
    assert names(context) == ["good.jsonl", long]
    assert failures(context) == ["\ufffd\ufffd.jsonl: Its name is not UTF-8; rename it."]
    assert outcome(f"{folder}/good.jsonl")["status"] == "completed"
    assert outcome(f"{folder}/\ufffd\ufffd.jsonl")["status"] == "failed"
    with context.database.read() as session:
        assert session.scalars(select(WatchedObject).where(~WatchedObject.told)).all() == []


def test_a_full_project_leaves_an_object_for_later(tmp_path: Path, sent: SentMessages) -> None:
    folder = f"file://{tmp_path}/in"
    full = context_in(tmp_path, input_prefixes=folder, output_prefixes=folder, max_stored_bytes=10)
    watch(client_of(full), f"{folder}/*")
    put(f"{folder}/a.jsonl")
    tick(full)
    assert names(full) == [] and "storage quota" in failures(full)[0]
    with full.database.write() as session:
        session.execute(update(Project).values(max_stored_bytes=10**6))
    tick(full)
    assert names(full) == ["a.jsonl"]
    close_contexts()


def test_names_that_nearly_fit_a_pattern_cost_no_more_than_others(
    client: FlaskClient, context: AppContext, tmp_path: Path
) -> None:
    folder = f"file://{tmp_path}/in"
    watch(client, f"{folder}/*a*a*b")
    for number in range(1500):
        put(f"{folder}/{number}{'a' * 240}")
    put(f"{folder}/xaxab", LINE)
    began = time.process_time()
    tick(context)
    assert names(context) == ["xaxab"]
    assert time.process_time() - began < 40


def test_what_a_watching_schedule_writes_is_not_watched(
    client: FlaskClient, context: AppContext, tmp_path: Path
) -> None:
    url = f"file://{tmp_path}/in"
    step = {"step": "export", "url": f"{url}/", "format": "jsonl"}
    refused = watch(client, f"{url}/*.jsonl", batch=BATCH | {"post_process": [step]})
    assert (refused.status_code, refused.json["error"]["param"]) == (400, "post_process"), refused.text
    assert "export to another folder" in refused.json["error"]["message"]
    schedule = watch(client, f"{url}/*.jsonl", batch=BATCH | {"post_process": [step | {"url": f"{url}/out/"}]})
    assert schedule.status_code == 200, schedule.text
    changed = client.post(f"/v1/schedules/{schedule.json['id']}", json={"batch": BATCH | {"post_process": [step]}})
    assert (changed.status_code, changed.json["error"]["param"]) == (400, "post_process")


@pytest.mark.parametrize(
    ("url", "status", "message"),
    [
        ("file://{in}/", 400, "has to end in a pattern of names"),
        ("file://{in}/*a*b*c*", 400, "at most 3 stars"),
        ("file://{in}/*/a.jsonl", 403, "without '*'"),
        ("file://{in}/../*.jsonl", 403, "without '/../'"),
        ("s3://elsewhere/*.jsonl", 403, "cannot be read here"),
        ("file://{in}/readable/*", 403, "cannot be written here"),
    ],
)
def test_a_folder_that_cannot_be_watched_is_refused(
    tmp_path: Path, sent: SentMessages, url: str, status: int, message: str
) -> None:
    inside, outside = f"file://{tmp_path}/in/", f"file://{tmp_path}/in/readable/"
    context = context_in(tmp_path, input_prefixes=f"{inside}, {outside}", output_prefixes=f"file://{tmp_path}/out/")
    if "readable" not in url:
        context = context_in(tmp_path, input_prefixes=inside, output_prefixes=inside)
    refused = watch(client_of(context), url.replace("{in}", f"{tmp_path}/in"))
    assert refused.status_code == status, refused.text
    assert message in refused.json["error"]["message"] and refused.json["error"]["param"] == "input.watch"
    close_contexts()


def test_a_watching_schedule_has_no_other_overlap_and_is_not_run_by_hand(
    client: FlaskClient, context: AppContext, tmp_path: Path
) -> None:
    url = f"file://{tmp_path}/in/*.jsonl"
    refused = watch(client, url, overlap="cancel_previous")
    assert refused.status_code == 400 and refused.json["error"]["param"] == "overlap"
    schedule = watch(client, url).json
    assert (schedule["overlap"], schedule["input"]["kind"], schedule["input"]["url"]) == ("allow", "watch", url)
    by_hand = client.post(f"/v1/schedules/{schedule['id']}/run")
    assert by_hand.status_code == 409 and "put an object there" in by_hand.json["error"]["message"]
    assert client.delete(f"/v1/schedules/{schedule['id']}").status_code == 200
