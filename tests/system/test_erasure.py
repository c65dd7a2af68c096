"""A text that prompts and answers hold is nowhere once they were deleted: a running stack is searched for it."""

from __future__ import annotations

import contextlib
import json
import os
import re
import secrets
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import openai
import pytest
import redis
from sqlalchemy import select

from batchyard.errors import ArtifactMissing
from batchyard.local_state import STATE_FILE
from store.artifacts import SHARDS, Artifacts
from store.database import Database
from store.records import Base
from tasks.finishing import garbage
from tests.support.rows import until
from tests.support.stacks import RunningStack, a_chat

CANARY = f"canary-{secrets.token_hex(8)}"
ENDED = ("completed", "failed", "cancelled", "expired")


class Search:
    """Looks for CANARY in all that a stack keeps. Places are named as an administrator knows them."""

    def __init__(self, stack: RunningStack, temporary: Path) -> None:
        self.stack = stack
        ray = json.loads((stack.data / STATE_FILE).read_text())["ray"]
        self.folders = [stack.data.parent, temporary, Path(ray)]
        self.artifacts = Artifacts(stack.environment.get("ARTIFACTS_URL") or f"file://{stack.data / 'artifacts'}")
        self.redis = redis.Redis.from_url(stack.processes("web")[0].environ()["REDIS_URL"])
        self.database = Database(stack.database_url)

    def paths(self) -> Iterator[Path]:
        """Yield all files and folders that still exist."""
        for folder in self.folders:
            for parent, folders, files in os.walk(folder):
                yield from (Path(parent) / name for name in (*folders, *files))

    def names(self) -> set[str]:
        """The names of all content in the artifact store."""
        return {name for shard in SHARDS for name in self.artifacts.names(shard)}

    def wait_for_names(self, names: set[str]) -> None:
        """Wait until there is no other content than this.

        Nobody names what an attempt had stored that was given up on a slow machine. Garbage collection takes it. It is
        at each shard once in 43 minutes: it is called here for what is left after a minute.
        """
        with contextlib.suppress(AssertionError):
            until(lambda: self.names() <= names, 60)
        settings = SimpleNamespace(garbage_grace_seconds=5, results_seconds=86400)
        context: Any = SimpleNamespace(database=self.database, artifacts=self.artifacts, settings=settings)
        for shard in {name[:2] for name in self.names() - names}:
            garbage.shard(context, shard)
        assert self.names() <= names

    def places(self) -> set[str]:
        """Where the canary is."""
        return {place for place, content in self._contents() if CANARY.encode() in content}

    def _contents(self) -> Iterator[tuple[str, bytes]]:
        for path in self.paths():
            if path.is_file() and not path.is_symlink():
                try:
                    content = path.read_bytes()
                except FileNotFoundError:
                    continue
                yield self._kind(path), content
            yield "file names", str(path).encode()
        for name in self.names():
            with contextlib.suppress(ArtifactMissing):  # it was deleted since it was listed
                yield "artifacts", self.artifacts.read(name)
        for key in self.redis.scan_iter():
            dumped = self.redis.dump(key) or b""  # it may have ended since it was listed
            yield "redis", key + dumped + _readable(self.redis, key)
        with self.database.read() as session:
            for table in Base.metadata.sorted_tables:
                for row in session.execute(select(table)):
                    for value in row:
                        yield "database", _as_bytes(value)

    def _kind(self, path: Path) -> str:
        name = path.name
        if name.startswith("batchyard.db"):
            return "database file"
        is_artifact = re.fullmatch("[0-9a-f]{64}", name)
        return "artifacts" if is_artifact else str(path)


def _readable(client: redis.Redis, key: bytes) -> bytes:
    """Return the value of a key as text: a dump may be compressed."""
    kind = client.type(key)
    read: dict[bytes, Callable[[], Any]] = {
        b"string": lambda: client.get(key),
        b"hash": lambda: client.hgetall(key),
        b"list": lambda: client.lrange(key, 0, -1),
        b"set": lambda: client.smembers(key),
        b"zset": lambda: client.zrange(key, 0, -1),
        b"stream": lambda: client.xrange(key),
    }
    return repr(read[kind]()).encode() if kind in read else b""


def _as_bytes(value: Any) -> bytes:
    if not isinstance(value, bytes):
        return str(value).encode()
    try:
        return zlib.decompress(value)
    except zlib.error:
        return value


def uploaded_in_parts(client: openai.OpenAI, content: bytes) -> str:
    """Upload a file in two parts, and return its id."""
    upload = client.uploads.create(bytes=len(content), filename="in.jsonl", mime_type="text/plain", purpose="batch")
    half = len(content) // 2
    parts = [client.uploads.parts.create(upload.id, data=piece).id for piece in (content[:half], content[half:])]
    file = client.uploads.complete(upload.id, part_ids=parts).file
    assert file is not None
    return file.id


def test_nothing_of_prompts_and_answers_is_left_once_they_were_deleted(
    faulty: RunningStack, faulty_temporary: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in faulty.environment.items():
        if name.startswith("AWS_"):  # by which this process reaches the stack's bucket
            monkeypatch.setenv(name, value)
    admin = httpx.Client(base_url=faulty.url, headers={"Authorization": f"Bearer {faulty.key}"}, timeout=60)

    def deletions() -> list[dict[str, Any]]:
        entries = admin.get("/v1/audit", params={"limit": 100}).json()["data"]
        return [entry for entry in entries if entry["type"].endswith(".deleted")]

    deleted = deletions()
    kept = faulty.wait(faulty.submit([a_chat("a", "kept by another project")]))
    key = admin.post("/v1/keys", json={"project": "tenant"}).json()["key"]
    client = openai.OpenAI(base_url=f"{faulty.url}/v1", api_key=key, max_retries=0)
    http = httpx.Client(base_url=faulty.url, headers={"Authorization": f"Bearer {key}"}, timeout=60)
    search = Search(faulty, faulty_temporary)
    files = [str(path) for path in search.paths()]
    for known in ("appendonlydir/", "logs/worker", "/ray/", "up.log"):
        assert any(known in path for path in files), f"{known} is where it is looked for"
    before = search.names()

    lines = "".join(json.dumps(a_chat(f"id-{number}", f"{CANARY} {number}")) + "\n" for number in range(20)).encode()
    how: dict[str, Any] = {"endpoint": "/v1/chat/completions", "completion_window": "24h"}
    note = {"note": CANARY}
    whole = client.batches.create(input_file_id=uploaded_in_parts(client, lines), metadata=note, **how).id
    inline = http.post("/v1/batches", json={"requests": [a_chat("a", CANARY)], **how}).json()["id"]
    options = {"model": "echo", "words": [CANARY]}
    body = {"recipe": "twice", "options": options, "input": {"prompts": [CANARY, f"{CANARY} too"]}, "metadata": note}
    job = http.post("/v1/jobs", json=body).json()["id"]
    bad = http.post("/v1/batches", json={"requests": [{**a_chat("a", "x"), CANARY: 1}], **how}).json()["id"]
    live = client.chat.completions.create(model="echo", messages=[{"role": "user", "content": CANARY}])
    assert CANARY in (live.choices[0].message.content or "")

    paths = [*(f"/v1/batches/{batch_id}" for batch_id in (whole, inline, bad)), f"/v1/jobs/{job}"]
    until(lambda: all(http.get(path).json()["status"] in ENDED for path in paths))
    statuses = [http.get(path).json()["status"] for path in paths]
    assert (statuses[0], statuses[1], statuses[3]) == ("completed", "completed", "completed"), statuses
    output = client.batches.retrieve(whole).output_file_id or ""
    assert CANARY in client.files.content(output).text
    left = {"artifacts", "database"} | ({"database file"} if search.database.sqlite else set())
    assert search.places() == left, "nowhere else, not even for a moment"
    for path in paths:
        assert admin.delete(path).status_code == 404, "of another project"
        assert http.delete(path).json()["deleted"] is True
        assert (http.get(path).status_code, http.delete(path).status_code) == (404, 404)
    assert client.files.list().data == []
    search.wait_for_names(before)
    until(lambda: search.places() == set())

    client.files.create(file=("in.jsonl", lines), purpose="batch")
    project = next(each for each in admin.get("/v1/projects").json()["data"] if each["name"] == "tenant")
    assert admin.delete(f"/v1/projects/{project['id']}").json()["erasing_at"] is not None
    assert http.get("/v1/files").status_code == 401
    until(lambda: "tenant" not in [each["name"] for each in admin.get("/v1/projects").json()["data"]])
    search.wait_for_names(before)
    until(lambda: search.places() == set())
    assert [entry["data"]["id"] for entry in deletions() if entry not in deleted] == [project["id"]]
    assert "kept by another project" in faulty.client.files.content(kept.output_file_id).text
