"""A backup can be restored to either database and either store, and what is wrong with it is said before anything."""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from sqlalchemy import insert, select, text, update

from batchyard.errors import ConfigurationError
from store import keys, segments
from store.artifacts import Artifacts
from store.backup import restoring
from store.backup.folder import BackupFolder, BackupManifest
from store.batches import BATCHES
from store.database import Database
from store.records import Batch, JobReply, Segment
from tests.store.backup.conftest import contents_of, fill
from tests.support import released
from tests.support.planned import started
from tests.support.postgresql import create_database
from tests.support.webapps import on_sqlite

BackUp = Callable[..., BackupManifest]
on_both = pytest.mark.parametrize("target", ["sqlite", "postgresql"], indirect=True)


@pytest.fixture
def target(request: pytest.FixtureRequest, tmp_path: Path) -> Database:
    """An empty database without tables: of SQLite, unless a parameter says more."""
    if getattr(request, "param", "sqlite") == "sqlite":
        return Database(f"sqlite:///{tmp_path}/new/batchyard.db")
    return Database(create_database(request.getfixturevalue("postgresql")))


@pytest.fixture
def new_store(tmp_path: Path) -> Artifacts:
    return Artifacts(f"file://{tmp_path}/new/artifacts")


@pytest.fixture
def move(target: Database, back_up: BackUp, new_store: Artifacts, folder: Path) -> Callable[[], None]:
    """What backs the database up and restores it in `target`."""

    def moved() -> None:
        back_up()
        restoring.restore(folder, target, new_store)

    return moved


@pytest.fixture
def whole(database: Database, artifacts: Artifacts, new_batch: Callable[..., Batch], back_up: BackUp) -> BackupManifest:
    """A backup of a batch whose plan is in the store."""
    new_batch(5)
    with database.write() as session:
        session.execute(update(Batch).values(plan_sha256=artifacts.put(b"plan")))
    return back_up()


@pytest.mark.parametrize(
    ("database_url", "target"), [("sqlite", "postgresql"), ("postgresql", "sqlite")], indirect=True
)
def test_all_rows_are_restored_to_the_other_database_and_ids_count_on(
    database: Database, target: Database, move: Callable[[], None]
) -> None:
    fill(database)
    move()
    assert contents_of(target) == contents_of(database)
    with target.write() as session:
        values = {"job_id": "1", "position": 9, "life": 1, "turn": 1, "kind": "verdict", "body": {}, "created_at": 1}
        assert session.scalar(insert(JobReply).values(values).returning(JobReply.id)) == 4
    target.close()


@on_sqlite
def test_artifacts_go_from_s3_to_a_folder_and_back(
    database: Database,
    target: Database,
    back_up: BackUp,
    s3_artifacts: Artifacts,
    new_store: Artifacts,
    new_batch: Callable[..., Batch],
    folder: Path,
    tmp_path: Path,
) -> None:
    new_batch(5)
    with database.write() as session:
        session.execute(update(Batch).values(plan_sha256=s3_artifacts.put(b"plan")))
        session.execute(update(Batch).values(rows_sha256=s3_artifacts.put(b"rows")))
    assert back_up(s3_artifacts).artifacts == 2
    restoring.restore(folder, target, new_store)
    with pytest.raises(ConfigurationError, match=r"database .* is not empty"):
        restoring.restore(folder, target, s3_artifacts)
    other = Artifacts(f"{s3_artifacts.url}-new")
    restoring.restore(folder, Database(f"sqlite:///{tmp_path}/other.db"), other)
    with target.read() as session:
        batch = session.scalars(select(Batch)).one()
    for store in (new_store, other):
        assert (store.read(batch.plan_sha256 or ""), store.read(batch.rows_sha256 or "")) == (b"plan", b"rows")


@on_sqlite
def test_a_segment_that_ran_may_be_claimed_at_once_and_its_old_holder_writes_no_more(
    database: Database, target: Database, new_batch: Callable[..., Batch], move: Callable[[], None]
) -> None:
    batch = new_batch(5)
    lease = started(database, batch)
    move()
    for source, expired in ((database, False), (target, True)):
        with source.read() as session:
            segment = session.scalars(select(Segment)).one()
        assert (segment.state, segment.epoch, segment.holder) == ("running", lease.lease.epoch, "here/1/task")
        assert ((segment.lease_expires_at or 0) < time.time()) == expired
    target.close()


@on_sqlite
def test_a_segment_whose_message_is_not_in_a_backup_gets_another_at_once(
    database: Database, target: Database, new_batch: Callable[..., Batch], move: Callable[[], None]
) -> None:
    batch = new_batch(5)
    with database.write() as session:
        (segment,) = session.scalars(select(Segment).where(Segment.batch_id == batch.id))
        segments.dispatch(session, segment.id, 120)
    move()
    with target.write() as session:
        assert segments.recover(session) == 1
        assert session.scalars(select(Segment.state)).one() == "pending"
    target.close()


@on_both
def test_a_backup_of_an_older_schema_is_migrated_on_its_way(
    target: Database, new_store: Artifacts, folder: Path
) -> None:
    backup = BackupFolder(folder)
    backup.create()
    released.write_file(backup.rows)
    backup.seal(version="0.1.0", revision=released.REVISION, created_at=1, rows={})
    before = backup.rows.read_bytes()
    restoring.restore(folder, target, new_store)
    assert backup.rows.read_bytes() == before
    with target.read() as session:
        admin = keys.authenticate(session, released.KEY)
        assert admin is not None and admin.admin
        assert BATCHES.get(session, admin.project_id, released.RUNNING).completed == 6
    target.close()


def lose_manifest(folder: Path) -> None:
    (folder / "manifest.json").unlink()


def change_rows(folder: Path) -> None:
    with (folder / "batchyard.db").open("r+b") as file:
        file.seek(8192)
        file.write(b"other")


def change_artifact(folder: Path) -> None:
    next(path for path in (folder / "artifacts").rglob("*") if path.is_file()).write_bytes(b"other")


def lose_artifact(folder: Path) -> None:
    next(path for path in (folder / "artifacts").rglob("*") if path.is_file()).unlink()


def change_sums(folder: Path) -> None:
    (folder / "SHA256SUMS").write_text("")


def rewrite_manifest(folder: Path, **fields: object) -> None:
    file = folder / "manifest.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | fields))


DAMAGES: list[tuple[Callable[[Path], object], str]] = [
    (lose_manifest, r"has no manifest\.json: it was never finished, or is none; name another folder"),
    (change_rows, r"damaged: batchyard\.db is not as it was written; restore another backup"),
    (change_artifact, "damaged: artifacts/.* is not as it was written; restore another backup"),
    (lose_artifact, "damaged: .*artifacts/.* cannot be read: No such file"),
    (change_sums, "damaged: SHA256SUMS is not as it was written"),
    (lambda folder: rewrite_manifest(folder, format=2), "a format that this version does not know; restore it"),
    (lambda folder: rewrite_manifest(folder, revision="9999", version="9.0"), r"made by version 9\.0 .* 9999"),
    (lambda folder: rewrite_manifest(folder, other=1), r"damaged: manifest\.json"),
    (lambda folder: (folder / "manifest.json").write_text("{"), r"damaged: manifest\.json cannot be read"),
]


@on_sqlite
def test_a_backup_that_cannot_be_restored_says_why_and_leaves_the_targets_empty(
    whole: BackupManifest, folder: Path, target: Database, new_store: Artifacts, tmp_path: Path
) -> None:
    for number, (damage, message) in enumerate(DAMAGES):
        damaged = shutil.copytree(folder, tmp_path / f"damaged-{number}")
        damage(damaged)
        with pytest.raises(ConfigurationError, match=message):
            restoring.restore(damaged, target, new_store)
        assert not (tmp_path / "new").exists()


@on_both
@on_sqlite
def test_a_target_that_is_not_empty_is_left_as_it_is(
    whole: BackupManifest, folder: Path, tmp_path: Path, target: Database, new_store: Artifacts
) -> None:
    other = Artifacts(f"file://{tmp_path}/other")
    other.put(b"of another deployment")
    with pytest.raises(ConfigurationError, match=r"artifact store file:.* is not empty; name a new data folder"):
        restoring.restore(folder, target, other)
    if target.sqlite:
        (tmp_path / "new").mkdir()
    released.write(target.url.render_as_string(hide_password=False), tmp_path)
    with pytest.raises(ConfigurationError, match=r"database .* is not empty: table \w+ has rows; name a"):
        restoring.restore(folder, target, new_store)
    with target.read() as session:
        assert session.scalar(text("SELECT version_num FROM alembic_version")) == released.REVISION
    target.close()


@on_sqlite
def test_a_restore_that_was_interrupted_is_run_again(
    whole: BackupManifest, folder: Path, target: Database, new_store: Artifacts, tmp_path: Path
) -> None:
    shutil.copytree(folder / "artifacts", tmp_path / "new/artifacts")
    target.upgrade()
    restoring.restore(folder, target, new_store)
    with target.read() as session:
        assert session.scalars(select(Batch)).one().plan_sha256
    target.close()
