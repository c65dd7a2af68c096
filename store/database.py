"""The database: SQLite (WAL) by default, PostgreSQL by another URL; its schema is Alembic's."""

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
_DISPATCH_LOCK = 0x6261746368  # any number of our own, the same in every process


class Database:
    """Sessions on one database. Make one per process and, where processes fork, after the fork.

    Raises:
        ConfigurationError: the URL is not one SQLAlchemy can use.
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
        """A session that only reads."""
        with self._session(self._reader) as session:
            yield session

    @contextmanager
    def write(self, *, serial: bool = False) -> Iterator[Session]:
        """A transaction, committed at the end of the block and rolled back by an exception.

        With `serial`, no other serial transaction runs meanwhile, in any process.
        """
        # SQLite has one writer: of this process's threads one waits for the others' processes, the rest for that one.
        with self._write_lock, self._session(self._writer) as session, session.begin():
            if serial and not self.sqlite:  # a SQLite writer is alone already
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
        self._reader.dispose()
        self._writer.dispose()

    def upgrade(self) -> None:
        """Bring the schema to this version's.

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
    """Run an UPDATE; how many rows it changed. A compare-and-set has won if that is not 0."""
    return cast(CursorResult[Any], session.execute(statement)).rowcount


def _sqlite(url: str, begin: Callable[[Connection], None], busy_seconds: float) -> Engine:
    """A SQLite engine whose transactions start with `begin`; SQLite itself waits `busy_seconds` for a lock."""
    engine = create_engine(url, connect_args={"timeout": _WAIT_SECONDS}, **_POOL)

    @event.listens_for(engine, "connect")
    def _connect(connection: Any, _record: Any) -> None:
        connection.isolation_level = None
        busy = f"busy_timeout={int(1000 * busy_seconds)}"  # last: to switch to WAL, it waits as the connection does
        for pragma in ("journal_mode=WAL", "synchronous=FULL", "foreign_keys=ON", busy):
            connection.execute(f"PRAGMA {pragma}")

    event.listen(engine, "begin", begin)
    return engine


def _begin(connection: Connection) -> None:
    connection.exec_driver_sql("BEGIN")


def _begin_alone(connection: Connection) -> None:
    """Begin as the only writer: who reads first and writes later would fail, not wait, where another wrote in between.

    SQLite itself looks for its turn ever more seldom, so that who has waited long waits longest. This looks every two
    milliseconds.
    """
    driver = connection.connection.driver_connection
    assert isinstance(driver, sqlite3.Connection)
    deadline = time.monotonic() + _WAIT_SECONDS
    while time.monotonic() < deadline:
        try:
            driver.execute("BEGIN IMMEDIATE")  # the driver's own error: to wrap it costs ten times the look itself
            return
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode != sqlite3.SQLITE_BUSY:
                break
        time.sleep(_POLL_SECONDS)
    connection.exec_driver_sql("BEGIN IMMEDIATE")
