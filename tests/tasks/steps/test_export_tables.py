"""Step export to a table: each row is there once, whoever writes it again, and an error has its remedy."""

from __future__ import annotations

import json
import random
import string
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import openai
import pytest
from sqlalchemy import create_engine, make_url, text
from sqlalchemy.exc import OperationalError

from batchyard.errors import ConfigurationError, PermissionDeniedError, UnavailableError
from store.artifacts import Artifacts
from store.formats.results import ResultRow
from tasks.steps import registry
from tests.support.postgresql import create_database
from tests.support.rows import until
from tests.support.stacks import RunningStack, a_chat
from tests.support.step_results import BatchResults, a_row


@pytest.fixture
def database(postgresql: str) -> str:
    """The URL of an empty database of a real PostgreSQL server."""
    return create_database(postgresql)


@pytest.fixture
def reader(database: str) -> Iterator[str]:
    """The URL of the database as a user of it who may not write."""
    query(database, "CREATE ROLE reader LOGIN PASSWORD 'secret-of-reader'")
    yield make_url(database).set(username="reader", password="secret-of-reader").render_as_string(hide_password=False)
    query(database, "DROP ROLE reader")


@pytest.fixture
def wrong_password(database: str, reader: str) -> Iterator[str]:
    """The URL of the database with a password that its server refuses."""
    rules = Path(query(database, "SHOW hba_file")[0][0])
    trusting = rules.read_text()
    rules.write_text(f"local all reader scram-sha-256\nhost all reader all scram-sha-256\n{trusting}")
    query(database, "SELECT pg_reload_conf()")
    url = make_url(reader).set(password="hunter2").render_as_string(hide_password=False)

    def is_refused() -> bool:
        try:
            return not query(url, "SELECT 1")
        except OperationalError:
            return True

    until(is_refused)
    yield url
    rules.write_text(trusting)
    query(database, "SELECT pg_reload_conf()")


def query(url: str, statement: str) -> list[Any]:
    engine = create_engine(url, isolation_level="AUTOCOMMIT")
    with engine.connect() as connection:
        result = connection.execute(text(statement))
        rows = [tuple(row) for row in result] if result.returns_rows else []
    engine.dispose()
    return rows


def answers(count: int) -> list[ResultRow]:
    return [a_row(number, f"answer {number}", None) for number in range(count)]


def export(
    artifacts: Artifacts,
    url: str,
    rows: list[ResultRow],
    *,
    table: str = "public/answers",
    batch_id: str = "batch_1",
    **options: Any,
) -> Mapping[str, Any]:
    results = BatchResults(artifacts, rows, {"warehouse": url}, batch_id)
    return registry.run({"step": "export", "url": f"table://warehouse/{table}", "partition": 10, **options}, results)


@pytest.mark.parametrize("backend", ["postgresql", "sqlite"])
def test_rows_of_batches_are_added_to_a_table_that_is_made_and_again_change_nothing(
    request: pytest.FixtureRequest, artifacts: Artifacts, tmp_path: Path, backend: str
) -> None:
    is_sqlite = backend == "sqlite"
    url = f"sqlite:///{tmp_path}/out.db" if is_sqlite else request.getfixturevalue("database")
    table = f"{'main' if is_sqlite else 'public'}/Answers-{{id}}.{{date}}"
    name = '"Answers-batch_1.1970-01-01"'
    outcome = export(artifacts, url, answers(25), table=table)
    summary = {
        "url": f"table://warehouse/{table.replace('{id}', 'batch_1').replace('{date}', '1970-01-01')}",
        "rows": 25,
    }
    assert outcome == {"status": "completed", "summary": summary}
    export(artifacts, url, answers(25), table=table)
    export(artifacts, url, answers(3), table=table.replace("{id}", "batch_1"), batch_id="batch_2")
    rows = query(url, f"SELECT batch_id, line, custom_id, text FROM {name} ORDER BY batch_id, line")
    assert rows == [
        (f"batch_{batch}", number, f"id-{number}", f"answer {number}")
        for batch, count in ((1, 25), (2, 3))
        for number in range(count)
    ]


def test_columns_have_types_and_what_is_nested_is_json(artifacts: Artifacts, database: str) -> None:
    good, bad = a_row(1, "3 \0 \u2028 \\N \\u0000 \t", "3"), a_row(2, None, "7")
    export(artifacts, database, [good, bad])
    assert query(
        database, "SELECT status_code, text, output_tokens, seconds, error_code FROM answers ORDER BY line"
    ) == [
        (200, "3 \ufffd \u2028 \\N \\u0000 \t", 2, 0.5, None),
        (None, None, None, None, "request_timeout"),
    ]
    answer = "response->'choices'->0->'message'->>'content'"
    assert query(database, f"SELECT {answer}, metadata->>'expected' FROM answers ORDER BY line") == [
        ("3 \ufffd \u2028 \\N \\u0000 \t", "3"),
        (None, "7"),
    ]
    types = "SELECT column_name, data_type FROM information_schema.columns WHERE table_name = 'answers'"
    assert (
        dict(query(database, types)).items()
        >= {
            "line": "bigint",
            "text": "text",
            "input_tokens": "bigint",
            "seconds": "double precision",
            "embeddings": "json",
            "response": "json",
        }.items()
    )


def test_a_part_is_there_whole_or_not_at_all(artifacts: Artifacts, database: str) -> None:
    export(artifacts, database, [])
    query(database, "ALTER TABLE answers ADD CONSTRAINT short CHECK (line <> 15)")
    with pytest.raises(ConfigurationError, match='violates check constraint "short"'):
        export(artifacts, database, answers(25))
    assert query(database, "SELECT count(*) FROM answers") == [(10,)]
    query(database, "ALTER TABLE answers DROP CONSTRAINT short")
    export(artifacts, database, answers(25))
    assert query(database, "SELECT count(*), count(DISTINCT line) FROM answers") == [(25, 25)]


def test_those_who_write_at_once_write_each_row_once(artifacts: Artifacts, database: str) -> None:
    with ThreadPoolExecutor(6) as threads:
        list(
            threads.map(
                lambda number: export(artifacts, database, answers(45), batch_id=f"batch_{number % 2}"), range(6)
            )
        )
    assert query(database, "SELECT batch_id, count(*), count(DISTINCT line) FROM answers GROUP BY 1 ORDER BY 1") == [
        ("batch_0", 45, 45),
        ("batch_1", 45, 45),
    ]


def test_a_database_that_is_away_is_waited_for_without_a_word_of_its_password(artifacts: Artifacts) -> None:
    with pytest.raises(UnavailableError, match="database warehouse cannot be written: ") as error:
        export(artifacts, "postgresql+psycopg://writer:hunter2@127.0.0.1:1/out", answers(1))
    assert "hunter2" not in str(error.value)


def test_what_waiting_does_not_mend_fails_with_a_remedy(artifacts: Artifacts, database: str, reader: str) -> None:
    export(artifacts, database, [])
    long = "".join(random.Random(1).choices(string.ascii_letters, k=20_000))
    query(database, "CREATE TABLE other (batch_id text, line bigint)")
    query(database, "CREATE TABLE indexed (LIKE answers)")
    query(database, "CREATE INDEX ON indexed (custom_id, text)")
    query(database, "CREATE TABLE numbers (LIKE answers)")
    query(database, "ALTER TABLE numbers ALTER COLUMN custom_id TYPE bigint USING NULL")
    for url, table, reason in (
        (reader, "public/answers", "permission denied for table answers"),
        (reader, "public/new", "permission denied for schema public"),
        (database, "missing/answers", 'schema "missing" does not exist'),
        (database, "public/indexed", "index row requires 20024 bytes"),
        (database, "public/numbers", 'invalid input syntax for type bigint: "id-0"'),
        (database, f"public/{'n' * 64}", "its name or schema has more than 63 bytes; choose"),
        (database, f"{'s' * 64}/answers", "its name or schema has more than 63 bytes; choose"),
        (database, f"public/{'名' * 22}", "its name or schema has more than 63 bytes; choose"),
        (database, "public/other", "has no column custom_id, model,"),
    ):
        with pytest.raises(ConfigurationError, match=reason) as error:
            export(artifacts, url, [a_row(0, long, None)], table=table)
        assert "choose" in str(error.value) or "another table" in str(error.value) or "needs CREATE" in str(error.value)
        assert "secret-of-reader" not in str(error.value)


def test_a_login_that_is_refused_ends_the_step_and_names_the_setting(
    artifacts: Artifacts, database: str, wrong_password: str
) -> None:
    for url, reason in (
        (make_url(wrong_password), 'password authentication failed for user "reader"'),
        (make_url(database).set(username="nobody", password="hunter2"), 'role "nobody" does not exist'),
        (make_url(database).set(database="gone"), 'database "gone" does not exist'),
    ):
        with pytest.raises(ConfigurationError, match=f"refuses the login: {reason}; .* BATCHYARD_OUT") as error:
            export(artifacts, url.render_as_string(hide_password=False), answers(1))
        assert "hunter2" not in str(error.value)


def test_what_waiting_does_not_mend_fails_on_sqlite_too(artifacts: Artifacts, tmp_path: Path) -> None:
    for url, table, reason in (
        (f"sqlite:///{tmp_path}/out.db", "gone/answers", "unknown database"),
        (f"sqlite:///{tmp_path}/out.db", "temp/answers", "no such table"),
        (f"sqlite:///{tmp_path}/none/out.db", "main/answers", "unable to open database file"),
    ):
        with pytest.raises(ConfigurationError, match=reason):
            export(artifacts, url, answers(1), table=table)


def test_a_schema_with_the_tables_of_batchyard_is_refused(artifacts: Artifacts, migrated_postgresql: str) -> None:
    with pytest.raises(ConfigurationError, match="schema public has Batchyard's own tables; choose another schema"):
        export(artifacts, migrated_postgresql, answers(1))
    query(migrated_postgresql, "CREATE SCHEMA results")
    export(artifacts, migrated_postgresql, answers(1), table="results/answers")
    query(migrated_postgresql, "DROP SCHEMA results CASCADE")


@pytest.mark.parametrize("table", ["public", "public/a/b", "public/a b", "public/a%", 'public/a"', ""])
def test_a_url_that_names_no_table_is_refused(artifacts: Artifacts, table: str) -> None:
    with pytest.raises(PermissionDeniedError, match="write table://DATABASE/SCHEMA/TABLE"):
        export(artifacts, "sqlite://", answers(1), table=table)


def test_a_database_whose_url_cannot_be_used_is_named_without_it(artifacts: Artifacts) -> None:
    for url in ("nothing://user:hunter2@host/db", "postgresql://user:hunter2@host:port/db"):
        with pytest.raises(
            ConfigurationError, match=r"BATCHYARD_OUTPUT_DATABASES: \w+ for the URL of warehouse"
        ) as error:
            export(artifacts, url, answers(1))
        assert "hunter2" not in str(error.value)


def test_a_batch_exports_to_a_table_that_the_operator_allows_and_to_no_other(stack: RunningStack) -> None:
    step = {"step": "export", "url": "table://lake/main/{name}"}
    requests = [a_chat(f"r{number}", f"text {number}") for number in range(5)]
    batch = stack.wait(stack.submit(requests, extra_body={"post_process": [step]}, metadata={"name": "to a table"}))
    (entry,) = batch.batchyard["post_process"]
    assert entry["summary"] == {"url": "table://lake/main/to-a-table", "rows": 5}, entry
    url = stack.environment["BATCHYARD_OUTPUT_DATABASES"].partition("=")[2]
    rows = query(url, 'SELECT batch_id, custom_id, text, response FROM "to-a-table" ORDER BY line')
    assert [row[:3] for row in rows] == [(batch.id, f"r{number}", f"text {number}") for number in range(5)]
    assert [json.loads(row[3])["model"] for row in rows] == ["echo"] * 5
    for url, reason in (
        ("table://other/main/a", "cannot be written here"),
        ("table://gone/main/a", "has no 'gone'"),
        ("table://lake/main", "write table://DATABASE/SCHEMA/TABLE"),
    ):
        with pytest.raises(openai.PermissionDeniedError, match=reason):
            stack.submit(requests, extra_body={"post_process": [step | {"url": url}]})
