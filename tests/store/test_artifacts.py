"""Content lives once, under its SHA-256, and is there whole or not at all."""

from __future__ import annotations

import hashlib
import os
import secrets
import time
from pathlib import Path

import pytest

from batchyard.errors import ConfigurationError, UnavailableError
from store.artifacts import INCOMING, SHARDS, Artifacts

HOUR = 3600.0


def stored(artifacts: Artifacts) -> list[Path]:
    return [path for path in Path(artifacts.url.removeprefix("file://")).rglob("*") if path.is_file()]


def test_content_is_found_under_its_sha256(artifacts: Artifacts) -> None:
    with artifacts.create() as writer:
        writer.write(b"one ")
        writer.write(b"two")
    assert writer.sha256 == hashlib.sha256(b"one two").hexdigest()
    assert artifacts.read(writer.sha256) == b"one two"


def test_the_same_content_twice_is_stored_once(artifacts: Artifacts) -> None:
    assert artifacts.put(b"same") == artifacts.put(b"same")
    assert len(stored(artifacts)) == 1


def test_a_writer_left_by_an_error_leaves_nothing(artifacts: Artifacts) -> None:
    with pytest.raises(RuntimeError), artifacts.create() as writer:
        writer.write(b"half")
        raise RuntimeError
    assert stored(artifacts) == []


def test_content_is_not_seen_before_it_is_whole(artifacts: Artifacts) -> None:
    writer = artifacts.create()
    writer.write(b"whole")
    with pytest.raises(UnavailableError), artifacts.open(hashlib.sha256(b"whole").hexdigest()):
        pass
    writer.commit()
    assert artifacts.read(writer.sha256) == b"whole"


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


@pytest.fixture(params=["file", "memory"])
def any_artifacts(request: pytest.FixtureRequest, tmp_path: Path) -> Artifacts:
    """An artifact store on a local folder, and one on a store that knows only what fsspec asks of all."""
    return Artifacts(f"file://{tmp_path}" if request.param == "file" else f"memory://{secrets.token_hex(8)}")


def test_every_shard_lists_what_lies_in_it(any_artifacts: Artifacts) -> None:
    hashes = {any_artifacts.put(b"%d" % number) for number in range(20)}
    writer = any_artifacts.create()
    writer.write(b"half")
    shards = {name: shard for shard in SHARDS for name in any_artifacts.names(shard)}
    writer.commit()
    assert hashes < shards.keys()
    assert all(shards[sha256] == sha256[:2] for sha256 in hashes)
    assert any_artifacts.names(INCOMING) == []


def test_old_content_is_deleted_once_and_young_content_stays(any_artifacts: Artifacts) -> None:
    sha256 = any_artifacts.put(b"content")
    assert any_artifacts.collect(sha256[:2], sha256, HOUR) is None
    assert any_artifacts.read(sha256) == b"content"
    assert any_artifacts.collect(sha256[:2], sha256, 0.0) == len(b"content")
    assert any_artifacts.collect(sha256[:2], sha256, 0.0) is None
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
