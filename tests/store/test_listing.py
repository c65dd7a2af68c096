"""A list walked by cursor shows what was there all the time once, whatever comes and goes meanwhile."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest
from sqlalchemy import update

from batchyard.errors import RequestError
from store import files, keys
from store.database import Database
from store.records import File

NewFile = Callable[..., str]


@pytest.fixture
def new_file(database: Database, project: str) -> NewFile:
    """Makes a file; its id."""

    def make(purpose: str = "batch") -> str:
        with database.write() as session:
            return files.create(
                session, project, filename="f", purpose=purpose, size=0, sha256="0" * 64, expires_after=None
            ).id

    return make


def walk(
    database: Database, project: str, *, descending: bool, limit: int = 3, purpose: str | None = None
) -> list[str]:
    """The ids of all files, page by page."""
    ids: list[str] = []
    more = True
    while more:
        with database.read() as session:
            after = ids[-1] if ids else None
            page, more = files.page(session, project, after=after, limit=limit, descending=descending, purpose=purpose)
        assert page or not more
        ids += [file.id for file in page]
    return ids


@pytest.mark.parametrize("descending", [True, False])
def test_a_list_walked_while_files_come_and_go_shows_each_that_stayed_once(
    database: Database, project: str, new_file: NewFile, descending: bool
) -> None:
    file_ids = [new_file() for _ in range(40)]
    passing, staying = file_ids[::2], file_ids[1::2]
    walked = threading.Event()

    def come_and_go() -> None:
        chance = random.Random(0)
        alive = list(passing)
        while not walked.is_set():
            with database.write() as session:
                files.delete(session, project, alive.pop(chance.randrange(len(alive))))
            alive += [new_file(), new_file()][: 1 + (len(alive) < 20)]

    with ThreadPoolExecutor(1) as pool:
        other = pool.submit(come_and_go)
        try:
            walks = [walk(database, project, descending=descending) for _ in range(5)]
        finally:
            walked.set()
        other.result()
    for ids in walks:
        assert ids == sorted(set(ids), reverse=descending)
        assert [file_id for file_id in ids if file_id in staying] == sorted(staying, reverse=descending)


@pytest.mark.parametrize("descending", [True, False])
def test_a_list_goes_on_from_a_file_that_was_deleted_or_has_expired_since(
    database: Database, project: str, new_file: NewFile, descending: bool
) -> None:
    file_ids = sorted((new_file() for _ in range(4)), reverse=descending)
    with database.write() as session:
        files.delete(session, project, file_ids[0])
        session.execute(update(File).where(File.id == file_ids[1]).values(expires_at=1))
    for after_id, remaining in ((file_ids[0], file_ids[2:]), (file_ids[1], file_ids[2:])):
        with database.read() as session:
            page, more = files.page(session, project, after=after_id, limit=10, descending=descending, purpose=None)
        assert ([file.id for file in page], more) == (remaining, False)


def test_a_cursor_that_was_never_the_projects_is_refused(database: Database, project: str, new_file: NewFile) -> None:
    with database.write() as session:
        keys.create(session, "other")
        other = next(key for key in keys.page(session)[0] if key.project == "other")
        stranger = keys.authenticate(session, keys.create(session, other.project).key)
        assert stranger is not None
    file_id = new_file()
    with database.read() as session:
        for project_id, after in ((project, "file-nope"), (stranger.project_id, file_id)):
            with pytest.raises(RequestError, match=f"no object with id '{after}'"):
                files.page(session, project_id, after=after, limit=1, descending=True, purpose=None)


def test_a_list_of_one_purpose_shows_that_purpose_only(database: Database, project: str, new_file: NewFile) -> None:
    file_ids = [new_file(purpose) for purpose in ("batch", "evals") * 5]
    assert walk(database, project, descending=False, limit=2, purpose="evals") == file_ids[1::2]
