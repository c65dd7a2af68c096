"""Files are found in their project until they are deleted or expire."""

from __future__ import annotations

import pytest
from sqlalchemy import update

from batchyard.errors import NotFoundError, RequestError
from store import files
from store.database import Database
from store.records import File
from tests.support.jobs import create_job
from tests.support.webapps import on_sqlite

pytestmark = on_sqlite


def upload(database: Database, project: str, name: str = "in.jsonl", purpose: str = "batch", **values: int) -> File:
    with database.write() as session:
        fields = {"filename": name, "purpose": purpose, "size": 3, "sha256": "a" * 64, "expires_after": None}
        return files.create(session, project, **{**fields, **values})  # type: ignore[arg-type]


def test_a_file_is_there_for_its_project_alone(database: Database, project: str) -> None:
    file = upload(database, project)
    with database.read() as session:
        assert files.get(session, project, file.id).filename == "in.jsonl"
        assert files.find(session, "proj_other", file.id) is None
        with pytest.raises(NotFoundError, match=f"No such File object: {file.id}"):
            files.get(session, "proj_other", file.id)


def test_a_deleted_file_is_gone_and_keeps_its_name_for_what_refers_to_it(database: Database, project: str) -> None:
    file = upload(database, project)
    with database.write() as session:
        files.delete(session, project, file.id)
    with database.write() as session:
        assert files.names(session, project, [file.id, "file-none"]) == {file.id: "in.jsonl", "file-none": "file-none"}
        with pytest.raises(NotFoundError):
            files.delete(session, project, file.id)


def test_a_file_expires_at_its_second(database: Database, project: str) -> None:
    file = upload(database, project, expires_after=60)
    assert file.expires_at == file.created_at + 60
    with database.write() as session:
        assert files.find(session, project, file.id) is not None
        session.execute(update(File).values(expires_at=file.created_at))
        assert files.find(session, project, file.id) is None


def test_a_list_has_live_files_of_a_purpose_in_either_order(database: Database, project: str) -> None:
    first, second = upload(database, project), upload(database, project)
    other, gone = upload(database, project, purpose="user_data"), upload(database, project)
    with database.write() as session:
        files.delete(session, project, gone.id)
    with database.read() as session:

        def listed(**terms: object) -> list[str]:
            page, _ = files.page(
                session,
                project,
                **{"after": None, "limit": 9, "descending": False, "purpose": None, **terms},  # type: ignore[arg-type]
            )
            return [file.id for file in page]

        assert listed() == [first.id, second.id, other.id]
        assert listed(descending=True, purpose="batch") == [second.id, first.id]
        assert listed(after=first.id, limit=1) == [second.id]
        assert listed(after=gone.id, descending=True) == [other.id, second.id, first.id], "a cursor may be deleted"
        with pytest.raises(RequestError):
            listed(after="file-none")


def test_an_artifact_is_named_after_its_owner_and_lives_as_long_as_that_says(database: Database, project: str) -> None:
    with database.write() as session:
        job = create_job(session, project, output_expires_after=60)
        file = files.create_output(session, job, "view.json", sha256="b" * 64, size=1)
    assert (file.filename, file.purpose, file.expires_at) == (
        f"{job.id}_view.json",
        "batch_output",
        file.created_at + 60,
    )
