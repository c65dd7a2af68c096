"""A file arrives in parts: within an hour, within twice its bytes, and once."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from sqlalchemy import func, select, update

from batchyard.errors import ConflictError, NotFoundError, RequestError
from store import files
from store.database import Database
from store.deletion import garbage, retention
from store.intake import uploads
from store.records import File, FileUpload, UploadPart

A, B, C = "a" * 64, "b" * 64, "c" * 64


@pytest.fixture
def upload(database: Database, project: str) -> FileUpload:
    """A pending upload of a file of 10 bytes."""
    with database.write() as session:
        return uploads.create(
            session, project, filename="in.jsonl", purpose="batch", size=10, file_expires_after=86_400
        )


def add(database: Database, upload: FileUpload, sha256: str, size: int) -> str:
    with database.write() as session:
        return uploads.add_part(session, upload.project_id, upload.id, sha256=sha256, size=size).id


def complete(database: Database, upload: FileUpload, *part_ids: str) -> str | None:
    with database.write() as session:
        file = uploads.complete(session, upload.project_id, upload.id, part_ids, sha256=C)[1]
    return file.id if file else None


def age(database: Database, upload: FileUpload, seconds: int) -> None:
    with database.write() as session:
        session.execute(update(FileUpload).values(expires_at=upload.expires_at - seconds))


def test_a_completed_upload_is_a_file_of_its_name_size_and_lifetime(database: Database, upload: FileUpload) -> None:
    file_id = complete(database, upload, add(database, upload, A, 4), add(database, upload, B, 6))
    with database.read() as session:
        file = session.get_one(File, file_id)
        assert (file.filename, file.purpose, file.bytes, file.sha256) == ("in.jsonl", "batch", 10, C)
        assert file.expires_at == file.created_at + 86_400
        assert session.scalar(select(func.count()).select_from(UploadPart)) == 0


def test_parts_are_chosen_in_the_order_in_which_they_are_named(database: Database, upload: FileUpload) -> None:
    first, second = add(database, upload, A, 4), add(database, upload, B, 6)
    with database.read() as session:
        assert [part.sha256 for part in uploads.chosen_parts(session, upload, [second, first])] == [B, A]


def test_the_same_bytes_again_are_the_same_part_which_may_stand_in_a_file_twice(
    database: Database, upload: FileUpload
) -> None:
    part_id = add(database, upload, A, 5)
    assert add(database, upload, A, 5) == part_id
    with database.read() as session:
        assert len(uploads.chosen_parts(session, upload, [part_id, part_id])) == 2


def test_parts_of_another_upload_or_of_too_few_bytes_make_no_file(database: Database, upload: FileUpload) -> None:
    with database.write() as session:
        other = uploads.create(
            session, upload.project_id, filename="b", purpose="batch", size=4, file_expires_after=None
        )
    mine, theirs = add(database, upload, A, 4), add(database, other, B, 4)
    with database.read() as session:
        with pytest.raises(RequestError, match=f"no part '{theirs}'") as refused:
            uploads.chosen_parts(session, upload, [mine, theirs])
        assert refused.value.param == "part_ids.1"
        with pytest.raises(RequestError, match="The parts have 4 bytes, and the upload was created for 10"):
            uploads.chosen_parts(session, upload, [mine])


def test_each_part_can_be_replaced_once_but_bytes_and_parts_are_bounded(
    database: Database, upload: FileUpload, monkeypatch: pytest.MonkeyPatch
) -> None:
    add(database, upload, A, 10)
    add(database, upload, B, 10)
    with pytest.raises(RequestError, match="its file has 10; cancel the upload"):
        add(database, upload, C, 1)
    monkeypatch.setattr(uploads, "MAX_PARTS", 2)
    with pytest.raises(RequestError, match="at most 2 parts"):
        add(database, upload, C, 0)


def test_parts_that_arrive_at_once_keep_the_bound(database: Database, upload: FileUpload) -> None:
    def try_to_add(digit: str) -> bool:
        try:
            add(database, upload, digit * 64, 10)
        except RequestError:
            return False
        return True

    with ThreadPoolExecutor(8) as pool:
        assert sum(pool.map(try_to_add, "01234567")) == 2


def test_an_upload_completes_once_and_says_the_same_again(database: Database, upload: FileUpload) -> None:
    part_id = add(database, upload, A, 10)
    with ThreadPoolExecutor(4) as pool:
        file_ids = list(pool.map(lambda _: complete(database, upload, part_id), range(4)))
    assert len(set(file_ids)) == 1
    with pytest.raises(ConflictError, match="Cannot complete an upload with status 'completed'"):
        complete(database, upload)
    with pytest.raises(ConflictError, match="Cannot add a part to an upload with status 'completed'"):
        add(database, upload, B, 1)
    with database.write() as session:
        files.delete(session, upload.project_id, str(file_ids[0]))
    assert complete(database, upload, part_id) is None


def test_a_cancelled_upload_takes_nothing_more_and_cancelling_twice_is_fine(
    database: Database, upload: FileUpload
) -> None:
    part_id = add(database, upload, A, 10)
    for _ in range(2):
        with database.write() as session:
            assert uploads.status(uploads.cancel(session, upload.project_id, upload.id)) == "cancelled"
    for act in (lambda: add(database, upload, B, 1), lambda: complete(database, upload, part_id)):
        with pytest.raises(ConflictError, match="status 'cancelled'; create a new one"):
            act()


def test_an_expired_upload_takes_no_part_but_what_was_being_completed_is(
    database: Database, upload: FileUpload
) -> None:
    part_id = add(database, upload, A, 10)
    age(database, upload, uploads.EXPIRES_AFTER)
    with pytest.raises(ConflictError, match="status 'expired'"):
        add(database, upload, B, 1)
    assert complete(database, upload, part_id)


def test_another_projects_upload_is_not_there(database: Database, upload: FileUpload) -> None:
    with database.read() as session, pytest.raises(NotFoundError, match=f"No such Upload object: {upload.id}"):
        uploads.get(session, "proj_other", upload.id)


def test_content_of_parts_is_kept_until_the_upload_is_abandoned(database: Database, upload: FileUpload) -> None:
    add(database, upload, A, 10)
    now = time.time()

    def purge(at: float, before: float) -> dict[str, int]:
        with database.write() as session:
            olds = [old for old in retention.others(at, before) if old.record in (UploadPart, FileUpload)]
            return {
                old.record.__name__: retention.purge(session, old, keys)
                for old in olds
                if (keys := retention.find(session, old))
            }

    with database.read() as session:
        assert garbage.referenced(session, [A, B], now, now) == {A}
    assert purge(upload.expires_at + 10, now) == {}, "it may be about to become a file"
    later = upload.expires_at + uploads.EXPIRES_AFTER
    assert purge(later, now) == {"UploadPart": 1}
    with database.read() as session:
        assert garbage.referenced(session, [A, B], now, now) == set()
    assert purge(later, later) == {"FileUpload": 1}
