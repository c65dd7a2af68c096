"""The database: SQLite (WAL) or PostgreSQL, with a schema that Alembic migrates."""

from __future__ import annotations

import sqlite3
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import Any, cast

from alembic import command
from alembic.config import Config
from alembic.script import ScriptDirectory
from alembic.util import CommandError
from sqlalchemy import Connection, CursorResult, Engine, Update, create_engine, event, text
from sqlalchemy.engine import make_url
from sqlalchemy.exc import ArgumentError, DBAPIError, NoSuchModuleError
from sqlalchemy.orm import Session

from batchyard.errors import ConfigurationError, UnavailableError

_WAIT_SECONDS = 30.0
_POLL_SECONDS = 0.002
# A web process has 32 threads; each may hold one connection.
_POOL = {"pool_size": 8, "max_overflow": 32}
_DISPATCH_LOCK = 0x6261746368  # an arbitrary number, the same in every process


class Database:
    """Sessions on one database. Create one per process, after any fork.

    Raises:
        ConfigurationError: SQLAlchemy cannot use the URL.
    """

    def __init__(self, url: str) -> None:
        try:
            self.url = make_url(url)
            self.sqlite = self.url.get_backend_name() == "sqlite"
            self._reader = (
                _sqlite(url, _begin, _WAIT_SECONDS) if self.sqlite else create_engine(url, pool_pre_ping=True, **_POOL)
            )
            self._writer = _sqlite(url, _begin_alone, 0.0) if self.sqlite else self._reader
            self._write_lock: AbstractContextManager[Any] = threading.Lock() if self.sqlite else nullcontext()
        except (ArgumentError, NoSuchModuleError, ImportError) as error:
            raise ConfigurationError(
                f"DATABASE_URL: {error}; write sqlite:///path or postgresql+psycopg://user:password@host/database"
            ) from error

    @contextmanager
    def read(self) -> Iterator[Session]:
        """Open a session for reading."""
        with self._session(self._reader) as session:
            yield session

    @contextmanager
    def write(self, *, serial: bool = False) -> Iterator[Session]:
        """Open a transaction. The end of the block commits it; an exception rolls it back.

        Serial transactions run one at a time, over all processes.
        """
        # SQLite has one writer. One thread per process competes for the lock; the others queue behind it.
        with self._write_lock, self._session(self._writer) as session, session.begin():
            if serial and not self.sqlite:  # SQLite has one writer anyway
                session.execute(text("SELECT pg_advisory_xact_lock(:key)"), {"key": _DISPATCH_LOCK})
            yield session

    @contextmanager
    def _session(self, engine: Engine) -> Iterator[Session]:
        try:
            with Session(engine, expire_on_commit=False) as session:
                yield session
        except DBAPIError as error:
            if error.connection_invalidated or isinstance(error.orig, sqlite3.OperationalError):
                raise UnavailableError(f"database {self.url.render_as_string()}: {error.orig}") from error
            raise

    def ping(self) -> None:
        """Raises UnavailableError if the database does not answer."""
        with self.read() as session:
            session.execute(text("SELECT 1"))

    def close(self) -> None:
        """Close all connections."""
        self._reader.dispose()
        self._writer.dispose()

    def upgrade(self) -> None:
        """Migrate the schema to this version's.

        Raises:
            ConfigurationError: the database was written by a newer version, or cannot be opened.
        """
        config = Config()
        config.set_main_option("script_location", str(Path(__file__).parent / "migrations"))
        heads = ScriptDirectory.from_config(config).get_heads()
        try:
            if self.sqlite and self.url.database:
                Path(self.url.database).parent.mkdir(parents=True, exist_ok=True)
            with self.write(serial=True) as session:
                config.attributes["connection"] = session.connection()
                command.upgrade(config, "head")
        except CommandError as error:
            raise ConfigurationError(
                f"database {self.url.render_as_string()} was written by a newer version of Batchyard "
                f"(this one knows its schema up to {', '.join(heads)}): {error}; upgrade Batchyard, "
                f"or name another data folder"
            ) from error
        except (UnavailableError, DBAPIError, OSError) as error:
            raise ConfigurationError(f"database {self.url.render_as_string()} cannot be opened: {error}") from error


def changed(session: Session, statement: Update) -> int:
    """Run an UPDATE. Return how many rows it changed: 0 if a compare-and-set has lost."""
    return cast(CursorResult[Any], session.execute(statement)).rowcount


def _sqlite(url: str, begin: Callable[[Connection], None], busy_seconds: float) -> Engine:
    """Create a SQLite engine.

    Args:
        begin: starts a transaction.
        busy_seconds: longest that SQLite's busy handler waits for a lock.
    """
    engine = create_engine(url, connect_args={"timeout": _WAIT_SECONDS}, **_POOL)

    @event.listens_for(engine, "connect")
    def _connect(connection: Any, _record: Any) -> None:
        connection.isolation_level = None
        busy = f"busy_timeout={int(1000 * busy_seconds)}"  # last: the switch to WAL needs the longer timeout
        for pragma in ("journal_mode=WAL", "synchronous=FULL", "foreign_keys=ON", busy):
            connection.execute(f"PRAGMA {pragma}")

    event.listen(engine, "begin", begin)
    return engine


def _begin(connection: Connection) -> None:
    connection.exec_driver_sql("BEGIN")


def _begin_alone(connection: Connection) -> None:
    """Begin as the only writer.

    A transaction that begins as a reader fails at its first write if another process has written meanwhile. SQLite's
    busy handler backs off and starves long waiters, so poll every 2 ms.
    """
    driver = connection.connection.driver_connection
    assert isinstance(driver, sqlite3.Connection)
    deadline = time.monotonic() + _WAIT_SECONDS
    while time.monotonic() < deadline:
        try:
            driver.execute(
                "BEGIN IMMEDIATE"
            )  # unwrapped: SQLAlchemy's wrapping of the error costs ten times the statement
            return
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode != sqlite3.SQLITE_BUSY:
                break
        time.sleep(_POLL_SECONDS)
    connection.exec_driver_sql("BEGIN IMMEDIATE")
