"""A new backup, of a deployment that may run meanwhile.

The rows come first. Content is written before the record that names it and never changes, so what the rows name is
there, but for what the garbage collection of the running deployment deletes in between: a new snapshot names that no
more.
"""

import sqlite3
import time
from contextlib import closing
from pathlib import Path

from batchyard import __version__
from batchyard.settings import sqlite_url
from store.artifacts import SHARDS, Artifacts
from store.backup import rows
from store.backup.folder import BackupFolder, BackupManifest, copy_content
from store.database import Database
from store.deletion import garbage

SNAPSHOTS = 3
"""Snapshots at most. What no record names any more is missing in one, and what is lost in the next as well."""


def create(
    path: Path, database: Database, artifacts: Artifacts, *, garbage_grace_seconds: float, results_seconds: float
) -> BackupManifest:
    """Back up a database and its artifacts to a new folder. It is whole once its manifest is there.

    Raises ConfigurationError: the folder is not empty, or the database has another version's schema; UnavailableError.
    """
    folder = BackupFolder(path)
    folder.create()
    missing: set[str] | None = None
    for _ in range(SNAPSHOTS):
        now = time.time()
        folder.rows.unlink(missing_ok=True)
        revision = rows.snapshot(database, folder.rows)
        snapshot = Database(sqlite_url(folder.rows.resolve()))
        try:
            before, missing = missing, set[str]()
            times = now - garbage_grace_seconds, now - results_seconds
            for digit in "0123456789abcdef":  # a sixteenth of the hashes is in memory at once
                with snapshot.read() as session:
                    hashes = garbage.references_with(session, digit, *times)
                hashes -= {name for shard in SHARDS if shard[0] == digit for name in folder.artifacts.names(shard)}
                missing |= copy_content(artifacts, folder.artifacts, hashes)
            with snapshot.snapshot() as connection:
                counts = rows.counts(connection)
        finally:
            snapshot.close()
        if not missing or missing == before:
            break
    with closing(sqlite3.connect(folder.rows)) as connection:
        connection.execute("PRAGMA journal_mode=DELETE")  # one file, without a log beside it
    facts = {"version": __version__, "revision": revision, "created_at": int(now), "rows": counts}
    return folder.seal(**facts, missing=sorted(missing or ()))
