"""/v1/uploads, as the `openai` package uses it."""

from __future__ import annotations

import hashlib
import json
import random
from pathlib import Path

import httpx
import openai
import pytest

from tests.contract.conftest import refusal
from tests.support.stacks import RunningStack, a_chat


def test_a_file_uploaded_in_chunks_is_the_same_file_and_runs(stack: RunningStack, tmp_path: Path) -> None:
    path = tmp_path / "in.jsonl"
    path.write_text("".join(json.dumps(a_chat(f"id-{number}", "hello")) + "\n" for number in range(60)))
    content = path.read_bytes()
    upload = stack.client.uploads.upload_file_chunked(
        file=path, mime_type="application/jsonl", purpose="batch", part_size=1000, md5=hashlib.md5(content).hexdigest()
    )
    assert (upload.status, upload.bytes) == ("completed", len(content))
    assert upload.file is not None and upload.file.expires_at == upload.file.created_at + 30 * 86400
    assert stack.client.files.content(upload.file.id).content == content
    whole = stack.client.files.create(file=path, purpose="batch")
    batches = [
        stack.client.batches.create(
            input_file_id=file_id, endpoint="/v1/chat/completions", completion_window="24h"
        ).to_dict()
        for file_id in (upload.file.id, whole.id)
    ]
    assert len({batch["batchyard"]["input_sha256"] for batch in batches}) == 1  # type: ignore[index]
    ended = stack.wait(stack.client.batches.retrieve(str(batches[0]["id"])))
    assert (ended.status, ended.request_counts.completed) == ("completed", 60)


def test_bytes_in_memory_are_uploaded_in_chunks(stack: RunningStack) -> None:
    content = random.Random(1).randbytes(300_000)
    upload = stack.client.uploads.upload_file_chunked(
        file=content,
        filename="a.bin",
        bytes=len(content),
        mime_type="application/octet-stream",
        purpose="user_data",
        part_size=65_536,
    )
    assert upload.file is not None
    assert stack.client.files.content(upload.file.id).content == content


def test_parts_may_come_in_any_order(stack: RunningStack) -> None:
    uploads = stack.client.uploads
    upload = uploads.create(bytes=10, filename="a.txt", mime_type="text/plain", purpose="user_data")
    assert (upload.object, upload.status, upload.expires_at) == ("upload", "pending", upload.created_at + 3600)
    last = uploads.parts.create(upload.id, data=b"world")
    first = uploads.parts.create(upload.id, data=b"hello")
    assert (first.object, first.upload_id) == ("upload.part", upload.id)
    done = uploads.complete(upload.id, part_ids=[first.id, last.id])
    assert done.file is not None
    assert stack.client.files.content(done.file.id).content == b"helloworld"
    assert stack.client.files.retrieve(done.file.id).filename == "a.txt"


def test_a_cancelled_upload_takes_no_part(stack: RunningStack) -> None:
    uploads = stack.client.uploads
    upload = uploads.create(bytes=1, filename="a.txt", mime_type="text/plain", purpose="user_data")
    assert uploads.cancel(upload.id).status == "cancelled"
    with pytest.raises(openai.ConflictError, match="Cannot add a part to an upload with status 'cancelled'"):
        uploads.parts.create(upload.id, data=b"x")


def test_bytes_that_are_not_those_that_were_announced_are_refused(stack: RunningStack, http: httpx.Client) -> None:
    uploads = stack.client.uploads
    upload = uploads.create(bytes=3, filename="a.txt", mime_type="text/plain", purpose="user_data")
    part = uploads.parts.create(upload.id, data=b"xy")
    short = http.post(f"/v1/uploads/{upload.id}/complete", json={"part_ids": [part.id]})
    assert (short.status_code, refusal(short)["param"]) == (400, "part_ids")
    whole = uploads.parts.create(upload.id, data=b"xyz")
    with pytest.raises(openai.BadRequestError) as caught:
        uploads.complete(upload.id, part_ids=[whole.id], md5="0" * 32)
    assert caught.value.param == "md5"
    assert uploads.complete(upload.id, part_ids=[whole.id]).status == "completed"
