"""The database: SQLite (WAL) or PostgreSQL, with a schema that Alembic migrates."""

import sqlite3
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, TypeVar, cast

from sqlalchemy import URL, Connection, CursorResult, Delete, Engine, Update, create_engine, event, text
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.engine import make_url
from sqlalchemy.exc import ArgumentError, DatabaseError, DBAPIError, InterfaceError, NoSuchModuleError, OperationalError
from sqlalchemy.exc import TimeoutError as PoolTimeoutError
from sqlalchemy.orm import Session
from sqlalchemy.pool import NullPool

from batchyard import plugins
from batchyard.errors import ConfigurationError, UnavailableError

Locked = TypeVar("Locked")

WAIT_SECONDS = 10.0
"""Longest wait for a connection, a lock or a statement: well under a lease, which a heartbeat has to renew."""
_POLL_SECONDS = 0.002
_CHECKPOINTS = 50
"""Attempts to empty SQLite's log, which other processes' readers may need for a moment."""
_MIGRATIONS = Path(__file__).parent / "migrations"
# A web process has 32 threads; each may hold one connection.
_POOL = {"pool_size": 8, "max_overflow": 32, "pool_timeout": WAIT_SECONDS}
# A host that is cut off closes no connection: the kernels of both sides have to give it up.
_KEEPALIVES = {"idle": 5, "interval": 2, "count": 3}
# Poolers such as PgBouncer give each transaction another connection of the server, so nothing may be left on one: no
# prepared statements, and no settings but those that a connection begins with.
_POSTGRESQL = {
    "prepare_threshold": None,
    "connect_timeout": 5,
    "tcp_user_timeout": int(1000 * WAIT_SECONDS),
    **{f"keepalives_{name}": value for name, value in _KEEPALIVES.items()},
}
# The number is arbitrary, and the same in every process.
_SERIAL = text("SELECT pg_advisory_xact_lock(:key)").bindparams(key=0x6261746368)


class Database:
    """Sessions on one database. Create one per process, after any fork. Raises ConfigurationError.

    `read` and `write` raise UnavailableError if the database does not answer within `wait_seconds`. A transaction whose
    COMMIT fails so may have been committed. `max_stored_bytes` limits the files of each project without a limit of its
    own (store.files.check_room); None is no limit.
    """

    def __init__(self, url: str, wait_seconds: float = WAIT_SECONDS, max_stored_bytes: int | None = None) -> None:
        self._info = {"max_stored_bytes": max_stored_bytes}
        try:
            self.url = make_url(url)
            self.sqlite = self.url.get_backend_name() == "sqlite"
            self._wait_seconds = wait_seconds
            if self.sqlite:
                self._reader = _sqlite(url, lambda one: one.exec_driver_sql("BEGIN"), wait_seconds, wait_seconds)
                self._writer = _sqlite(url, partial(_begin_alone, wait_seconds), wait_seconds, 0.0)
            else:
                self._reader = self._writer = limited_engine(self.url, wait_seconds, pool_pre_ping=True, **_POOL)
            self._write_lock = threading.Lock()
        except (ArgumentError, NoSuchModuleError, ImportError) as error:
            raise ConfigurationError(
                f"DATABASE_URL: {error}; write sqlite:///path or postgresql+psycopg://user:password@host/database"
            ) from error

    @contextmanager
    def read(self) -> Iterator[Session]:
        with self._session(self._reader) as session:
            yield session

    @contextmanager
    def write(self, *, serial: bool = False) -> Iterator[Session]:
        """Open a transaction, serial over all processes or not. The block's end commits it; an error rolls back."""
        with self._turn(), self._session(self._writer) as session, session.begin():
            if serial and not self.sqlite:  # SQLite has one writer anyway
                session.execute(_SERIAL)
            yield session

    @contextmanager
    def snapshot(self) -> Iterator[Connection]:
        """Open a connection that sees all rows as they are at its first statement. Its statements may take long."""
        if self.sqlite:
            with self._session(self._reader) as session:
                yield session.connection()
            return
        engine = limited_engine(self.url, None, poolclass=NullPool, isolation_level="REPEATABLE READ")
        with self._session(engine) as session:
            yield session.connection()

    @contextmanager
    def _turn(self) -> Iterator[None]:
        """Wait for this thread's turn to write.

        SQLite has one writer. One thread per process competes for its lock; the others queue behind it.
        """
        if not self.sqlite:
            yield
            return
        if not self._write_lock.acquire(timeout=self._wait_seconds):
            raise UnavailableError(f"{self._name}: other writers held it for {self._wait_seconds:g} seconds")
        try:
            yield
        finally:
            self._write_lock.release()

    @contextmanager
    def _session(self, engine: Engine) -> Iterator[Session]:
        try:
            with Session(engine, expire_on_commit=False, info=self._info) as session:
                yield session
        except PoolTimeoutError as error:
            raise UnavailableError(f"{self._name}: no connection became free") from error
        except DBAPIError as error:
            if error.connection_invalidated or isinstance(error, (OperationalError, InterfaceError)):
                raise UnavailableError(f"{self._name}: {str(error.orig).strip()}") from error
            if self.sqlite and type(error) is DatabaseError:  # of a page, or of the whole file
                raise UnavailableError(f"{self._name} is damaged: {error.orig}; restore a backup") from error
            raise

    @property
    def _name(self) -> str:
        return f"database {self.url.render_as_string()}"

    @property
    def is_missing(self) -> bool:
        """True if it is a file of SQLite that is not there."""
        return self.sqlite and bool(self.url.database) and not Path(str(self.url.database)).is_file()

    def ping(self) -> None:
        """Raises UnavailableError if the database does not answer."""
        with self.read() as session:
            session.execute(text("SELECT 1"))

    def truncate_log(self) -> bool:
        """Empty SQLite's write-ahead log, which has earlier versions of pages. False if a reader needs it."""
        if not self.sqlite:
            return True
        with self._turn():
            connection = self._writer.raw_connection()  # outside of any transaction
            try:
                busy, tries = 1, 0
                while busy and tries < _CHECKPOINTS:
                    time.sleep(_POLL_SECONDS * bool(tries))
                    busy, _, _ = connection.cursor().execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
                    tries += 1
            except sqlite3.OperationalError as error:
                raise UnavailableError(f"{self._name}: {error}") from error
            finally:
                connection.close()
        return not busy

    def close(self) -> None:
        self._reader.dispose()
        self._writer.dispose()

    def upgrade(self) -> None:
        """Migrate the schema to this version's. Raises ConfigurationError: it is newer, too old, or unreadable."""
        # Only what migrates imports it: the eleven processes of a stack do without.
        from alembic import command
        from alembic.config import Config
        from alembic.util import CommandError

        config = Config()
        config.set_main_option("script_location", str(_MIGRATIONS))
        try:
            if self.sqlite and self.url.database:
                Path(self.url.database).parent.mkdir(parents=True, exist_ok=True)
            with self._migration() as connection:
                config.attributes["connection"] = connection
                command.upgrade(config, "head")
        except CommandError as error:
            known = revisions()
            raise ConfigurationError(
                f"{self._name} was written by a newer version of Batchyard, or by one that is too old (this one knows "
                f"schemas from {known[0]} to {known[-1]}): {error}; upgrade "
                f"Batchyard, or name another data folder"
            ) from error
        except (UnavailableError, DBAPIError, OSError) as error:
            raise ConfigurationError(f"{self._name} cannot be opened: {error}") from error

    @contextmanager
    def _migration(self) -> Iterator[Connection]:
        """Open the serial transaction of a migration, whose statements may take long."""
        if self.sqlite:
            # A change of a table replaces it by a copy of another name, and others refer to it meanwhile.
            begin = partial(_begin_alone, self._wait_seconds)
            engine = _sqlite(self.url, begin, self._wait_seconds, 0.0, foreign_keys=False)
            with self._turn(), self._session(engine) as session, session.begin():
                yield session.connection()
            engine.dispose()
            return
        engine = limited_engine(self.url, None, poolclass=NullPool)
        with engine.begin() as connection:
            connection.execute(_SERIAL)
            yield connection


def revisions() -> list[str]:
    """Return the revisions of the schema that this version knows, the oldest first."""
    from alembic.script import ScriptDirectory

    return [script.revision for script in ScriptDirectory(str(_MIGRATIONS)).walk_revisions()][::-1]


def insert(session: Session, record: type[Any]) -> Any:
    """Return an INSERT of the session's database, which knows `on_conflict_do_nothing` and `on_conflict_do_update`."""
    return (sqlite if session.get_bind().dialect.name == "sqlite" else postgresql).insert(record)


def locked(session: Session, record: type[Locked], key: Mapping[str, Any], **first: Any) -> Locked:
    """Return the record with this primary key, or a new one of these values, locked until the transaction ends."""
    session.execute(insert(session, record).on_conflict_do_nothing(), {**key, **first})
    return session.get_one(record, dict(key), with_for_update=True)


def changed(session: Session, statement: Update | Delete) -> int:
    """Run an UPDATE or DELETE. Return how many rows it changed: 0 if a compare-and-set has lost."""
    return cast(CursorResult[Any], session.execute(statement)).rowcount


def limited_engine(url: URL, statement_seconds: float | None, **options: Any) -> Engine:
    """Create an engine whose statements, on PostgreSQL, fail after `statement_seconds`; None for no limit.

    The server's `statement_timeout` is not enough: a server that hangs keeps no time. Nor is the client's limit: a
    server that does not learn that a client was cut off keeps its locks, and its place in the queues for others.
    """
    if url.get_driver_name() != "psycopg":
        return create_engine(url, **options)
    plugins.require("postgres", f"a database of {url.drivername}")
    import psycopg
    from psycopg.types.string import StrDumperUnknown

    engine = create_engine(url, connect_args=_POSTGRESQL, **options)

    class Dumper(StrDumperUnknown):  # type: ignore[misc]  # psycopg is an extra
        """Sends NUL, which PostgreSQL's texts cannot hold, as U+FFFD. Such ids stay unknown."""

        def dump(self, obj: str) -> Any:
            return super().dump(obj.replace("\0", "\ufffd"))

    @event.listens_for(engine, "connect")
    def _adapt(connection: Any, _record: Any) -> None:
        connection.adapters.register_dumper(str, Dumper)

    if statement_seconds is None:
        return engine

    class LimitedConnection(psycopg.Connection):  # type: ignore[misc]
        def wait(self, gen: Any, *args: Any, **kwargs: Any) -> Any:
            kwargs.setdefault("timeout", statement_seconds)
            try:
                return super().wait(gen, *args, **kwargs)
            except psycopg.OperationalError:
                if self.pgconn.transaction_status == psycopg.pq.TransactionStatus.ACTIVE:
                    self.pgconn.finish()  # the answer may still come, so nobody may use this connection again
                raise

    @event.listens_for(engine, "do_connect")
    def _connect(_dialect: Any, _record: Any, arguments: Any, keywords: Any) -> Any:
        milliseconds = int(1000 * statement_seconds)
        limits = {
            # Longer than the client's limit, whose errors say more.
            "statement_timeout": milliseconds + 1000,
            "idle_in_transaction_session_timeout": 2 * milliseconds,
            **{f"tcp_keepalives_{name}": value for name, value in _KEEPALIVES.items()},
        }
        ours = " ".join(f"-c {name}={value}" for name, value in limits.items())
        keywords["options"] = f"{ours} {keywords.get('options', '')}".strip()
        return LimitedConnection.connect(*arguments, **keywords)

    return engine


def _sqlite(
    url: str | URL,
    begin: Callable[[Connection], object],
    connect_seconds: float,
    busy_seconds: float,
    *,
    foreign_keys: bool = True,
) -> Engine:
    """Create a SQLite engine.

    `begin` starts a transaction. Its locks are awaited for `connect_seconds` while a connection is opened, and then by
    SQLite's busy handler for `busy_seconds`. Without `foreign_keys` rows may refer to what is not there.
    """
    engine = create_engine(url, connect_args={"timeout": connect_seconds}, **_POOL)

    @event.listens_for(engine, "connect")
    def _connect(connection: Any, _record: Any) -> None:
        connection.isolation_level = None
        busy = f"busy_timeout={int(1000 * busy_seconds)}"  # last: the switch to WAL needs the longer timeout
        # Deleted content is overwritten with zeros.
        pragmas = ("journal_mode=WAL", "synchronous=FULL", "secure_delete=ON", f"foreign_keys={foreign_keys}", busy)
        for pragma in pragmas:
            connection.execute(f"PRAGMA {pragma}")

    event.listen(engine, "begin", begin)
    return engine


def _begin_alone(wait_seconds: float, connection: Connection) -> None:
    """Begin as the only writer. Wait for another one for `wait_seconds` at most.

    A transaction that begins as a reader fails at its first write if another process has written meanwhile. SQLite's
    busy handler backs off and starves long waiters, so poll every 2 ms.
    """
    driver = connection.connection.driver_connection
    assert isinstance(driver, sqlite3.Connection)
    deadline = time.monotonic() + wait_seconds
    while time.monotonic() < deadline:
        try:
            # Unwrapped: SQLAlchemy's wrapping of the error costs ten times the statement.
            driver.execute("BEGIN IMMEDIATE")
            return
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode != sqlite3.SQLITE_BUSY:
                break
        time.sleep(_POLL_SECONDS)
    connection.exec_driver_sql("BEGIN IMMEDIATE")
