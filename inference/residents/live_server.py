"""The live server of an engine actor: live requests come over HTTP, past Ray, and are answered at once or streamed.

It listens on the node's address, on any free port, and answers whoever knows its token (`endpoints.live_wire`).
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import hmac
import secrets
import time
from collections import OrderedDict
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

from aiohttp import web

from batchyard import json_lines, proxies
from batchyard.endpoints import live_wire, stream_events
from batchyard.endpoints.catalog import ENDPOINTS
from batchyard.endpoints.stream_end import ENDED_EARLY, StreamEnd
from batchyard.errors import EngineDied, EngineError
from inference.engine import Engine, EngineAnswer
from inference.progress import PROGRESS, RequestProgress
from inference.requests.cache_need import BYTES_PER_TOKEN, OUTPUT_TOKENS, most_output
from inference.residents.admission import AdmissionQueue
from inference.residents.replies import ENGINE_DIED, fault_of, marked_events, replied
from inference.residents.status import LiveAddress

MAX_BODY_BYTES = 2**30
"""Whoever sends requests here has its own, lower limit."""
MAX_LEFT = 1000
"""Reports of requests whose connection was closed are kept for the gateway, which asks for each at once."""
STATUSES = {"request_timeout": 504, ENGINE_DIED: 503, "engine_unavailable": 503, live_wire.STOPPING: 503}
"""HTTP statuses of requests that have no response, by the code of their error; 500 for others."""
WRONG_TOKEN = EngineAnswer.refused("The token is wrong.", code="invalid_token", status=403)


@dataclass(eq=False)
class LiveServer:
    """Answers live requests with an engine, in turn with the batches' (`admission`)."""

    engine: Engine
    admission: AdmissionQueue
    busy: Callable[[], AbstractContextManager[None]]  # a context in which the engine has work
    died: Callable[[str], str]  # is told why the engine died, and returns the reason in full
    is_over: Callable[[], bool]  # True if the engine takes no more requests

    def __post_init__(self) -> None:
        self._token = secrets.token_hex(32)
        self._runner: web.AppRunner | None = None
        self._running: dict[str, _Running] = {}
        self._left: OrderedDict[str, dict[str, Any]] = OrderedDict()
        self.answered = 0

    async def start(self, host: str) -> LiveAddress:
        """Listen on any free port of `host`, and return the address."""
        live_wire.allow_connections()
        app = web.Application(client_max_size=MAX_BODY_BYTES)
        for path in ENDPOINTS:
            app.router.add_post(path, functools.partial(self._serve, path))
        app.router.add_get(live_wire.HEALTH, self._health)
        app.router.add_delete(f"{live_wire.REQUESTS}/{{id}}", self._abort)
        # Without handler_cancellation a client that goes away would leave its request in the engine.
        self._runner = web.AppRunner(app, handler_cancellation=True, access_log=None, keepalive_timeout=300.0)
        await self._runner.setup()
        site = web.TCPSite(self._runner, host, 0, backlog=1024)
        await site.start()
        port = self._runner.addresses[0][1]
        return LiveAddress(f"http://{proxies.address(host, port)}", self._token)

    async def stop(self) -> None:
        """Close the port and all connections."""
        if self._runner is not None:
            await self._runner.cleanup()

    async def _serve(self, endpoint: str, request: web.Request) -> web.StreamResponse:
        if not self._may(request):
            return _error(WRONG_TOKEN, {})
        body = json_lines.loads(await request.read())
        if self.is_over():
            return _failed(live_wire.STOPPING, "the engine is stopping", {})
        if not self.admission.inside:
            self.engine.answered_at = time.monotonic()
        task = asyncio.current_task()
        assert task is not None
        running = _Running(task, RequestProgress(live=True))
        running.progress.on_first = functools.partial(self.admission.measured, "first")
        running.progress.on_gap = functools.partial(self.admission.measured, "gap")
        request_id = request.headers.get(live_wire.REQUEST, "")
        self._running[request_id] = running
        try:
            with self.busy():
                async with self._admitted(request.headers, body):
                    running.admitted_at = time.monotonic()
                    running.shared_at = self.admission.shared_seconds
                    PROGRESS.set(running.progress)
                    self.answered += 1
                    if body.get("stream"):
                        return await self._stream(request, endpoint, body, running)
                    return await self._answer(endpoint, body, running)
        except _NotInTime:
            message = "The model has too much to do for this request to begin in time; send it again later."
            return _failed("resource_unavailable", message, running.report(self.admission), status=429)
        except asyncio.CancelledError:
            self._left[request_id] = self._report(running)
            while len(self._left) > MAX_LEFT:
                self._left.popitem(last=False)
            raise
        finally:
            self._running.pop(request_id, None)

    async def _health(self, _request: web.Request) -> web.Response:
        return web.Response(text="ok")

    async def _abort(self, request: web.Request) -> web.Response:
        """End a request, and answer with its report."""
        if not self._may(request):
            return _error(WRONG_TOKEN, {})
        request_id = request.match_info["id"]
        running = self._running.get(request_id)
        if running is not None:
            report = self._report(running)
            running.task.cancel()
        else:
            report = self._left.pop(request_id, {})
        return web.Response(body=json_lines.dumps(report), content_type="application/json")

    def _report(self, running: _Running) -> dict[str, Any]:
        """Return the report of a request that is in the engine."""
        if not running.progress.output_tokens:
            self.engine.measure(running.progress)
        return running.report(self.admission)

    def _may(self, request: web.Request) -> bool:
        return hmac.compare_digest(request.headers.get("Authorization", ""), f"Bearer {self._token}")

    @contextlib.asynccontextmanager
    async def _admitted(self, headers: Mapping[str, str], body: dict[str, Any]) -> AsyncIterator[None]:
        """Wait until the request is admitted; it is in the engine in the block. Raises _NotInTime."""
        size = len(json_lines.dumps(body)) / BYTES_PER_TOKEN + min(OUTPUT_TOKENS, most_output(body))
        seconds = self.engine.request_timeout
        turn = self.admission.admit_live(headers.get(live_wire.PROJECT, ""), round(size))
        if headers.get(live_wire.TIER) == "flex":
            seconds = float(headers[live_wire.WAIT_SECONDS])
            turn = self.admission.admit((time.monotonic(), 0), lambda: round(size))
        async with contextlib.AsyncExitStack() as admitted:
            try:
                async with asyncio.timeout(seconds):
                    await admitted.enter_async_context(turn)
            except TimeoutError:
                raise _NotInTime from None
            yield

    async def _answer(self, endpoint: str, body: dict[str, Any], running: _Running) -> web.StreamResponse:
        began = time.monotonic()
        reply = await replied(self.engine, endpoint, body)
        progress = running.progress
        progress.input_tokens, progress.cached_tokens = reply.input_tokens, reply.cached_tokens
        progress.output_tokens = reply.output_tokens
        if reply.output_tokens:
            # A whole answer has no first token that anybody saw. Its mean time a token is held against the target.
            self.admission.measured("gap", (time.monotonic() - began) / reply.output_tokens, reply.output_tokens)
        report = running.report(self.admission)
        if reply.death is not None:
            return _failed(ENGINE_DIED, self.died(reply.death), report)
        if reply.error is not None:
            return _failed(reply.error["code"], reply.error["message"], report)
        return _response(reply.status_code, reply.body, report)

    async def _stream(
        self, request: web.Request, endpoint: str, body: dict[str, Any], running: _Running
    ) -> web.StreamResponse:
        try:
            stream = await self.engine.stream(endpoint, body)
        except Exception as error:  # noqa: BLE001  as for a whole answer
            return _failed(*self._fault_of(error), running.report(self.admission))
        if isinstance(stream, EngineAnswer):
            return _error(stream, running.report(self.admission))
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream", "Cache-Control": "no-cache"})
        await response.prepare(request)
        async with contextlib.aclosing(stream):
            fault = await self._send(stream, response, StreamEnd(body))
        if fault is not None:
            await response.write(stream_events.error(endpoint, fault))
        report = running.report(self.admission) | {"error": None if fault is None else fault["code"]}
        await response.write(live_wire.REPORT_COMMENT + json_lines.dumps(report) + b"\n\n")
        await response.write_eof()
        return response

    async def _send(
        self, stream: AsyncGenerator[bytes], response: web.StreamResponse, end: StreamEnd
    ) -> dict[str, Any] | None:
        """Send the events of a stream as they come, and return the fault that ended it; None if it is whole."""
        simulated = type(self.engine).simulated
        try:
            async with asyncio.timeout(self.engine.request_timeout):
                async for event in stream:
                    self.engine.answered_at = time.monotonic()
                    end.read(event)
                    await response.write(marked_events(event) if simulated else event)
        except TimeoutError:
            return _fault("request_timeout", f"the request ran longer than {self.engine.request_timeout:g} seconds")
        except ConnectionError:
            raise  # the gateway has gone
        except Exception as error:  # noqa: BLE001  one stream that fails is this request's failure alone
            return _fault(*self._fault_of(error))
        return None if end.is_whole else _fault("engine_error", ENDED_EARLY)

    def _fault_of(self, error: Exception) -> tuple[str, str]:
        """Return the code and the message of a stream that has failed."""
        if isinstance(error, EngineError) and not isinstance(error, EngineDied):
            return error.code or "engine_error", error.message
        code, message = fault_of(self.engine, error)
        return code, self.died(message) if code == ENGINE_DIED else message


@dataclass(eq=False)
class _Running:
    """A live request in this process: its task, its progress, and when it was admitted.

    `shared_at`: `AdmissionQueue.shared_seconds` then.
    """

    task: asyncio.Task[Any]
    progress: RequestProgress
    admitted_at: float | None = None
    shared_at: float = 0.0

    def report(self, admission: AdmissionQueue) -> dict[str, Any]:
        """Return what was used so far, and how long it took."""
        progress = self.progress
        tokens = {name: getattr(progress, name) for name in ("input_tokens", "cached_tokens", "output_tokens")}
        arrived, admitted = progress.began_at, self.admitted_at
        if admitted is None:
            return tokens | {"queue_seconds": time.monotonic() - arrived}
        return tokens | {
            "queue_seconds": admitted - arrived,
            "seconds": time.monotonic() - admitted,
            "shared_seconds": admission.shared_seconds - self.shared_at,
        }


class _NotInTime(Exception):
    """A request found no place in time."""


def _fault(code: str, message: str) -> dict[str, Any]:
    return {"message": message, "type": "server_error", "param": None, "code": code}


def _failed(code: str, message: str, report: Mapping[str, Any], *, status: int | None = None) -> web.Response:
    """Return the response to a request that has none of the engine's."""
    kind = "rate_limit_error" if status == 429 else "server_error"
    body = json_lines.dumps({"error": {"message": message, "type": kind, "param": None, "code": code}})
    return _response(status or STATUSES.get(code, 500), body, report)


def _error(answer: EngineAnswer, report: Mapping[str, Any]) -> web.Response:
    if answer.error is not None:
        return _failed(answer.error["code"], answer.error["message"], report)
    return _response(answer.status_code, json_lines.dumps(answer.body), report)


def _response(status: int | None, body: bytes | None, report: Mapping[str, Any]) -> web.Response:
    assert status is not None
    headers = {live_wire.REPORT: json_lines.dumps(dict(report)).decode()}
    return web.Response(status=status, body=body, content_type="application/json", headers=headers)
