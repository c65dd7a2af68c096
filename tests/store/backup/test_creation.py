"""A backup has the content that its rows name, whatever the running deployment deletes meanwhile."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import delete, update

from batchyard import __version__
from batchyard.errors import ConfigurationError
from store.artifacts import Artifacts
from store.backup import rows
from store.backup.folder import BackupManifest
from store.database import Database
from store.records import Batch, File
from tests.support.webapps import on_sqlite

pytestmark = on_sqlite
BackUp = Callable[..., BackupManifest]


@pytest.fixture
def batch(database: Database, artifacts: Artifacts, new_batch: Callable[..., Batch]) -> Batch:
    """A batch that runs, whose plan alone is in the store, beside content that no record names."""
    artifacts.put(b"garbage")
    batch = new_batch(5)
    with database.write() as session:
        session.execute(update(Batch).values(input_sha256="", plan_sha256=artifacts.put(b"plan")))
        session.execute(delete(File))
    return batch


@pytest.fixture
def snapshots(database: Database, batch: Batch, monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """The files of the snapshots that are taken."""
    taken: list[Path] = []
    snapshot = rows.snapshot

    def take(source: Database, file: Path) -> str:
        taken.append(file)
        return snapshot(source, file)

    monkeypatch.setattr(rows, "snapshot", take)
    return taken


def names(folder: Path) -> set[str]:
    return {path.name for path in (folder / "artifacts").rglob("*") if path.is_file()}


def test_a_backup_says_what_it_is_and_its_sums_are_those_of_sha256sum(
    back_up: BackUp, batch: Batch, snapshots: list[Path], artifacts: Artifacts, folder: Path
) -> None:
    manifest = back_up()
    assert json.loads((folder / "manifest.json").read_text())["version"] == manifest.version == __version__
    assert (manifest.rows["batches"], manifest.artifacts, manifest.missing) == (1, 1, [])
    assert names(folder) == {artifacts.put(b"plan")}
    checked = subprocess.run(["sha256sum", "--check", "SHA256SUMS"], cwd=folder, capture_output=True, text=True)
    assert checked.returncode == 0 and "batchyard.db: OK" in checked.stdout
    assert not list(folder.glob("batchyard.db-*"))
    assert folder.stat().st_mode & 0o777 == 0o700


def test_content_that_is_collected_after_the_snapshot_is_named_by_no_row_of_the_next(
    back_up: BackUp,
    database: Database,
    batch: Batch,
    snapshots: list[Path],
    artifacts: Artifacts,
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    take: Any = rows.snapshot

    def collect_after(source: Database, file: Path) -> str:
        revision: str = take(source, file)
        with database.write() as session:
            session.execute(update(Batch).values(status="completed"))
        Path(artifacts.path(artifacts.put(b"plan"))).unlink()
        return revision

    monkeypatch.setattr(rows, "snapshot", collect_after)
    assert back_up().missing == []
    assert len(snapshots) == 2
    copy = Database(f"sqlite:///{folder / 'batchyard.db'}")
    with copy.read() as session:
        assert session.get_one(Batch, batch.id).status == "completed"
    copy.close()


@pytest.mark.parametrize("content", [None, b"other"])
def test_content_that_its_store_has_lost_is_named_in_the_manifest(
    back_up: BackUp, snapshots: list[Path], artifacts: Artifacts, folder: Path, content: bytes | None
) -> None:
    sha256 = artifacts.put(b"plan")
    file = Path(artifacts.path(sha256))
    file.unlink() if content is None else file.write_bytes(content)
    assert back_up().missing == [sha256]
    assert (len(snapshots), names(folder)) == (2, set())


def test_a_folder_with_something_in_it_is_left_as_it_is(back_up: BackUp, folder: Path) -> None:
    folder.mkdir(mode=0o755)
    (folder / "file").write_text("mine")
    with pytest.raises(ConfigurationError, match="not empty; name a new one"):
        back_up()
    assert [path.name for path in folder.iterdir()] == ["file"]
    assert folder.stat().st_mode & 0o777 == 0o755
