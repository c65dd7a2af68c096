"""Rows in every table, and artifact stores in a folder and in S3."""

from __future__ import annotations

import secrets
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import JSON, Boolean, Column, Float, Integer, LargeBinary, Text, cast, insert, null, select

from store.artifacts import Artifacts
from store.backup import creation
from store.backup.folder import BackupManifest
from store.database import Database
from store.records import Base
from tests.support.s3 import S3Server

GRACE, RESULTS = 3600.0, 86400.0


def fill(database: Database, rows: int = 3) -> None:
    """Write rows to each table of the metadata: a value depends on its type and its row, so that references hold."""
    with database.write() as session:
        for table in Base.metadata.sorted_tables:
            for number in range(1, rows + 1):
                values = {column.name: _value(column, number) for column in table.columns}
                session.execute(insert(table).values(values))


def _value(column: Column[Any], number: int) -> Any:
    kind = column.type
    if isinstance(kind, JSON):
        absent = null() if column.nullable else {}
        return absent if number < 3 else {"text": "\u00e9 \u2603", "list": [1, None, 0.1, 2**70]}
    if isinstance(kind, Boolean):
        return number % 2 == 1
    if isinstance(kind, LargeBinary):
        return bytes([0, 255, number])
    if isinstance(kind, Float):
        return number + 0.1
    return number if isinstance(kind, Integer) else str(number)


def contents_of(database: Database) -> dict[str, list[Any]]:
    """Return the rows of each table, with JSON as its text."""
    rows = {}
    with database.read() as session:
        for table in Base.metadata.sorted_tables:
            columns = [cast(column, Text) if isinstance(column.type, JSON) else column for column in table.columns]
            rows[table.name] = [tuple(row) for row in session.execute(select(*columns).order_by(*table.primary_key))]
    return rows


@pytest.fixture
def s3_artifacts(s3_server: S3Server, monkeypatch: pytest.MonkeyPatch) -> Artifacts:
    """A new store in S3."""
    for name, value in s3_server.environment.items():
        monkeypatch.setenv(name, value)
    return Artifacts(s3_server.url(secrets.token_hex(8)))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Where the backup goes."""
    return tmp_path / "backup"


@pytest.fixture
def back_up(database: Database, artifacts: Artifacts, folder: Path) -> Callable[..., BackupManifest]:
    """Makes the backup of the test's database and artifacts."""

    def make(source: Artifacts = artifacts) -> BackupManifest:
        return creation.create(folder, database, source, garbage_grace_seconds=GRACE, results_seconds=RESULTS)

    return make
