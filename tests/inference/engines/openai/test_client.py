"""What an endpoint's responses are to a request: its refusals are passed on, and no 200 without an answer passes."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import closing

import pytest

from batchyard.endpoints.responses import Fault
from batchyard.local import ports
from inference.engines.openai import client
from inference.engines.openai.client import Content, EndpointClient, NoReply, ProbeFailed
from inference.engines.openai.endpoints import RemoteEndpoint
from tests.support.servers import Reply, Server, listening


def talk(scene: Callable[[EndpointClient], Awaitable[None]]) -> None:
    """Run a scene with a client that is closed afterwards."""

    async def run() -> None:
        http = EndpointClient()
        try:
            await scene(http)
        finally:
            await http.close()

    asyncio.run(run())


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b'{"error": {"message": "too hot", "type": "BadRequestError", "code": 400}}', "too hot"),
        (b'{"error": "too hot"}', "too hot"),
        (b'{"detail": "too hot"}', "too hot"),
        (b'{"detail": [{"loc": ["body"]}]}', '[{"loc":["body"]}]'),
        (b"<html>too hot</html>", "<html>too hot</html>"),
        (b"", "HTTP 400 Bad Request"),
    ],
)
def test_a_refusal_has_the_endpoints_message_whatever_its_form(data: bytes, message: str) -> None:
    answer = client.refused(400, data)
    assert answer.body is not None
    assert (answer.status_code, answer.body["error"]["message"]) == (400, message)
    assert not isinstance(answer.body["error"].get("code"), int), "OpenAI's clients accept no number"


def test_a_refusal_keeps_the_endpoints_type_and_parameter() -> None:
    answer = client.refused(422, b'{"error": {"message": "no", "type": "invalid", "param": "top_k", "code": "bad"}}')
    assert answer.body is not None
    error = answer.body["error"]
    assert (error["type"], error["param"], error["code"]) == ("invalid", "top_k", "bad")


def test_a_200_without_an_answer_quotes_its_beginning() -> None:
    answer = client.no_answer("http://there/v1", b"  <html>\n" + b"x" * 1000, Fault("it is no JSON object"))
    assert answer.error is not None
    assert answer.error["code"] == "invalid_response"
    assert "http://there/v1: HTTP 200 without an answer: it is no JSON object: <html> xxx" in answer.error["message"]
    assert len(answer.error["message"]) < 500


@pytest.mark.parametrize("data", [b"", b"[]", b"7", b"{", b"null"])
def test_what_is_no_json_object_is_an_empty_one(data: bytes) -> None:
    assert client.json_object(data) == {}


def test_a_status_is_named_with_its_phrase() -> None:
    assert [client.described(status) for status in (404, 599)] == ["HTTP 404 Not Found", "HTTP 599"]


def test_a_request_to_a_port_where_nobody_listens_was_not_run() -> None:
    async def scene(http: EndpointClient) -> None:
        with closing(ports.Port("127.0.0.1", 0)) as port, pytest.raises(NoReply) as caught:
            await http.post(
                RemoteEndpoint(f"http://127.0.0.1:{port.number}/v1", 8, 0.0), "/chat/completions", Content(b"{}")
            )
        assert not caught.value.connected

    talk(scene)


def test_a_key_that_is_not_set_is_named_before_any_request(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("THEIR_KEY", raising=False)

    async def scene(http: EndpointClient) -> None:
        with pytest.raises(ProbeFailed, match="THEIR_KEY is not set") as caught:
            await http.probe(RemoteEndpoint("http://127.0.0.1:1/v1", 8, 0.0, api_key_env="THEIR_KEY"), "m")
        assert caught.value.fatal

    talk(scene)


@pytest.mark.parametrize("base", ["/v1", "/api/paas/v4", "/v1beta/openai", ""])
def test_openais_routes_stand_behind_the_base_url_whatever_it_ends_in(base: str) -> None:
    models = Reply(body=b'{"data": [{"id": "theirs"}]}')
    with listening(Server(files={f"{base}/models": models})) as server:
        endpoint = RemoteEndpoint(server.url.removesuffix("/v1") + base, 8, 0.0)

        async def scene(http: EndpointClient) -> None:
            await http.probe(endpoint, "theirs")
            for path in ("/v1/chat/completions", "/tokenize"):
                await http.post(endpoint, path, Content(b'{"model": "theirs", "messages": [{"content": "a"}]}'))

        talk(scene)
    root = base.removesuffix("/v1")
    assert server.paths == [f"{base}/chat/completions", f"{root}/tokenize"]


def test_a_base_url_without_models_that_lacks_v1_says_that_most_have_it() -> None:
    with listening(Server(probe=404)) as server:

        async def scene(http: EndpointClient) -> None:
            server.files["/health"] = Reply(404)
            with pytest.raises(ProbeFailed, match=r"404.*most servers end in /v1"):
                await http.probe(RemoteEndpoint(server.url.removesuffix("/v1"), 8, 0.0), "theirs")

        talk(scene)


def test_a_server_of_another_model_says_which_it_has() -> None:
    with listening(Server()) as server:

        async def scene(http: EndpointClient) -> None:
            with pytest.raises(ProbeFailed, match="not another-one") as caught:
                await http.probe(RemoteEndpoint(server.url, 8, 0.0), "another-one")
            assert caught.value.fatal
            await http.probe(RemoteEndpoint(server.url, 8, 0.0), "theirs")

        talk(scene)
