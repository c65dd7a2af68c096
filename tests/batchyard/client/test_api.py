"""The API client tries again what may succeed, names the remedy otherwise, and walks lists page by page."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import httpx
import pytest

from batchyard.client import api
from batchyard.client.api import ApiClient
from batchyard.errors import AuthenticationError, BatchyardError, NotFoundError, RequestError, UnavailableError

URL = "http://server:8000"
Script = list[httpx.Response | Exception]


def refusal(status: int, message: str = "No.", **headers: str) -> httpx.Response:
    return httpx.Response(status, json={"error": {"message": message}}, headers=headers)


class Scripted:
    """A client whose server sends these responses in turn; what it was sent, and how long the client waited."""

    def __init__(self, script: Script, monkeypatch: pytest.MonkeyPatch) -> None:
        self.requests: list[httpx.Request] = []
        self.waits: list[float] = []
        self._script = script
        self.client = ApiClient(URL, "key")
        transport = httpx.MockTransport(self._respond)
        self.client._http = httpx.Client(base_url=f"{URL}/v1", transport=transport)
        monkeypatch.setattr(api.time, "sleep", self.waits.append)

    def _respond(self, request: httpx.Request) -> httpx.Response:
        self.requests.append(request)
        response = self._script.pop(0)
        if isinstance(response, Exception):
            raise response
        return response


@pytest.fixture
def scripted(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Scripted]:
    return lambda *script: Scripted(list(script), monkeypatch)


@pytest.mark.parametrize("failure", [httpx.ConnectError("away"), refusal(503), refusal(429), refusal(408)])
def test_what_may_succeed_is_sent_again_and_each_wait_is_longer(
    failure: httpx.Response | Exception, scripted: Callable[..., Scripted]
) -> None:
    server = scripted(failure, failure, httpx.Response(200, json={"id": "batch_1"}))
    assert server.client.batch("batch_1") == {"id": "batch_1"}
    assert len(server.requests) == 3
    assert 0 < server.waits[0] < server.waits[1]


def test_a_server_that_stays_away_is_unavailable_after_three_attempts(scripted: Callable[..., Scripted]) -> None:
    server = scripted(*[httpx.ConnectError("away")] * 3)
    with pytest.raises(UnavailableError, match=f"no server answers at {URL}: start one with `batchyard up`"):
        server.client.batch("batch_1")
    assert len(server.requests) == 3


def test_a_server_is_believed_how_long_to_wait_but_not_for_ever(scripted: Callable[..., Scripted]) -> None:
    server = scripted(refusal(429, **{"Retry-After": "7"}), httpx.Response(200, json={}))
    server.client.batch("batch_1")
    assert server.waits == [7]
    server = scripted(refusal(429, **{"Retry-After": "3600"}))
    with pytest.raises(RequestError):
        server.client.batch("batch_1")
    assert server.waits == []


@pytest.mark.parametrize(
    ("status", "error", "words"),
    [
        (401, AuthenticationError, "set BATCHYARD_API_KEY"),
        (404, NotFoundError, "a key sees only what its own project has"),
        (400, RequestError, "^No$"),
        (409, RequestError, "^No$"),
    ],
)
def test_a_refusal_is_raised_at_once_with_the_servers_words(
    status: int, error: type[BatchyardError], words: str, scripted: Callable[..., Scripted]
) -> None:
    server = scripted(refusal(status))
    with pytest.raises(error, match=words):
        server.client.batch("batch_1")
    assert len(server.requests) == 1


def test_a_failure_that_is_no_json_is_told_as_it_is(scripted: Callable[..., Scripted]) -> None:
    server = scripted(*[httpx.Response(502, text="<h1>Bad gateway</h1>")] * 3)
    with pytest.raises(UnavailableError, match="answered 502: <h1>Bad gateway</h1>"):
        server.client.batch("batch_1")


def test_a_list_is_fetched_page_by_page_and_filters_that_are_none_are_left_out(
    scripted: Callable[..., Scripted],
) -> None:
    pages = [
        {"data": [{"id": "a"}, {"id": "b"}], "has_more": True, "last_id": "b"},
        {"data": [{"id": "c"}], "has_more": False, "last_id": "c"},
    ]
    server = scripted(*(httpx.Response(200, json=page) for page in pages))
    assert [job["id"] for job in server.client.jobs(status="failed", recipe=None)] == ["a", "b", "c"]
    queries = [dict(request.url.params) for request in server.requests]
    assert queries == [{"limit": "100", "status": "failed"}, {"limit": "100", "status": "failed", "after": "b"}]


def test_a_file_appears_whole_or_not_at_all(scripted: Callable[..., Scripted], tmp_path: Path) -> None:
    file = tmp_path / "out.jsonl"
    scripted(httpx.Response(200, content=b"1\n2\n")).client.download("file-1", file)
    assert file.read_bytes() == b"1\n2\n" and list(tmp_path.iterdir()) == [file]
    with pytest.raises(NotFoundError):
        scripted(refusal(404)).client.download("file-2", file)
    assert file.read_bytes() == b"1\n2\n"


def test_lines_are_those_of_the_file_however_its_content_is_cut(scripted: Callable[..., Scripted]) -> None:
    pieces = iter([b'{"a": ', b"1}\n{", b'"b": 2}\n\n', b"last"])
    server = scripted(httpx.Response(200, content=pieces))
    assert list(server.client.lines("file-1")) == [b'{"a": 1}', b'{"b": 2}', b"", b"last"]


def test_a_stream_yields_its_events_and_raises_the_error_in_it(scripted: Callable[..., Scripted]) -> None:
    events = 'data: {"a": 1}\n\n: a comment\n\ndata: {"a": 2}\n\ndata: [DONE]\n\n'
    broken = 'data: {"a": 1}\n\ndata: {"error": {"message": "The engine ended.", "code": "engine_died"}}\n\n'
    server = scripted(httpx.Response(200, text=events), httpx.Response(200, text=broken), refusal(400, "Bad."))
    assert [event["a"] for event in server.client.stream("/chat/completions", {"model": "mini"})] == [1, 2]
    with pytest.raises(BatchyardError, match="The engine ended") as raised:
        list(server.client.stream("/chat/completions", {}))
    assert raised.value.code == "engine_died"
    with pytest.raises(RequestError, match="Bad"):
        list(server.client.stream("/chat/completions", {}))


@pytest.mark.parametrize("cut", ['data: {"choices": [{"index": 0, "delta": {}}]}\n\n', '{"choices": []}', ""])
def test_a_stream_that_ends_before_its_answer_does_is_an_error(scripted: Callable[..., Scripted], cut: str) -> None:
    with pytest.raises(UnavailableError, match="before the answer was whole"):
        list(scripted(httpx.Response(200, text=cut)).client.stream("/chat/completions", {}))


@pytest.mark.parametrize("name", ["..", "x/../../keys/key_1", "."])
def test_a_name_with_dots_between_slashes_reaches_nothing_else(name: str, scripted: Callable[..., Scripted]) -> None:
    server = scripted()
    with pytest.raises(NotFoundError, match="nothing of this name"):
        server.client.call("DELETE", f"/models/{name}")
    assert server.requests == []
