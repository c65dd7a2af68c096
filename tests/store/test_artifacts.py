"""Content lives once, under its SHA-256, and is there whole or not at all."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from batchyard.errors import ConfigurationError, UnavailableError
from store.artifacts import Artifacts


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
