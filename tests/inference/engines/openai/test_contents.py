"""Audio of a request reaches an endpoint as a file, and its answers come back as texts."""

from __future__ import annotations

import asyncio
import base64
import json
from typing import Any

import pytest

from batchyard.endpoints import catalog, responses
from batchyard.models import ModelSpec
from inference.engine import EngineAnswer
from inference.engines.openai import client
from inference.engines.openai.engine import OpenAI
from tests.support.servers import Reply, Server, serving

PATH = catalog.TRANSCRIPTIONS.path
SOUND = b"RIFF....WAVEfmt sound"
DATA = f"data:audio/wav;base64,{base64.b64encode(SOUND).decode()}"


def ask(server: Server, **body: Any) -> EngineAnswer:
    entry: dict[str, Any] = {
        "model": "theirs",
        "endpoints": [{"url": server.url}],
        "backoff_seconds": 0.02,
        "watch_seconds": 0.05,
    }
    entry["allowed_media_domains"] = ["127.0.0.1"]

    async def scene() -> EngineAnswer:
        engine = OpenAI(ModelSpec(name="ours", engine="openai", endpoints=(PATH,), engine_args=entry), 60.0)
        await engine.start()
        try:
            return await engine.answer(PATH, {"model": "ours", **body})
        finally:
            await engine.stop()

    return asyncio.run(scene())


def test_audio_is_uploaded_as_a_file_with_the_parameters_beside_it() -> None:
    usage = {"type": "tokens", "input_tokens": 9, "output_tokens": 2, "total_tokens": 11}
    with serving(Server(script=[Reply(body=json.dumps({"text": "high low", "usage": usage}).encode())])) as (server,):
        answer = ask(
            server,
            **{"file_url": DATA, "language": "en", "temperature": 0, "timestamp_granularities": ["segment"]},
            **{"prompt": None, "vllm_xargs": {"a": 1}},
        )
    ((_, sent),) = server.asked
    assert sent.pop("file") == ("audio.wav", "audio/wav", SOUND)
    assert sent == {
        **{"model": "theirs", "language": "en", "temperature": "0"},
        **{"timestamp_granularities[]": "segment", "vllm_xargs": '{"a":1}'},
    }
    assert answer.status_code == 200 and answer.body is not None
    assert responses.output(answer.body).text == "high low" and answer.body["model"] == "ours"
    assert responses.usage(answer.body)[:3] == (9, None, 2)


def test_a_format_that_is_no_json_comes_back_as_the_text_that_it_is() -> None:
    subtitles = "1\n00:00:00,000 --> 00:00:01,000\nhigh\n"
    plain = Reply(headers={"Content-Type": "text/plain; charset=utf-8"}, body=subtitles.encode())
    page = Reply(headers={"Content-Type": "text/html"}, body=b"<html>welcome</html>")
    with serving(Server(script=[plain], always=page)) as (server,):
        answer = ask(server, file_url=DATA, response_format="srt")
        other = ask(server, file_url=DATA, response_format="srt")
    assert responses.output(answer.body).text == subtitles
    assert other.error is not None and other.error["code"] == "invalid_response"


def test_audio_of_a_url_is_fetched_once_and_uploaded() -> None:
    files = {"/a.flac": Reply(headers={"Content-Type": "audio/flac"}, body=SOUND)}
    with serving(Server(script=[Reply(503)], always=Reply(body=b'{"text": "low"}'), files=files)) as (server,):
        answer = ask(server, file_url=f"{server.url.removesuffix('/v1')}/a.flac")
    assert responses.output(answer.body).text == "low"
    assert [body["file"] for _, body in server.asked] == [("audio.flac", "audio/flac", SOUND)] * 2


@pytest.mark.parametrize(
    ("reply", "reason"),
    [
        (Reply(404), "could not be fetched: HTTP 404"),
        (Reply(302, {"Location": "http://127.0.0.1/"}), "could not be fetched: HTTP 302"),
        (Reply(body=b"x" * 100), "has more than"),
        (Reply(body=b"x", drop=True), "could not be fetched"),
    ],
)
def test_audio_that_cannot_be_fetched_is_that_requests_error(
    reply: Reply, reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client, "MAX_AUDIO_BYTES", 50)
    with serving(Server(files={"/a": reply})) as (server,):
        answer = ask(server, file_url=f"{server.url.removesuffix('/v1')}/a")
    assert answer.status_code == 400 and answer.body is not None
    error = answer.body["error"]
    assert (error["param"], error["code"]) == ("file_url", "invalid_file") and reason in error["message"]
    assert server.asked == []


def test_audio_of_a_domain_that_the_model_does_not_allow_is_not_fetched() -> None:
    with serving(Server(files={"/a": Reply(body=SOUND)})) as (server,):
        answer = ask(server, file_url=f"http://localhost:{server.port}/a")
    assert answer.status_code == 400 and answer.body is not None
    assert answer.body["error"]["code"] == "media_not_allowed" and server.asked == []
