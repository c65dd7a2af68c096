"""Output tables: the rows of batches and jobs in a database of the operator, each once."""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import Any

from sqlalchemy import (
    BigInteger,
    Column,
    Connection,
    Double,
    Integer,
    MetaData,
    Table,
    Text,
    delete,
    func,
    insert,
    inspect,
    make_url,
    select,
)
from sqlalchemy.exc import ArgumentError, DBAPIError, NoSuchModuleError
from sqlalchemy.pool import NullPool
from sqlalchemy.types import UserDefinedType

from batchyard import json_lines
from batchyard.errors import ConfigurationError, PermissionDeniedError, UnavailableError
from store.database import limited_engine

_URL = re.compile(r"table://([\w.-]+)/([\w.{}-]+)/([\w.{}-]+)")
_STATEMENT_SECONDS = 600.0
"""Longest COPY of a part."""
_INSERT_ROWS = 1000
_OWN = ("alembic_version", "job_stages")
"""Tables that only the schema of Batchyard's own database has."""
_REFUSED_LOGIN = re.compile(
    "authentication failed|no password supplied|does not exist|no such (user|database)|no pg_hba.conf entry|"
    "not permitted to log in|permission denied for database|unsupported startup parameter"
)
"""What servers and pools say when they refuse a login; libpq has no code for it."""
_LASTING_CODES = ("54", "SQLITE_ERROR", "SQLITE_CANTOPEN", "SQLITE_NOTADB", "SQLITE_READONLY")
"""Beginnings of codes of operational errors that waiting does not mend; 54: a limit of PostgreSQL."""
_NUL = re.compile(r"(?<!\\)((?:\\\\)*)\\u0000")
"""NUL in JSON, which PostgreSQL's JSON functions refuse."""


class _Json(UserDefinedType[str]):
    """A column of JSON whose values are JSON texts already."""

    cache_ok = True

    def get_col_spec(self, **_: Any) -> str:
        return "JSON"


_TYPES = {"string": Text, "int32": Integer, "int64": BigInteger, "double": Double}
"""Types of columns by Arrow's names; all others are JSON."""


def is_table(url: str) -> bool:
    return url.startswith("table://")


def names_of(url: str, databases: Mapping[str, str]) -> tuple[str, str, str]:
    """Return the database, schema and table that a URL names. Raises PermissionDeniedError."""
    match = _URL.fullmatch(url)
    if match is None:
        reason = "write table://DATABASE/SCHEMA/TABLE, with letters, digits, '_', '-' and '.'"
    elif match[1] not in databases:
        reason = f"the operator adds databases with BATCHYARD_OUTPUT_DATABASES, which has no {match[1]!r}"
    else:
        return match[1], match[2], match[3]
    raise PermissionDeniedError(f"The URL '{url}' cannot be written here: {reason}.", param="post_process")


class OutputTable:
    """A table at `table://DATABASE/SCHEMA/TABLE`, for the rows of one batch or job.

    `databases` has the SQLAlchemy URL of each DATABASE. `columns` has Arrow's name of each column's type, without
    `batch_id` and with `line`. Raises ConfigurationError, PermissionDeniedError.
    """

    def __init__(self, url: str, work_id: str, databases: Mapping[str, str], columns: Mapping[str, str]) -> None:
        self.url = url
        self._work_id = work_id
        self._database, schema, name = names_of(url, databases)
        try:
            self._engine = limited_engine(
                make_url(databases[self._database]), _STATEMENT_SECONDS, poolclass=NullPool, hide_parameters=True
            )
        except (ArgumentError, NoSuchModuleError, ImportError, ValueError) as error:
            raise ConfigurationError(  # without its text, which may have the URL
                f"BATCHYARD_OUTPUT_DATABASES: {type(error).__name__} for the URL of {self._database}; write "
                "postgresql+psycopg://user:password@host/database"
            ) from None
        typed = (Column(name, _TYPES.get(type, _Json)(), primary_key=name == "line") for name, type in columns.items())
        self._table = Table(name, MetaData(), Column("batch_id", Text, primary_key=True), *typed, schema=schema)
        self._is_made = False

    def put(self, source: Path, name: str) -> None:
        """Replace the rows of these lines by those of a file of JSON lines, all or none.

        Raises UnavailableError; ConfigurationError: the database refuses it, and waiting does not help.
        """
        if not self._is_made:
            self._make()
        with source.open("rb") as stream:
            first = stream.readline()
            last = deque(stream, maxlen=1)
        if not first:
            return
        first_line, last_line = (json_lines.loads(line)["line"] for line in (first, last[0] if last else first))
        rows, table = self._rows(source), self._table
        with self._transaction(self._work_id) as connection:
            mine = (table.c.batch_id == self._work_id) & table.c.line.between(first_line, last_line)
            connection.execute(delete(table).where(mine))
            if self._engine.driver == "psycopg":
                quoted = self._engine.dialect.identifier_preparer
                columns = ", ".join(map(quoted.format_column, table.c))
                statement = f"COPY {quoted.format_table(table)} ({columns}) FROM STDIN"
                driver: Any = connection.connection.driver_connection
                with driver.cursor() as cursor, cursor.copy(statement) as copy:
                    for row in rows:
                        copy.write_row(row)
            else:
                while block := [dict(zip(table.c.keys(), row, strict=True)) for row in islice(rows, _INSERT_ROWS)]:
                    connection.execute(insert(table), block)

    def _make(self) -> None:
        """Create the table if it is missing. Raises ConfigurationError if it lacks a column."""
        name, schema = self._table.name, self._table.schema or ""
        limit = self._engine.dialect.max_identifier_length
        if max(len(name.encode()), len(schema.encode())) > limit:  # PostgreSQL would cut it
            raise self._refusal(f"its name or schema has more than {limit} bytes; choose a shorter one")
        with self._transaction(self._table.fullname) as connection:
            inspector = inspect(connection)
            if all(inspector.has_table(own, schema) for own in _OWN):
                raise self._refusal(f"schema {schema} has Batchyard's own tables; choose another schema")
            self._table.create(connection, checkfirst=True)
            present = {column["name"] for column in inspector.get_columns(name, schema)}
            if missing := [column.name for column in self._table.c if column.name not in present]:
                raise self._refusal(f"it has no column {', '.join(missing)}; add these, or name another table")
        self._is_made = True

    def _refusal(self, reason: str) -> ConfigurationError:
        return ConfigurationError(f"The table {self.url} cannot be written: {reason}.")

    def _rows(self, source: Path) -> Iterator[tuple[Any, ...]]:
        with source.open("rb") as stream:
            for line in stream:
                row = json_lines.loads(line) | {"batch_id": self._work_id}
                for column in self._table.c:
                    value = row[column.name]
                    if isinstance(column.type, _Json) and value is not None:
                        text = value if isinstance(value, str) else json_lines.dumps(value).decode()
                        row[column.name] = _NUL.sub("\\1\ufffd", text) if "\\u0000" in text else text
                yield tuple(row[column.name] for column in self._table.c)

    @contextmanager
    def _transaction(self, lock: str) -> Iterator[Connection]:
        """Open a transaction that excludes others with this `lock`, such as one of a worker that was cut off."""
        dbapi = self._engine.dialect.loaded_dbapi
        try:
            with self._engine.begin() as connection:
                if self._engine.dialect.name == "postgresql":
                    connection.execute(select(func.pg_advisory_xact_lock(func.hashtext(lock))))
                yield connection
        except (DBAPIError, dbapi.Error) as error:
            # The cause is left out of the traceback: its text may have values of rows.
            cause = getattr(error, "orig", None) or error
            reason = getattr(getattr(cause, "diag", None), "message_primary", None) or str(cause).strip()
            kinds = (dbapi.ProgrammingError, dbapi.DataError, dbapi.IntegrityError, dbapi.NotSupportedError)
            code = getattr(cause, "sqlstate", None) or getattr(cause, "sqlite_errorname", None) or ""
            if isinstance(cause, kinds) or code.startswith(_LASTING_CODES):
                raise self._refusal(
                    f"{reason}. The schema must exist, and the user of database {self._database} needs CREATE on it, "
                    "or SELECT, INSERT and DELETE on a table with the columns in docs/export.md"
                ) from None
            if _REFUSED_LOGIN.search(reason):
                reason = f"database {self._database} refuses the login: {reason.rpartition('FATAL:')[2].strip()}"
                raise self._refusal(f"{reason}; the operator has to correct BATCHYARD_OUTPUT_DATABASES") from None
            raise UnavailableError(f"database {self._database} cannot be written: {reason}") from None
