"""Objects of a real S3 server become the inputs of batches, jobs and schedules, below the prefixes of the operator."""

from __future__ import annotations

import gzip
import json
import tracemalloc
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import fsspec
import pytest
from flask.testing import FlaskClient

from batchyard.errors import ConfigurationError, UnavailableError
from batchyard.settings import load
from store import projects
from store.intake.buckets import Bucket
from store.records import File
from tasks.context import AppContext
from tasks.intake import imports
from tests.support.messages import SentMessages
from tests.support.s3 import BUCKET, S3Server
from tests.support.stacks import a_chat
from tests.support.webapps import client_of, close_contexts, context_in, project_of

LINES = [json.dumps(a_chat(f"r{number}", "hello")).encode() for number in range(3)]
BATCH = {"endpoint": "/v1/chat/completions", "completion_window": "24h"}


@pytest.fixture(scope="module")
def credentials(s3_server: S3Server) -> Iterator[None]:
    """The deployment's, in the environment."""
    with pytest.MonkeyPatch.context() as patched:
        for name, value in s3_server.environment.items():
            patched.setenv(name, value)
        yield


@pytest.fixture
def folder(request: pytest.FixtureRequest, credentials: None) -> str:
    """The URL of a folder with two objects of requests, and some that are no data."""
    url = f"s3://{BUCKET}/in/{abs(hash(request.node.name))}"
    put(f"{url}/a.jsonl", LINES[0] + b"\n" + LINES[1])
    put(f"{url}/b/c.jsonl.gz", gzip.compress(LINES[2] + b"\n"))
    put(f"{url}/_SUCCESS", b"done")
    put(f"{url}/empty.jsonl", b"")
    put(f"{url}-beside/d.jsonl", b"not of the folder")
    return url


@pytest.fixture
def context(tmp_path: Path, sent: SentMessages) -> Iterator[AppContext]:
    yield context_in(
        tmp_path, input_prefixes=f"s3://{BUCKET}/in/, s3://{BUCKET}/of/{{project}}/", max_file_bytes=1 << 26
    )
    close_contexts()


@pytest.fixture
def client(context: AppContext) -> FlaskClient:
    return client_of(context)


def put(url: str, content: bytes) -> None:
    with fsspec.open(url, "wb") as file:
        file.write(content)


def content_of(context: AppContext, file_id: str) -> bytes:
    with context.database.read() as session:
        return context.artifacts.read(session.get_one(File, file_id).sha256)


def error(answer: Any) -> tuple[int, str, str]:
    document = answer.json["error"]
    return answer.status_code, document["code"], document["message"]


def test_the_objects_of_a_folder_are_one_file_or_a_file_each(
    client: FlaskClient, context: AppContext, folder: str
) -> None:
    body = {"url": folder + "/", "purpose": "batch"}
    (whole,) = client.post("/v1/imports", json=body).json["data"]
    assert content_of(context, whole["id"]) == b"".join(line + b"\n" for line in LINES)
    assert whole["filename"] == f"{folder.rpartition('/')[2]}.jsonl" and whole["purpose"] == "batch"
    each = client.post("/v1/imports", json=body | {"join": False}).json["data"]
    assert [file["filename"] for file in each] == ["a.jsonl", "c.jsonl"]
    assert [content_of(context, file["id"]) for file in each] == [LINES[0] + b"\n" + LINES[1], LINES[2] + b"\n"]


def test_a_batch_of_a_url_is_as_one_of_a_file(client: FlaskClient, context: AppContext, folder: str) -> None:
    body = BATCH | {"input_url": folder}
    answer = client.post("/v1/batches", json=body, headers={"Idempotency-Key": "once"})
    assert answer.status_code == 200, answer.text
    assert content_of(context, answer.json["input_file_id"]) == b"".join(line + b"\n" for line in LINES)
    put(f"{folder}/z.jsonl", LINES[0])
    again = client.post("/v1/batches", json=body, headers={"Idempotency-Key": "once"})
    assert again.json["id"] == answer.json["id"]
    one = client.post("/v1/batches", json=BATCH | {"input_url": f"{folder}/a.jsonl"}).json
    assert content_of(context, one["input_file_id"]) == LINES[0] + b"\n" + LINES[1]
    both = client.post("/v1/batches", json=body | {"input_file_id": "file-1"})
    assert "the batch has another input already" in error(both)[2]


def test_parts_of_a_folder_that_number_their_requests_alike_are_one_batch_of_all(
    client: FlaskClient, context: AppContext, folder: str
) -> None:
    large = 2**70
    for name in ("c#d", "Q3 [final] 100%", "ü"):
        put(f"{folder}/n/{name}.jsonl", LINES[0][:-1] + f', "amount": {large}'.encode() + b"}\r\n\n" + LINES[1])
    (whole,) = client.post("/v1/imports", json={"url": f"{folder}/n", "purpose": "batch"}).json["data"]
    rows = [json.loads(line) for line in content_of(context, whole["id"]).splitlines()]
    names = ["", "c#d.jsonl:", "ü.jsonl:"]
    assert [row["custom_id"] for row in rows] == [f"{name}{one}" for name in names for one in ("r0", "r1")]
    assert {row.get("amount") for row in rows} == {large, None} and all(row["body"] == rows[0]["body"] for row in rows)
    put(f"{folder}/n/a.jsonl", LINES[2] + b"\n" + LINES[2])
    (whole,) = client.post("/v1/imports", json={"url": f"{folder}/n", "purpose": "batch"}).json["data"]
    rows = [json.loads(line) for line in content_of(context, whole["id"]).splitlines()]
    assert [row["custom_id"] for row in rows].count("r2") == 2, "those of one object are for the validation"


def test_nothing_beside_the_allowed_prefixes_is_read(client: FlaskClient) -> None:
    for url in (
        f"s3://{BUCKET}/out/a.jsonl",
        f"s3://{BUCKET}/input/a.jsonl",
        f"s3://{BUCKET}/in/../out/a.jsonl",
        f"s3://{BUCKET}/in/*.jsonl",
        f"s3://{BUCKET}/of/another-project/a.jsonl",
        "s3://other/in/a.jsonl",
        f"simplecache::s3://{BUCKET}/in/a.jsonl",
        "file:///etc/passwd",
        "/etc/passwd",
        "http://127.0.0.1/in/",
    ):
        status, _, message = error(client.post("/v1/imports", json={"url": url, "purpose": "batch"}))
        assert status == 403 and "cannot be read here: allowed are URLs below s3://" in message, url
        answer = client.post("/v1/batches", json=BATCH | {"input_url": url})
        assert (answer.status_code, answer.json["error"]["param"]) == (403, "input_url"), url


@pytest.mark.usefixtures("credentials")
def test_a_prefix_may_be_that_of_each_project(client: FlaskClient, context: AppContext) -> None:
    url = f"s3://{BUCKET}/of/{project_of(context)}/a.jsonl"
    put(url, LINES[0])
    assert client.post("/v1/imports", json={"url": url, "purpose": "user_data"}).status_code == 200


def test_no_url_is_read_unless_the_operator_says_so(tmp_path: Path) -> None:
    client = client_of(context_in(tmp_path))
    answer = client.post("/v1/imports", json={"url": f"s3://{BUCKET}/in/", "purpose": "batch"})
    assert "the operator allows prefixes with BATCHYARD_INPUT_PREFIXES" in error(answer)[2]
    for prefixes in ("http://host/", "s3:/bucket", "bucket/in", "s3://"):
        with pytest.raises(ConfigurationError, match="is no prefix of a bucket"):
            load(data=tmp_path, input_prefixes=prefixes)


def test_what_cannot_be_an_input_says_why(context: AppContext, folder: str, monkeypatch: pytest.MonkeyPatch) -> None:
    client = client_of(replace(context, settings=context.settings.model_copy(update={"max_file_bytes": 1 << 16})))

    def refused(url: str, **fields: Any) -> tuple[int, str, str]:
        return error(client.post("/v1/imports", json={"url": url, "purpose": "batch", **fields}))

    assert refused(f"{folder}/nothing/")[0] == 404
    put(f"{folder}/bad.jsonl.gz", b"no gzip at all")
    assert "The object bad.jsonl.gz cannot be read" in refused(f"{folder}/bad.jsonl.gz")[2]
    put(f"{folder}/table.csv", b"a,b\n")
    assert "cannot be joined" in refused(folder)[2]
    put(f"{folder}/large/one.jsonl", b"x" * (1 << 16))
    put(f"{folder}/large/two.jsonl", b"y")
    assert refused(f"{folder}/large")[:2] == (413, "file_too_large")
    put(f"{folder}/bomb.jsonl.gz", gzip.compress(b"0" * (1 << 17)))
    assert refused(f"{folder}/bomb.jsonl.gz")[0] in (400, 413)
    monkeypatch.setattr(imports, "MAX_OBJECTS", 1)
    assert refused(folder)[:2] == (400, "too_many_objects")
    monkeypatch.setattr(imports, "SECONDS", 0.0)
    assert "takes longer than" in refused(f"{folder}/a.jsonl")[2]


@pytest.mark.parametrize("changes", ["before", "while", "away"])
def test_an_object_that_changes_meanwhile_is_noticed(folder: str, changes: str) -> None:
    bucket = Bucket(f"{folder}/a.jsonl")
    (stored,) = bucket.objects(1)

    def change() -> None:
        if changes == "away":
            fsspec.filesystem("s3").rm(stored.path)
        else:
            put(f"{folder}/a.jsonl", LINES[1] + b"\n" + LINES[0])

    if changes == "before":
        change()
    message = "The object a.jsonl of .* changed while it was read"
    with pytest.raises(UnavailableError, match=message) as noticed, bucket.open(stored) as file:
        file.read(1)
        change()
    assert noticed.value.code == "object_changed"


@pytest.mark.usefixtures("credentials")
def test_an_import_streams(client: FlaskClient, context: AppContext) -> None:
    url, small = f"s3://{BUCKET}/in/large.jsonl", f"s3://{BUCKET}/in/small.jsonl"
    put(url, LINES[0].ljust(1 << 20) * 60)
    put(small, LINES[0])
    imports.joined(context, project_of(context), small)  # what is loaded with the first one
    tracemalloc.start()
    try:
        content = imports.joined(context, project_of(context), url).content
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert content.size == 60 << 20
    assert peak < 24 << 20, "of 60 MiB"


def test_each_run_of_a_schedule_reads_the_bucket_of_its_day(
    client: FlaskClient, context: AppContext, folder: str
) -> None:
    def schedule(**source: str) -> Any:
        return client.post(
            "/v1/schedules", json={"name": "nightly", "cron": "0 3 * * *", "input": source, "batch": BATCH}
        )

    refused = schedule(url=f"s3://{BUCKET}/out/{{{{date}}}}/")
    assert (refused.status_code, refused.json["error"]["param"]) == (403, "input.url")
    made = schedule(url=f"{folder}/{{{{date}}}}/").json
    assert (made["input"]["kind"], made["input"]["sha256"]) == ("url", None)
    nothing = client.post(f"/v1/schedules/{made['id']}/run").json
    assert nothing["state"] == "failed" and "There is no object at" in nothing["reason"]
    for days in (0, 1):  # a day may end just now
        put(f"{folder}/{datetime.now(UTC).date() + timedelta(days)}/x.jsonl", LINES[0])
    ran = client.post(f"/v1/schedules/{made['id']}/run").json
    assert ran["state"] == "created", ran
    batch = client.get(f"/v1/batches/{ran['batch_id']}").json
    assert content_of(context, batch["input_file_id"]) == LINES[0]


@pytest.mark.parametrize("name", ["Q3 [final] #1", "100%", "a?b=c&d", "ü +;'\"", "{x}"])
def test_a_folder_of_any_name_is_read(tmp_path: Path, name: str) -> None:
    folder = tmp_path / "bucket" / name
    folder.mkdir(parents=True)
    names = ["a b.jsonl", "c#d.jsonl", "e+f%20.jsonl", "g[h]*?.jsonl"]
    for file in names:
        (folder / file).write_bytes(LINES[0])
    client = client_of(context_in(tmp_path, input_prefixes=f"file://{tmp_path}/bucket/"))
    body = {"url": f"file://{folder}/", "purpose": "batch"}
    answer = client.post("/v1/imports", json=body | {"join": False})
    assert answer.status_code == 200, answer.text
    assert sorted(file["filename"] for file in answer.json["data"]) == names
    one = client.post("/v1/imports", json=body | {"url": f"file://{folder}/c#d.jsonl"})
    assert [file["filename"] for file in one.json["data"]] == ["c#d.jsonl"]
    star = error(client.post("/v1/imports", json=body | {"url": f"file://{folder}/*.jsonl"}))
    assert star[0] == 403 and "without '*'" in star[2]
    close_contexts()


@pytest.mark.parametrize("join", [True, False])
def test_a_project_imports_no_more_than_it_may_store(
    client: FlaskClient, context: AppContext, folder: str, monkeypatch: pytest.MonkeyPatch, join: bool
) -> None:
    with context.database.write() as session:
        projects.update(session, project_of(context), max_stored_bytes=10)
    monkeypatch.setattr(Bucket, "open", None)
    body = {"url": folder, "purpose": "batch", "join": join}
    status, code, message = error(client.post("/v1/imports", json=body))
    assert (status, code) == (400, "storage_limit_exceeded") and "10 bytes" in message
