"""A backup becomes a deployment's database and artifacts again, of either kind.

Everything is checked before anything is written. The artifacts come first, as content always does, then all rows in
one transaction.
"""

import shutil
import tempfile
from pathlib import Path

from batchyard.errors import ConfigurationError
from batchyard.settings import sqlite_url
from store import leases
from store.artifacts import SHARDS, Artifacts
from store.backup import rows
from store.backup.folder import BackupFolder, BackupManifest, copy_content, refuse_others
from store.database import Database, revisions


def restore(path: Path, database: Database, artifacts: Artifacts) -> BackupManifest:
    """Restore a backup to an empty deployment; migrate an older schema. Raises ConfigurationError, UnavailableError."""
    folder = BackupFolder(path)
    manifest = folder.manifest()
    if manifest.revision not in revisions():
        raise ConfigurationError(
            f"backup {path} was made by version {manifest.version} of Batchyard, whose schema {manifest.revision} this "
            f"version does not know; restore it with that version or a newer one"
        )
    if not database.is_missing:
        with database.snapshot() as connection:
            rows.refuse_rows(database, connection)
    refuse_others(folder.artifacts, artifacts)
    folder.verify(manifest)
    database.upgrade()
    for shard in SHARDS[1:]:
        if missing := copy_content(folder.artifacts, artifacts, folder.artifacts.names(shard)):
            raise ConfigurationError(
                f"backup {path} has changed meanwhile: {min(missing)} is lost; restore another one"
            )
    # The backup stays as it is: SQLite would write beside it, and a migration in it.
    with tempfile.TemporaryDirectory(prefix="batchyard-") as temporary:
        file = Path(temporary) / folder.rows.name
        shutil.copyfile(folder.rows, file)
        source = Database(sqlite_url(file))
        try:
            source.upgrade()
            with source.snapshot() as connection, database.write() as session:
                rows.refuse_rows(database, session.connection())  # a stack may have been started there meanwhile
                rows.copy(connection, session.connection())
                leases.end_all(session)
        finally:
            source.close()
    return manifest
