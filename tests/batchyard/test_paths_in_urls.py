"""A path is a path in a URL, whatever characters it has."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sqlalchemy import text
from sqlalchemy.engine import make_url

from batchyard import settings
from batchyard.settings import folder_url, sqlite_url
from store.artifacts import Artifacts, file_system
from store.backup import creation, restoring
from store.database import Database

NAMES = ["runs?a", "seed=1?lr=2", "50%25 #1", "a::b", "[x]*", "ü +&;", "a'b\"c\\d"]
ALL = "".join(NAMES)
"""One that has whatever any of them has."""


@given(st.text(st.characters(exclude_characters="/\x00", exclude_categories=["Cs"]), min_size=1))
def test_a_url_has_the_path_and_nothing_more(name: str) -> None:
    path = Path("/data") / name
    url = make_url(sqlite_url(path))
    assert (url.database, dict(url.query), url.host) == (str(path), {}, None)


@pytest.mark.long
@pytest.mark.parametrize("name", [ALL, *(pytest.param(name, marks=pytest.mark.exhaustive) for name in NAMES)])
def test_a_data_folder_of_any_name_has_its_own_rows_and_content(
    tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    data = tmp_path / name
    data.mkdir()
    configuration = settings.load(data=data)
    database, artifacts = Database(configuration.database), Artifacts(configuration.artifacts)
    database.upgrade()
    sha256 = artifacts.put(b"a")
    assert (data / "batchyard.db").exists() and file_system(configuration.artifacts)[1] == str(data / "artifacts")
    backup = tmp_path / f"{name}-backup"
    creation.create(backup, database, artifacts, garbage_grace_seconds=0, results_seconds=0)
    restored = Database(sqlite_url(tmp_path / f"{name}-restored/rows.db"))
    restoring.restore(backup, restored, Artifacts(folder_url(tmp_path / f"{name}-restored/a")))
    with restored.read() as session:
        assert session.execute(text("SELECT count(*) FROM batches")).scalar() == 0
    restored.close()
    database.close()
    assert artifacts.read(sha256) == b"a"
    assert {path.name for path in tmp_path.iterdir()} == {name, f"{name}-backup", f"{name}-restored"}
