"""What servers that others run say of themselves: their models, and what an answer shows that they can do."""

from __future__ import annotations

import json
import tomllib
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from batchyard import models
from batchyard.errors import ConfigurationError
from batchyard.local import ports
from inference import catalog
from inference.doctor import servers
from inference.doctor.folder import Finding
from tests.support.servers import Reply, Server, answer, listening, serving


@dataclass
class AbleServer(Server):
    """A server that can do all but embeddings; `older`: nor does it know `stream_options`."""

    older: bool = False

    def chosen(self, body: dict[str, Any]) -> Reply:
        if "input" in body:
            return Reply(404, body=b'{"error": {"message": "no embeddings here"}}')
        if "prompt" in body:
            return Reply(body=json.dumps({"choices": [{"text": "5", "finish_reason": "stop"}]}).encode())
        if "stream_options" in body and self.older:
            return Reply(400, body=b'{"error": {"message": "Extra inputs are not permitted: stream_options"}}')
        document = json.loads(answer(body).body or b"")
        choice = document["choices"][0]
        if body.get("stream"):
            events: list[dict[str, Any]] = [{"choices": [{"index": 0, "delta": {"content": "5"}}]}]
            events += [{"choices": [], "usage": document["usage"]}] if "stream_options" in body else []
            lines = "".join(f"data: {json.dumps(event)}\n\n" for event in events)
            return Reply(headers={"Content-Type": "text/event-stream"}, body=f"{lines}data: [DONE]\n\n".encode())
        if "response_format" in body:
            choice["message"]["content"] = '{"even": true}'
        if "tools" in body:
            choice["message"]["tool_calls"] = [{"function": {"name": "add", "arguments": '{"number": 5}'}}]
        document["choices"] *= body.get("n", 1)
        document["usage"]["completion_tokens"] = body.get("max_completion_tokens", 3)
        choice["logprobs"] = {"content": [{"token": "5", "logprob": 0.0}]} if body.get("logprobs") else None
        return Reply(body=json.dumps(document).encode())


def asked(server: Server, *names: str) -> dict[str, Finding]:
    return {finding.check: finding for finding in servers.check(servers.listed(server.url), None, names)}


def test_a_server_is_asked_for_each_ability_and_what_it_lacks_has_a_reason_and_what_follows() -> None:
    with listening(AbleServer(older=True)) as server:
        findings = asked(server)
    lacking = {name: finding for name, finding in findings.items() if finding.result != "ok"}
    assert findings["models"].detail == "theirs" and lacking.keys() == {"embeddings", "stream_options.include_usage"}
    assert lacking["embeddings"].detail == "HTTP 404: no embeddings here"
    assert "Extra inputs" in lacking["stream_options.include_usage"].detail
    assert lacking["stream_options.include_usage"].remedy == "tokens of streams are not counted"
    assert servers.is_usable(list(findings.values()))


def test_a_server_that_ignores_what_it_is_asked_for_lacks_it() -> None:
    with listening(Server()) as server:
        findings = asked(server)
    able = {name for name, finding in findings.items() if finding.result == "ok"}
    assert able == {"models", "chat", "max_completion_tokens"}, "its answers have one token"
    assert findings["logprobs"].detail == "the answer does not show it"


def test_a_server_that_answers_nothing_cannot_be_used() -> None:
    with listening(Server(always=Reply(500))) as server:
        findings = list(servers.check(servers.listed(server.url), None))
        assert len(server.asked) == 3, "what depends on chats is not asked"
    assert not servers.is_usable(findings)


def test_all_models_of_all_servers_become_entries_that_are_read_as_a_models_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("THEIR_KEY", "sk-1")
    routes = Reply(body=json.dumps({"paths": {"/v1/chat/completions": {}, "/v1/score": {}, "/other": {}}}).encode())
    first, second = Server(serves="acme/one", files={"/openapi.json": routes}), Server(serves="acme/one")
    with serving(first, second, Server(serves='two "b"')) as all_of_them:
        listed = [servers.listed(server.url.removesuffix("/v1"), "THEIR_KEY") for server in all_of_them]
    file = tmp_path / "servers.toml"
    entries = servers.entries(listed, "THEIR_KEY")
    file.write_text("".join(models.written(name, entry) for name, entry in entries.items()))
    specs = catalog.load(file)
    assert list(specs) == ["acme/one", 'two "b"'] == list(tomllib.loads(file.read_text())["models"])
    assert [entry["url"] for entry in specs["acme/one"].engine_args["endpoints"]] == [first.url, second.url]
    assert specs["acme/one"].engine_args["api_key_env"] == "THEIR_KEY"
    assert specs["acme/one"].endpoints == (
        *("/v1/chat/completions", "/v1/score"),
        *("/v1/completions", "/v1/embeddings"),
    )


def test_a_server_that_cannot_be_asked_says_why_and_what_to_do() -> None:
    with closing(ports.Port("127.0.0.1", 0)) as port, pytest.raises(ConfigurationError, match=r"refused.*start it"):
        servers.listed(f"http://127.0.0.1:{port.number}/v1")
    with pytest.raises(ConfigurationError, match="write the base URL"):
        servers.listed("gpu1:8000")
    with pytest.raises(ConfigurationError, match="NO_SUCH_KEY is not set"):
        servers.listed("http://127.0.0.1:1/v1", "NO_SUCH_KEY")
    with listening(Server(probe=401)) as locked, pytest.raises(ConfigurationError, match="--server-key-env"):
        servers.listed(locked.url)
    with listening(Server(probe=404)) as other, pytest.raises(ConfigurationError, match="lists no models"):
        servers.listed(other.url)
    with listening(Server()) as server, pytest.raises(ConfigurationError, match="no model 'mine'; it has theirs"):
        asked(server, "mine")
