"""Streams that wait have comments, so that no proxy takes them for dead, and clients read the same events."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import anthropic
import httpx
import openai
import pytest

from batchyard.models import ModelSpec
from inference.engines.echo import Echo
from tasks.context import AppContext
from tasks.live import addresses
from tests.support.gateways import LiveEngine, LoopThread, RunningGateway, publish
from tests.support.rows import until
from tests.support.webapps import on_sqlite
from tests.webapp.gateway import conftest
from webapp.gateway import streams
from webapp.gateway.streams import EventStream

SILENCE = 0.1
pytestmark = on_sqlite
PROMPT = "three wagons"
BODIES: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {"messages": [{"role": "user", "content": PROMPT}]},
    "/v1/completions": {"prompt": PROMPT},
    "/v1/responses": {"input": PROMPT},
    "/v1/messages": {"messages": [{"role": "user", "content": PROMPT}], "max_tokens": 9},
}

DIALECTS = [path if path != "/v1/completions" else pytest.param(path, marks=pytest.mark.exhaustive) for path in BODIES]
"""Text completions have the events of chat completions."""


@pytest.fixture(autouse=True)
def commented(monkeypatch: pytest.MonkeyPatch) -> set[EventStream]:
    """The streams that have had a comment. They come soon here."""
    monkeypatch.setattr(streams, "COMMENT_SECONDS", SILENCE)
    monkeypatch.setattr(streams, "LOOK_SECONDS", SILENCE / 4)
    commented, send = set[EventStream](), EventStream.send

    async def noted(stream: EventStream, data: bytes) -> None:
        await send(stream, data)
        if data == streams.COMMENT:
            commented.add(stream)

    monkeypatch.setattr(EventStream, "send", noted)
    return commented


@pytest.fixture
def speak(thread: LoopThread, monkeypatch: pytest.MonkeyPatch) -> Callable[[], object]:
    """Lets engine `late` answer, which says nothing before."""
    may = asyncio.Event()
    monkeypatch.setattr(Echo, "_delay", lambda *_: may.wait())
    return lambda: thread.loop.call_soon_threadsafe(may.set)


@pytest.fixture
def late(
    live_context: AppContext, thread: LoopThread, monkeypatch: pytest.MonkeyPatch, speak: Callable[[], object]
) -> Iterator[LiveEngine]:
    """An engine that nobody has published yet."""
    spec = ModelSpec(name="late", engine="echo", endpoints=tuple(BODIES))
    monkeypatch.setitem(conftest.MODELS, "late", spec)
    engine = LiveEngine(thread, spec, name="engine-late")
    yield engine
    engine.stop()


def lines(http: httpx.Client, path: str) -> Iterator[str]:
    """Yield the lines of a stream as they come."""
    with http.stream("POST", path, json={"model": "late", "stream": True, **BODIES[path]}) as answer:
        assert answer.status_code == 200
        yield from answer.iter_lines()


@pytest.mark.parametrize("path", DIALECTS)
def test_a_stream_is_never_silent_for_long_before_its_first_token_and_its_events_are_the_same(
    late: LiveEngine, live_context: AppContext, http: httpx.Client, speak: Callable[[], object], path: str
) -> None:
    publish(live_context, "late", late)
    stream = lines(http, path)
    silent = list(itertools.islice(stream, 6))
    assert [line[:1] for line in silent] == [":", ""] * 3, "comments, and nothing else"
    speak()
    came = silent + list(stream)
    assert all("batchyard" not in line for line in came if line.startswith(":"))
    text = "".join(line for line in came if line.startswith("data:"))
    assert "three" in text and "wagons" in text


def test_a_stream_that_waits_for_an_engine_to_start_has_comments_and_then_its_answer(
    late: LiveEngine, live_context: AppContext, http: httpx.Client, speak: Callable[[], object]
) -> None:
    speak()
    came = lines(http, "/v1/chat/completions")
    assert next(came).startswith(":"), "headers and a comment come before the engine"
    publish(live_context, "late", late)
    assert "data: [DONE]" in list(came)


def test_clients_read_the_same_events(
    late: LiveEngine,
    live_context: AppContext,
    gateway: RunningGateway,
    key: str,
    commented: set[EventStream],
    speak: Callable[[], object],
) -> None:
    publish(live_context, "late", late)
    client = openai.OpenAI(base_url=f"{gateway.url}/v1", api_key=key, max_retries=0)
    messages: Any = [{"role": "user", "content": PROMPT}]
    other = anthropic.Anthropic(base_url=gateway.url, api_key=key, max_retries=0)

    def chat() -> str:
        stream = client.chat.completions.create(model="late", messages=messages, stream=True)
        return "".join(chunk.choices[0].delta.content or "" for chunk in stream)

    def response() -> str:
        with client.responses.stream(model="late", input=PROMPT) as events:
            return events.get_final_response().output_text

    def message() -> str:
        with other.messages.stream(model="late", max_tokens=9, messages=messages) as streamed:
            return "".join(streamed.text_stream)

    with ThreadPoolExecutor(3) as pool:
        reading = [pool.submit(read) for read in (chat, response, message)]
        try:
            until(lambda: len(commented) == 3)
        finally:
            speak()
        assert [read.result() for read in reading] == [PROMPT] * 3


@pytest.mark.usefixtures("late")
@pytest.mark.parametrize("path", DIALECTS)
def test_what_fails_after_the_first_comment_is_the_streams_error_event(
    live_context: AppContext,
    http: httpx.Client,
    gateway: RunningGateway,
    key: str,
    path: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(addresses, "FAILURE_SECONDS", 600)
    came = lines(http, path)
    assert next(came).startswith(":")
    streamed: Any = ()
    failing: Any = contextlib.nullcontext()
    if path == "/v1/messages":
        failing = pytest.raises(anthropic.APIError, match="does not start")
        client = anthropic.Anthropic(base_url=gateway.url, api_key=key, max_retries=0)
        streamed = client.messages.create(model="late", stream=True, **BODIES[path])
    elif path != "/v1/responses":
        failing = pytest.raises(openai.APIError, match="does not start")
        other = openai.OpenAI(base_url=gateway.url, api_key=key, max_retries=0)
        body = {"model": "late", "stream": True, **BODIES[path]}
        streamed = other.post(path, body=body, cast_to=object, stream=True, stream_cls=openai.Stream[Any])
    addresses.fail(live_context, "late", "no GPU has 80 GB")
    with failing:
        list(streamed)
    text = "\n".join(came)
    assert text.count("does not start: no GPU has 80 GB") == 1 and "[DONE]" not in text
    if path == "/v1/messages":
        assert '"type":"error"' in text and "event: error" in text
    elif path == "/v1/responses":
        assert '"type":"error"' in text and "event: error" in text and '"engine_failed"' in text
    else:
        assert '"engine_failed"' in text


def test_what_fails_before_has_its_status(http: httpx.Client) -> None:
    for path, body in BODIES.items():
        answer = http.post(path, json={"model": "nothing", "stream": True, **body})
        assert answer.status_code == 404
