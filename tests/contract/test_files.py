"""/v1/files, as contract.md promises it."""

from __future__ import annotations

import httpx
import openai
import pytest

from tests.contract.conftest import refusal
from tests.support.stacks import RunningStack


def test_a_file_comes_back_byte_for_byte_under_its_base_name(stack: RunningStack) -> None:
    content = bytes(range(256)) * 1000
    file = stack.client.files.create(file=("../../etc/x.bin", content), purpose="user_data")
    assert (file.bytes, file.filename, file.object) == (len(content), "x.bin", "file")
    assert stack.client.files.content(file.id).content == content


def test_a_file_is_processed_at_once(stack: RunningStack) -> None:
    file = stack.client.files.create(file=("in.jsonl", b"{}"), purpose="batch")
    assert (file.status, file.status_details) == ("processed", None)
    assert stack.client.files.wait_for_processing(file.id).id == file.id


def test_batch_uploads_expire_after_30_days_and_others_never(stack: RunningStack) -> None:
    batch = stack.client.files.create(file=("in.jsonl", b"{}"), purpose="batch")
    other = stack.client.files.create(file=("in.jsonl", b"{}"), purpose="user_data")
    assert (batch.expires_at, other.expires_at) == (batch.created_at + 30 * 86400, None)


def test_a_file_expires_when_it_is_told_to(stack: RunningStack) -> None:
    expires_after = {"anchor": "created_at", "seconds": 3600}
    file = stack.client.files.create(file=b"x", purpose="batch", expires_after=expires_after)  # type: ignore[arg-type]
    assert file.expires_at == file.created_at + 3600
    for seconds in (3599, 2592001):
        with pytest.raises(openai.BadRequestError) as caught:
            stack.client.files.create(file=b"x", purpose="batch", expires_after=expires_after | {"seconds": seconds})  # type: ignore[arg-type]
        assert caught.value.param == "expires_after.seconds"


@pytest.mark.parametrize("purpose", ["assistants", "batch", "fine-tune", "vision", "user_data", "evals"])
def test_every_upload_purpose_is_accepted(stack: RunningStack, purpose: str) -> None:
    assert stack.client.files.create(file=b"x", purpose=purpose).purpose == purpose  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("fields", "param"),
    [({"purpose": "nonsense"}, "purpose"), ({"purpose": "batch_output"}, "purpose"), ({}, "purpose")],
)
def test_an_upload_without_a_purpose_of_ours_is_refused(http: httpx.Client, fields: dict[str, str], param: str) -> None:
    answer = http.post("/v1/files", files={"file": b"x"}, data=fields)
    assert (answer.status_code, refusal(answer)["param"]) == (400, param)


def test_an_upload_without_a_file_or_with_two_is_refused(http: httpx.Client) -> None:
    missing = http.post("/v1/files", data={"purpose": "batch"})
    assert (missing.status_code, refusal(missing)["code"]) == (400, "missing_required_parameter")
    assert http.post("/v1/files", json={}).status_code == 400
    twice = http.post("/v1/files", data={"purpose": "batch"}, files=[("file", b"x"), ("file", b"y")])
    assert (twice.status_code, refusal(twice)["param"]) == (400, "file")


def test_files_are_listed_newest_first_or_oldest_first_and_by_purpose(stack: RunningStack) -> None:
    ids = [stack.client.files.create(file=("a.txt", b"x"), purpose="evals").id for _ in range(5)]
    listed = [file.id for file in stack.client.files.list(purpose="evals", limit=2)]
    assert listed[:5] == ids[::-1]
    listed = [file.id for file in stack.client.files.list(purpose="evals", limit=2, order="asc")]
    assert listed[-5:] == ids


def test_a_page_says_its_first_and_last_and_whether_there_is_more(stack: RunningStack, http: httpx.Client) -> None:
    ids = [stack.client.files.create(file=b"x", purpose="vision").id for _ in range(3)]
    page = http.get("/v1/files", params={"purpose": "vision", "limit": 2}).json()
    assert (page["object"], page["first_id"], page["last_id"], page["has_more"]) == ("list", ids[2], ids[1], True)
    rest = http.get("/v1/files", params={"purpose": "vision", "limit": 10000, "after": ids[0]}).json()
    assert rest["has_more"] is False
    empty = http.get("/v1/files", params={"purpose": "fine-tune-results"}).json()
    assert empty == {"object": "list", "data": [], "first_id": None, "last_id": None, "has_more": False}


def test_a_walk_goes_on_from_a_file_that_was_deleted_meanwhile(stack: RunningStack, http: httpx.Client) -> None:
    ids = [stack.client.files.create(file=b"x", purpose="assistants").id for _ in range(4)]
    first = http.get("/v1/files", params={"purpose": "assistants", "limit": 2}).json()
    stack.client.files.delete(ids[2])
    rest = http.get("/v1/files", params={"purpose": "assistants", "limit": 2, "after": first["last_id"]}).json()
    assert [file["id"] for file in rest["data"]] == [ids[1], ids[0]]


@pytest.mark.parametrize("query", ["after=file-nope", "limit=0", "limit=10001", "limit=x", "order=up", "after=%00"])
def test_a_list_that_cannot_be_is_refused(http: httpx.Client, query: str) -> None:
    answer = http.get(f"/v1/files?{query}")
    assert (answer.status_code, refusal(answer)["param"]) == (400, query.partition("=")[0])


def test_a_deleted_file_is_gone_at_once(stack: RunningStack, http: httpx.Client) -> None:
    file = stack.client.files.create(file=b"x", purpose="user_data")
    assert stack.client.files.delete(file.id).to_dict() == {"id": file.id, "object": "file", "deleted": True}
    for method, path in (("GET", ""), ("GET", "/content"), ("DELETE", "")):
        answer = http.request(method, f"/v1/files/{file.id}{path}")
        assert (answer.status_code, refusal(answer)["type"]) == (404, "invalid_request_error")
    assert file.id not in [entry.id for entry in stack.client.files.list(purpose="user_data")]


def test_an_upload_without_content_length_is_stored_too(http: httpx.Client) -> None:
    head = b'--x\r\nContent-Disposition: form-data; name="purpose"\r\n\r\nuser_data\r\n'
    head += b'--x\r\nContent-Disposition: form-data; name="file"; filename="a"\r\n\r\n'
    chunks = iter([head, b"a" * 100_000, b"b" * 100_000, b"\r\n--x--\r\n"])
    answer = http.post("/v1/files", content=chunks, headers={"Content-Type": "multipart/form-data; boundary=x"})
    assert answer.json()["bytes"] == 200_000
