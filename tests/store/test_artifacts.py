"""Content lives once, under its SHA-256, and is there whole or not at all."""

from __future__ import annotations

import hashlib
import os
import secrets
import time
from collections.abc import Callable
from pathlib import Path

import pytest

import store.artifacts
from batchyard.errors import ArtifactMissing, ConfigurationError, UnavailableError
from batchyard.settings import Settings
from store.artifacts import INCOMING, SHARDS, Artifacts
from tests.support.s3 import S3Server

HOUR = 3600.0


def stored(artifacts: Artifacts) -> list[Path]:
    return [path for path in Path(artifacts.url.removeprefix("file://")).rglob("*") if path.is_file()]


@pytest.fixture
def s3_artifacts(s3_server: S3Server, monkeypatch: pytest.MonkeyPatch) -> Artifacts:
    """A store of its own on the S3 server."""
    for name, value in s3_server.environment.items():
        monkeypatch.setenv(name, value)
    return Artifacts(s3_server.url(secrets.token_hex(8)))


@pytest.fixture(params=["file", "memory", "s3"])
def any_artifacts(request: pytest.FixtureRequest, tmp_path: Path) -> Artifacts:
    """A store in a local folder, on S3, and on a store that knows only what fsspec asks of all."""
    if request.param == "s3":
        return request.getfixturevalue("s3_artifacts")
    return Artifacts(f"file://{tmp_path}" if request.param == "file" else f"memory://{secrets.token_hex(8)}")


def test_content_is_found_under_its_sha256(any_artifacts: Artifacts) -> None:
    with any_artifacts.create() as writer:
        writer.write(b"one ")
        writer.write(b"two")
    assert writer.sha256 == hashlib.sha256(b"one two").hexdigest()
    assert any_artifacts.read(writer.sha256) == b"one two"


def test_the_same_content_twice_is_stored_once(artifacts: Artifacts) -> None:
    assert artifacts.put(b"same") == artifacts.put(b"same")
    assert len(stored(artifacts)) == 1


def test_a_writer_left_by_an_error_leaves_nothing(artifacts: Artifacts) -> None:
    with pytest.raises(RuntimeError), artifacts.create() as writer:
        writer.write(b"half")
        raise RuntimeError
    assert stored(artifacts) == []


def test_content_is_not_seen_before_it_is_whole(any_artifacts: Artifacts) -> None:
    writer = any_artifacts.create()
    writer.write(b"whole")
    with pytest.raises(ArtifactMissing), any_artifacts.open(hashlib.sha256(b"whole").hexdigest()):
        pass
    writer.commit()
    assert any_artifacts.read(writer.sha256) == b"whole"


def test_a_full_disk_is_named(artifacts: Artifacts) -> None:
    full = Path("/dev/full")
    if not full.exists():
        pytest.skip("no /dev/full on this platform")
    writer = artifacts.create()
    writer._file = full.open("wb")
    writer.write(b"x" * 10)
    with pytest.raises(UnavailableError, match="is full; free some space"):
        writer.commit()


def test_an_unknown_kind_of_url_is_a_configuration_error() -> None:
    with pytest.raises(ConfigurationError, match="ARTIFACTS_URL"):
        Artifacts("nope://somewhere")


def make_old(path: str) -> None:
    os.utime(path, (time.time() - 2 * HOUR,) * 2)


def test_every_shard_lists_what_lies_in_it(any_artifacts: Artifacts) -> None:
    hashes = {any_artifacts.put(b"%d" % number) for number in range(20)}
    writer = any_artifacts.create()
    writer.write(b"half")
    shards = {name: shard for shard in SHARDS for name in any_artifacts.names(shard)}
    writer.commit()
    # Only a folder shows unfinished writes.
    assert len(shards.keys() - hashes) == (1 if any_artifacts.url.startswith("file:") else 0)
    assert all(shards[sha256] == sha256[:2] for sha256 in hashes)
    assert any_artifacts.names(INCOMING) == []


def test_content_is_read_line_by_line_up_to_a_length_and_from_any_offset(any_artifacts: Artifacts) -> None:
    sha256 = any_artifacts.put(b"first line\n" + b"x" * 100 + b"\nlast")
    with any_artifacts.open(sha256) as file:
        assert [file.readline(20) for _ in range(2)] == [b"first line\n", b"x" * 20]
        file.seek(6)
        assert file.read(4) == b"line"
        assert [line[-4:] for line in file] == [b"\n", b"xxx\n", b"last"]


DAMAGES: dict[str, Callable[[bytes], bytes]] = {
    "changed": lambda content: content[:9] + bytes([content[9] ^ 1]) + content[10:],
    "cut": lambda content: content[:-1],
    "longer": lambda content: content + b"more",
    "empty": lambda _: b"",
}


@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES)
@pytest.mark.parametrize("repeated", [1, 10_000])
def test_damaged_content_is_not_read_to_its_end(
    any_artifacts: Artifacts, repeated: int, damage: Callable[[bytes], bytes]
) -> None:
    content = os.urandom(1000) * repeated
    sha256 = any_artifacts.put(content)
    damaged = damage(content)
    any_artifacts._fs.pipe_file(any_artifacts.path(sha256), damaged)
    read = 0
    with pytest.raises(ArtifactMissing, match=f"{sha256} is damaged"), any_artifacts.open(sha256) as file:
        while piece := file.read(300):
            read += len(piece)
    assert not damaged or read < min(len(content), len(damaged))


def test_content_of_another_size_than_expected_is_not_even_opened(any_artifacts: Artifacts) -> None:
    sha256 = any_artifacts.put(b"content")
    with any_artifacts.open(sha256, 7) as file:
        assert file.read() == b"content"
    with pytest.raises(ArtifactMissing, match="is damaged"), any_artifacts.open(sha256, 8):
        pass


def test_large_content_is_stored_whole(s3_artifacts: Artifacts) -> None:
    with s3_artifacts.create() as writer:
        for _ in range(110):  # more than S3 takes in one part; a folder has none
            writer.write(os.urandom(1024) * 1024)
    with s3_artifacts.open(writer.sha256) as file:
        assert hashlib.file_digest(file, "sha256").hexdigest() == writer.sha256


def test_old_content_is_deleted_once_and_young_content_stays(any_artifacts: Artifacts) -> None:
    sha256 = any_artifacts.put(b"content")
    assert any_artifacts.collect(sha256[:2], sha256, HOUR) is None
    assert any_artifacts.read(sha256) == b"content"
    assert any_artifacts.collect(sha256[:2], sha256, 0.0) == len(b"content")
    assert any_artifacts.collect(sha256[:2], sha256, 0.0) == 0
    assert any_artifacts.names(sha256[:2]) == []


def test_content_that_is_written_again_is_young_again(artifacts: Artifacts) -> None:
    sha256 = artifacts.put(b"content")
    make_old(artifacts.path(sha256))
    writer = artifacts.create()
    writer.write(b"content")
    writer._file.flush()
    make_old(writer._temporary)
    writer.commit()
    assert artifacts.collect(sha256[:2], sha256, HOUR) is None
    assert artifacts.read(sha256) == b"content"


def test_content_that_is_written_again_while_it_is_being_deleted_stays(
    artifacts: Artifacts, monkeypatch: pytest.MonkeyPatch
) -> None:
    sha256 = artifacts.put(b"content")
    make_old(artifacts.path(sha256))
    look = artifacts._age

    def write_after_the_first_look(path: str) -> float:
        age = look(path)
        if path == artifacts.path(sha256):
            artifacts.put(b"content")
        return age

    monkeypatch.setattr(artifacts, "_age", write_after_the_first_look)
    assert artifacts.collect(sha256[:2], sha256, HOUR) is None
    assert artifacts.read(sha256) == b"content"
    assert len(stored(artifacts)) == 1


def test_what_a_killed_collector_left_aside_is_put_back(artifacts: Artifacts) -> None:
    sha256 = artifacts.put(b"content")
    path = Path(artifacts.path(sha256))
    path.rename(f"{path}.{'0' * 16}")
    assert artifacts.names(sha256[:2]) == [sha256]
    assert artifacts.read(sha256) == b"content"


def test_what_is_not_ours_is_not_touched(artifacts: Artifacts) -> None:
    sha256 = artifacts.put(b"content")
    other = Path(artifacts.path(sha256)).with_name("notes.txt")
    other.write_text("mine")
    assert artifacts.names(sha256[:2]) == [sha256]
    assert other.read_text() == "mine"


def test_a_store_that_goes_away_is_unavailable_for_every_call_and_for_who_reads(
    s3_artifacts: Artifacts, s3_server: S3Server
) -> None:
    sha256 = s3_artifacts.put(b"line\n" * 2_000_000)
    with s3_artifacts.open(sha256) as file:
        assert file.readline() == b"line\n"
        s3_server.stop()
        try:
            for call in (
                file.read,
                lambda: s3_artifacts.read(sha256),
                lambda: s3_artifacts.put(b"more"),
                s3_artifacts.ping,
                lambda: s3_artifacts.names("00"),
                lambda: s3_artifacts.collect(sha256[:2], sha256, 0.0),
            ):
                began = time.monotonic()
                with pytest.raises(UnavailableError, match="artifact store s3://"):
                    call()
                assert time.monotonic() - began < 30
        finally:
            s3_server.start()


def test_a_store_that_does_not_answer_is_unavailable_well_within_a_lease(
    s3_artifacts: Artifacts, s3_server: S3Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert Settings.model_fields["lease_seconds"].default > 2 * store.artifacts._UPLOAD_SECONDS
    s3_artifacts.put(b"content")
    monkeypatch.setattr(store.artifacts, "_UPLOAD_SECONDS", 2.0)
    s3_server.pause()
    began = time.monotonic()
    try:
        with pytest.raises(UnavailableError):
            s3_artifacts.put(b"more")
    finally:
        s3_server.resume()
    assert time.monotonic() - began < 30
