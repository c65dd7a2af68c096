"""PostgreSQL behind PgBouncer, which gives each transaction another connection of the server."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from sqlalchemy import create_engine, make_url, text

from batchyard.local import ports
from store.database import Database
from tests.support.held_ports import hold
from tests.support.rows import until

CONFIGURATION = """
[databases]
* = host={host} port={port} user={user}
[pgbouncer]
listen_addr = 127.0.0.1
listen_port = {own}
unix_socket_dir =
auth_type = any
pool_mode = transaction
default_pool_size = 4
ignore_startup_parameters = extra_float_digits,options
"""


@pytest.fixture
def pooled(postgresql_url: str) -> Iterator[str]:
    """The URL of a database by way of PgBouncer, pooled by transaction."""
    url = make_url(postgresql_url)
    own = hold()
    with tempfile.TemporaryDirectory(prefix="pgb-") as folder:
        Path(folder).chmod(0o755)
        file = Path(folder) / "pgbouncer.ini"
        host = url.host or url.query["host"]
        file.write_text(CONFIGURATION.format(host=host, port=url.port or 5432, user=url.username, own=own))
        # It does not run as root, and has to reach the server's socket.
        user = ["-u", Path(str(host)).owner() if str(host).startswith("/") else "nobody"] if os.geteuid() == 0 else []
        with subprocess.Popen(["pgbouncer", *user, str(file)], stderr=subprocess.DEVNULL) as pooler:
            try:
                until(lambda: ports.answers("127.0.0.1", own))
                yield url.set(host="127.0.0.1", port=own, query={}).render_as_string(hide_password=False)
            finally:
                pooler.terminate()


@pytest.mark.skipif(shutil.which("pgbouncer") is None, reason="PgBouncer is not installed")
def test_transactions_of_many_threads_meet_nothing_that_others_left_on_a_connection(pooled: str) -> None:
    database = Database(pooled)

    def write(number: int) -> int:
        with database.write() as session:
            return session.scalar(text("SELECT :number + 1"), {"number": number}) or 0

    with ThreadPoolExecutor(8) as threads:
        assert list(threads.map(write, range(320))) == list(range(1, 321))
    database.close()
    others = create_engine(pooled)
    with others.connect() as connection:
        assert connection.scalar(text("SHOW statement_timeout")) == "0", "the limits of ours reach no other client"
    others.dispose()


def test_without_a_pooler_a_statement_has_a_limit_on_the_server(postgresql_url: str) -> None:
    database = Database(postgresql_url, wait_seconds=4)
    with database.read() as session:
        assert session.scalar(text("SHOW statement_timeout")) == "5s"
        assert session.scalar(text("SHOW idle_in_transaction_session_timeout")) == "8s"
    database.close()
