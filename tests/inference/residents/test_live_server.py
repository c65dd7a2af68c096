"""The live server of an engine actor, over HTTP."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncGenerator, Awaitable, Callable
from typing import Any

import aiohttp
import pytest

from batchyard.endpoints.catalog import CHAT, EMBEDDINGS, MESSAGES
from batchyard.endpoints.live_wire import PROJECT, REPORT, REQUEST, REQUESTS, TIER, WAIT_SECONDS, split_report
from batchyard.errors import EngineDied
from batchyard.models import ModelSpec
from inference.engine import EngineAnswer
from inference.engines.echo import Echo
from inference.residents.admission import AdmissionQueue, Preempted
from inference.residents.live_server import LiveServer
from inference.residents.status import LiveAddress
from tests.support.rows import chat

Scene = Callable[[aiohttp.ClientSession, LiveAddress, AdmissionQueue], Awaitable[None]]


def served(scene: Scene, engine: Echo | None = None, *, places: int = 4, over: bool = False, **arguments: Any) -> None:
    """Run a scene with a client of the server of an engine."""
    engine = engine or Echo(ModelSpec(name="m", engine="echo", engine_args=arguments), 600.0)

    async def run() -> None:
        queue = AdmissionQueue(2 * places, places=places)
        server = LiveServer(
            engine, queue, busy=contextlib.nullcontext, died=lambda reason: f"died: {reason}", is_over=lambda: over
        )
        address = await server.start("127.0.0.1")
        headers = {"Authorization": f"Bearer {address.token}"}
        try:
            async with aiohttp.ClientSession(base_url=address.url, headers=headers) as session:
                await asyncio.wait_for(scene(session, address, queue), 120)
        finally:
            await server.stop()

    asyncio.run(run())


async def until(condition: Callable[[], bool]) -> None:
    """Wait for a condition that holds within a second on a quick machine."""
    async with asyncio.timeout(30):
        while not condition():  # noqa: ASYNC110  what changes here has no event
            await asyncio.sleep(0.01)


def question(text: str, **options: Any) -> dict[str, Any]:
    return {"model": "m", **chat(text, **options)[0]}


def test_an_answer_is_the_engines_with_its_report_beside_it() -> None:
    async def scene(session: aiohttp.ClientSession, _address: LiveAddress, _queue: AdmissionQueue) -> None:
        async with session.post(CHAT.path, json=question("three wagons stand here")) as response:
            report, body = json.loads(response.headers[REPORT]), await response.json()
        assert body["choices"][0]["message"]["content"] == "three wagons stand here"
        assert body["simulated"] is True
        assert (report["input_tokens"], report["output_tokens"]) == (4, 4)
        assert report["queue_seconds"] < 30 and report["shared_seconds"] <= report["seconds"] + 0.01

    served(scene)


def test_a_stream_has_its_report_last_and_every_event_is_marked_as_simulated() -> None:
    async def scene(session: aiohttp.ClientSession, _address: LiveAddress, _queue: AdmissionQueue) -> None:
        async with session.post(CHAT.path, json=question("three wagons", stream=True)) as response:
            assert response.content_type == "text/event-stream"
            content, report = split_report(await response.read())
        assert report is not None and (report["input_tokens"], report["output_tokens"]) == (2, 2)
        events = [line[6:] for line in content.decode().split("\n") if line.startswith("data: ")]
        assert events[-1] == "[DONE]"
        assert all(json.loads(event)["simulated"] for event in events[:-1])

    served(scene)


def test_who_does_not_know_the_token_gets_nothing() -> None:
    async def scene(session: aiohttp.ClientSession, address: LiveAddress, _queue: AdmissionQueue) -> None:
        for token in ("", "x", address.token[:-1]):
            headers = {"Authorization": f"Bearer {token}"}
            async with session.post(CHAT.path, json=question("hi"), headers=headers) as response:
                assert response.status == 403
            async with session.delete(f"{REQUESTS}/x", headers=headers) as response:
                assert response.status == 403

    served(scene)


def test_a_client_that_goes_away_frees_its_place() -> None:
    async def scene(session: aiohttp.ClientSession, _address: LiveAddress, queue: AdmissionQueue) -> None:
        async with session.post(CHAT.path, json=question("go", stream=True, max_tokens=10_000)) as response:
            await response.content.readany()
            assert queue.live_inside == 1
            response.close()
        await until(lambda: not queue.inside)

    served(scene, ms_per_token=20)


@pytest.mark.parametrize("stream", [False, True])
def test_a_request_that_is_ended_by_its_id_tells_what_was_computed(stream: bool) -> None:
    async def scene(session: aiohttp.ClientSession, _address: LiveAddress, queue: AdmissionQueue) -> None:
        body = question("go", stream=stream, max_tokens=10_000)
        sent = asyncio.create_task(session.post(CHAT.path, json=body, headers={REQUEST: "r1"}).__aenter__())
        await until(lambda: queue.live_inside == 1)
        await asyncio.sleep(0.3)
        async with session.delete(f"{REQUESTS}/r1") as response:
            report = json.loads(await response.read())
        assert 5 <= report["output_tokens"] < 10_000
        await until(lambda: not queue.inside)
        with contextlib.suppress(aiohttp.ClientError):
            (await sent).close()

    served(scene, ms_per_token=5)


def test_a_live_request_takes_the_place_of_a_batchs() -> None:
    async def scene(session: aiohttp.ClientSession, _address: LiveAddress, queue: AdmissionQueue) -> None:
        async def batch() -> None:
            async with queue.admit((0.0, 0), preemptible=True):
                await asyncio.Event().wait()

        task = asyncio.create_task(batch())
        await asyncio.sleep(0)
        async with session.post(CHAT.path, json=question("hi")) as response:
            assert response.status == 200
        with pytest.raises(Preempted):
            await task

    served(scene, places=1)


def test_a_flex_request_waits_its_turn_and_is_refused_when_that_does_not_come() -> None:
    async def scene(session: aiohttp.ClientSession, _address: LiveAddress, queue: AdmissionQueue) -> None:
        headers = {TIER: "flex", PROJECT: "p"}
        async with session.post(CHAT.path, json=question("hi"), headers=headers | {WAIT_SECONDS: "60"}) as response:
            assert response.status == 200
        await queue.drain()
        async with session.post(CHAT.path, json=question("hi"), headers=headers | {WAIT_SECONDS: "0.1"}) as response:
            assert (response.status, (await response.json())["error"]["code"]) == (429, "resource_unavailable")
        queue.reopen()
        assert queue.inside == 0

    served(scene)


def test_a_request_that_runs_too_long_ends_with_an_error() -> None:
    async def scene(session: aiohttp.ClientSession, _address: LiveAddress, queue: AdmissionQueue) -> None:
        async with session.post(CHAT.path, json=question("go", max_tokens=10_000)) as response:
            assert (response.status, (await response.json())["error"]["code"]) == (504, "request_timeout")
        async with session.post(CHAT.path, json=question("go", max_tokens=10_000, stream=True)) as response:
            content, report = split_report(await response.read())
        assert b"request_timeout" in content and report is not None and report["error"] == "request_timeout"
        assert queue.inside == 0

    served(scene, Echo(ModelSpec(name="m", engine="echo", engine_args={"ms_per_token": 50}), 0.5))


class Dying(Echo):
    """An engine that dies of the text `die`, whole or in the middle of a stream."""

    async def answer(self, endpoint: str, body: dict[str, Any]) -> EngineAnswer:
        if "die" in json.dumps(body):
            raise EngineDied("SIGKILL")
        return await super().answer(endpoint, body)

    async def stream(self, endpoint: str, body: dict[str, Any]) -> EngineAnswer | AsyncGenerator[bytes]:
        async def events() -> AsyncGenerator[bytes]:
            yield b'data: {"choices": []}\n\n'
            raise EngineDied("SIGKILL")

        return events()


def test_the_death_of_the_engine_is_said_in_the_answer_and_in_the_stream() -> None:
    async def scene(session: aiohttp.ClientSession, _address: LiveAddress, queue: AdmissionQueue) -> None:
        async with session.post(CHAT.path, json=question("die")) as response:
            error = (await response.json())["error"]
            assert (response.status, error["code"], error["message"]) == (503, "engine_died", "died: SIGKILL")
        async with session.post(MESSAGES.path, json={**question("die", max_tokens=4), "stream": True}) as response:
            content = await response.read()
        assert b"event: error" in content and b"died: SIGKILL" in content
        assert queue.inside == 0

    served(scene, Dying(ModelSpec(name="m", engine="echo"), 600.0))


class Cut(Echo):
    """An engine whose streams have an event of these and end in good order."""

    event = b""

    async def stream(self, endpoint: str, body: dict[str, Any]) -> EngineAnswer | AsyncGenerator[bytes]:
        async def events() -> AsyncGenerator[bytes]:
            yield self.event

        return events()


@pytest.mark.parametrize(
    ("event", "said"),
    [
        (b'data: {"choices": [{"index": 0, "delta": {"content": "half"}}]}\n\n', "before its end"),
        (b'data: {"error": {"message": "out of memory", "code": 500}}\n\ndata: [DONE]\n\n', "out of memory"),
    ],
)
def test_a_stream_without_an_end_and_one_with_an_error_are_failures(event: bytes, said: str) -> None:
    async def scene(session: aiohttp.ClientSession, _address: LiveAddress, queue: AdmissionQueue) -> None:
        async with session.post(CHAT.path, json=question("go", stream=True)) as response:
            content, report = split_report(await response.read())
        assert report is not None and report["error"] == "engine_error"
        assert said in content.decode() and b"(engine_error)" in content and b"[DONE]" not in content

    engine = Cut(ModelSpec(name="m", engine="echo"), 600.0)
    engine.event = event
    served(scene, engine)


def test_an_engine_that_is_about_to_stop_has_begun_nothing() -> None:
    async def scene(session: aiohttp.ClientSession, _address: LiveAddress, _queue: AdmissionQueue) -> None:
        async with session.post(EMBEDDINGS.path, json={"model": "m", "input": "x"}) as response:
            assert (response.status, (await response.json())["error"]["code"]) == (503, "engine_stopping")

    served(scene, over=True)


def test_a_stream_that_cannot_begin_is_an_error_in_json() -> None:
    class Broken(Echo):
        async def stream(self, endpoint: str, body: dict[str, Any]) -> EngineAnswer | AsyncGenerator[bytes]:
            raise RuntimeError("the schema broke")

    async def scene(session: aiohttp.ClientSession, _address: LiveAddress, _queue: AdmissionQueue) -> None:
        async with session.post(CHAT.path, json=question("a", stream=True)) as response:
            assert (response.content_type, response.status >= 500) == ("application/json", True)
            assert (await response.json())["error"]["code"] == "engine_error"

    served(scene, Broken(ModelSpec(name="m", engine="echo"), 600.0))
