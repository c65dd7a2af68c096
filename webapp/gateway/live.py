"""Live requests: checked as a batch's lines are, given to an engine, and answered as that answers."""

import asyncio
import functools
import itertools
import logging
import secrets
import time
from collections.abc import AsyncIterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import aiohttp
import orjson
from aiohttp import web

from batchyard import json_lines
from batchyard.endpoints import live_wire, stream_events
from batchyard.endpoints.bodies.audio import PLAIN_FORMATS, TOO_LARGE
from batchyard.endpoints.bodies.validation import stream_error
from batchyard.endpoints.catalog import AUDIO
from batchyard.endpoints.live_wire import TIERS, Tier
from batchyard.errors import BatchyardError, RequestError, TooLargeError
from batchyard.json_lines import other_encoding
from batchyard.models import ModelSpec, served_by_name
from batchyard.request_lines.lines import LineError, parse
from batchyard.telemetry import requests
from batchyard.telemetry.spans import Span
from batchyard.wording import quoted
from store.keys import Principal
from tasks.context import AppContext
from tasks.intake import budgets
from tasks.intake.requests import RequestChecker
from tasks.live.addresses import EngineAddress
from tasks.live.demand import answers_live
from tasks.scheduling import caps
from webapp.access.audit_log import AuditLog
from webapp.anthropic.errors import is_spoken
from webapp.gateway import bodies, errors, forms, traces
from webapp.gateway.accounting import Accounting, Subject
from webapp.gateway.bodies import BodyMemory, HeldBytes
from webapp.gateway.callers import Caller, Callers, address_of, key_of
from webapp.gateway.engines import LiveEngines, LiveReplica, NoEngine
from webapp.gateway.limits import LiveLimits, LiveRateLimitError
from webapp.gateway.pace import Pace
from webapp.gateway.streams import EventStream, OpenStreams

LARGE_BYTES = 64 * 1024
"""Longer bodies are checked in a thread, one after the other: other requests go on meanwhile."""
ATTEMPTS = 3
"""Replicas that a request is given to, as long as none has begun it."""
CONNECT_SECONDS = 10.0
"""Longer than a burst of requests holds up this process or the engine's."""
ABORT_SECONDS = 5.0
HEALTH_SECONDS = 5.0
SILENCES = 3
"""A replica that does not answer so often in a row seems to hang."""
SESSION = "x-session-id"
"""Requests of one session go to the replica that has their prefix cached, while that has places."""
OF_TIERS: Mapping[str | None, Tier] = {
    **dict.fromkeys((None, "auto", "default", "priority", "standard_only"), TIERS[0]),
    "flex": "flex",
}
MODELS_SECONDS = 1.0
"""Between two looks for changes of the models."""
STATUS_OF_CODES = {"model_not_found": 404, "line_too_long": 413}

log = logging.getLogger(__name__)
_PRINCIPAL = web.RequestKey("principal", Principal)
_STREAM = web.RequestKey("stream", EventStream)


@dataclass
class LiveRequest:
    """A checked live request to the path of an endpoint, `arrived` at time.monotonic().

    `affinity`: see SESSION. `plain`: the answer is a text, and no JSON. `held`: its bytes in memory.
    """

    id: str
    endpoint: str
    spec: ModelSpec
    tier: Tier
    raw: bytes
    caller: Caller
    affinity: str | None
    arrived: float
    span: Span
    plain: bool = False
    streamed: bool = False
    held: HeldBytes | None = None


class LiveRequests:
    def __init__(self, context: AppContext, callers: Callers, memory: BodyMemory) -> None:
        self._context, self._callers, self._memory = context, callers, memory
        self._serve(context)
        self._limits = LiveLimits(context.settings)
        self._engines = LiveEngines(context)
        self._accounting = Accounting(context)
        self._audit = AuditLog(context.settings.audit) if context.settings.audit else None
        self._session: aiohttp.ClientSession | None = None
        self._aborting: set[asyncio.Task[None]] = set()
        self._streams = OpenStreams()
        self._watching: list[asyncio.Task[None]] = []
        self._large = ThreadPoolExecutor(1, "large bodies")

    def _serve(self, context: AppContext) -> None:
        """Check and answer requests from now on with this context's models."""
        self._models = context.models
        checker = RequestChecker(context.models, models_file=context.settings.models)
        self._served = checker, served_by_name(context.models)  # at once: another thread may check a large body

    async def _follow_changes(self) -> None:
        """Serve the models that are in force, as they change."""
        while True:
            try:
                context = await asyncio.to_thread(self._context.fresh, at_once=True)
                if context.models is not self._models:
                    self._serve(context)
            except Exception:  # or changes would never count again, which nobody would see
                log.exception("models in force not read")
            await asyncio.sleep(MODELS_SECONDS)

    async def start(self) -> None:
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_SECONDS)
        connector = aiohttp.TCPConnector(limit=0, keepalive_timeout=60.0)
        self._session = aiohttp.ClientSession(
            connector=connector, timeout=timeout, cookie_jar=aiohttp.DummyCookieJar(), auto_decompress=False
        )
        runs = (self._watch(), self._streams.run(), self._follow_changes())
        self._watching = [asyncio.create_task(run) for run in runs]
        await self._accounting.start()

    async def stop(self) -> None:
        for task in self._watching:
            task.cancel()
        await asyncio.gather(*self._aborting, return_exceptions=True)
        if self._session is not None:
            await self._session.close()
        await self._accounting.stop()
        self._large.shutdown(wait=False, cancel_futures=True)

    async def answer(
        self, request: web.Request, endpoint: str, principal: Principal | None = None, raw: bytes | None = None
    ) -> web.StreamResponse:
        """Answer a live request to an endpoint; of the web app, in somebody's name (webapp.gateway.tickets)."""
        arrived, request_id = time.monotonic(), f"req_{secrets.token_hex(12)}"
        status = 499  # until there is a response: the client has gone
        try:
            response = await self._response(request, endpoint, principal, raw, request_id, arrived)
            status = response.status
            stream = request.get(_STREAM)
            if stream is not None and stream.response.prepared and isinstance(response, web.Response):
                response = await stream.fail(response)
        finally:
            if (stream := request.get(_STREAM)) is not None:
                self._streams.discard(stream)
            details = {"request_id": request_id, "status": status, "seconds": round(time.monotonic() - arrived, 4)}
            log.info("POST %s", request.path, extra=details)
            if self._audit is not None:
                by, address = request.get(_PRINCIPAL), address_of(request, self._context.settings.proxies)
                self._audit.write("live", endpoint, by, address, status, request_id)
        return response

    async def _response(
        self,
        request: web.Request,
        endpoint: str,
        principal: Principal | None,
        raw: bytes | None,
        request_id: str,
        arrived: float,
    ) -> web.StreamResponse:
        headers = {"x-request-id": request_id}
        if is_spoken(request.path):
            headers["request-id"] = request_id
        try:
            if principal is None:
                caller = await self._callers.caller(key_of(request))
            else:
                caller = await self._callers.of(principal)
            request[_PRINCIPAL] = caller.principal
            key_id = caller.principal.key_id
            headers |= self._limits.count_request(key_id)
            with self._limits.at_once(key_id), self._memory.hold(key_id) as held:
                pace = Pace(self._context.settings)
                raw = await self._body(request, endpoint, pace, held) if raw is None else raw
                if caller.cap is not None:
                    whose = f"Key '{caller.principal.name}'"
                    await asyncio.to_thread(budgets.refuse, self._context, caller.cap, whose, "Requests and batches")
                check = functools.partial(self._checked, request, endpoint, raw, caller, request_id, arrived)
                if len(raw) <= LARGE_BYTES:
                    live = check()
                else:
                    live = await asyncio.get_running_loop().run_in_executor(self._large, check)
                live.held = held
                del raw, check
                if live.streamed:
                    request[_STREAM] = EventStream(request, endpoint, headers, pace)
                    self._streams.add(request[_STREAM])
                with live.span as span:
                    response = await self._forward(request, live, headers)
                    span.set({"http.response.status_code": response.status})
                    if response.status >= 400:
                        span.fail(str(response.status))
                return response
        except LineError as error:
            status, param = STATUS_OF_CODES.get(error.code, 400), error.param and error.param.removeprefix("body.")
            fault = {"message": error.message, "code": error.code, "param": param}
            return errors.response(request.path, status, fault, headers=headers, request_id=request_id)
        except BatchyardError as error:
            if isinstance(error, LiveRateLimitError):
                headers |= error.headers
            if isinstance(error, NoEngine):
                headers["Retry-After"] = f"{error.retry_after:g}"
            return errors.of_error(request.path, error, headers=headers, request_id=request_id)

    async def _body(self, request: web.Request, endpoint: str, pace: Pace, held: HeldBytes) -> bytes:
        """Return a body as JSON, as it came or of audio's form. Raises RequestError, UnavailableError."""
        if endpoint in AUDIO and request.content_type == "multipart/form-data":
            too_large = TooLargeError(f"The file {TOO_LARGE}.", code="file_too_large", param="file")
            form = await bodies.read(request, forms.MAX_FORM_BYTES, pace, held, too_large)
            raw = json_lines.dumps(await forms.audio_body(request, form))
            held.grow(len(raw))
            return raw
        most = self._context.settings.max_line_bytes
        message = f"The body has more than {most} bytes; shorten it, or raise BATCHYARD_MAX_LINE_BYTES."
        return await bodies.read(request, most, pace, held, TooLargeError(message, code="line_too_long"))

    def _checked(
        self, request: web.Request, endpoint: str, raw: bytes, caller: Caller, request_id: str, arrived: float
    ) -> LiveRequest:
        """Return the request for an engine. Raises LineError as in a batch; RequestError if it is not allowed."""
        if caller.refusal is not None:
            raise caller.refusal
        if other_encoding(raw):
            raise LineError("invalid_json_line", "The body is not UTF-8; send it as UTF-8.")
        raw = json_lines.without_mark(raw)  # an engine's server knows none
        body = parse(1, raw, len(raw))  # it was limited as it was read
        if (invalid := stream_error(body)) is not None:
            raise LineError("invalid_request", invalid[1], invalid[0])
        if body.get("stream") and endpoint not in stream_events.STREAMED:
            raise LineError("streaming_unsupported", f"Answers of {endpoint} cannot be streamed.", "body.stream")
        plain = {name: value for name, value in body.items() if name not in ("stream", "stream_options")}
        if body.get("stream") and plain.get("prompt_logprobs") is not None:  # no stream has a place for them
            message = "Log-probabilities of prompts are not streamed; leave out prompt_logprobs or stream."
            raise LineError("unsupported_parameter", message, "body.prompt_logprobs")
        line = {"custom_id": request_id, "method": "POST", "url": endpoint, "body": plain}
        checker, specs = self._served
        model = checker.check(endpoint, line)
        if (guarded := checker.guarded(endpoint, model, body)) is not body:
            raw = json_lines.dumps(guarded)
        refusal = checker.refusal(endpoint, model, plain, len(raw))
        if refusal is not None:
            error = (refusal.body or {}).get("error", {})
            raise LineError(error.get("code") or "invalid_request", error.get("message", ""), error.get("param"))
        spec, session = specs[model], request.headers.get(SESSION) or body.get("prompt_cache_key")
        if not answers_live(spec):
            message = f"The model {model!r} answers requests in batches only; send them to POST /v1/batches."
            raise RequestError(message, code="batches_only", param="model")
        return LiveRequest(
            request_id,
            endpoint,
            spec,
            _tier(body, caller),
            raw,
            caller,
            session if session and isinstance(session, str) else None,
            arrived,
            traces.of_request(request.headers, endpoint, spec, arrived, self._context.settings.trace_requests),
            plain=endpoint in AUDIO and body.get("response_format") in PLAIN_FORMATS,
            streamed=bool(body.get("stream")),
        )

    async def _forward(self, request: web.Request, live: LiveRequest, headers: dict[str, str]) -> web.StreamResponse:
        """Let replicas answer until one has begun the request. Raises NoEngine if none runs in time, or can."""
        failed: list[str] = []
        for _ in range(ATTEMPTS):
            replica = await self._engines.replica(live.spec, live.affinity, failed)
            replica.in_flight += 1
            try:
                response = await self._exchange(request, live, replica, headers)
            finally:
                replica.in_flight -= 1
            if response is not None:
                return response
            failed.append(replica.address.name)
            self._engines.lose(live.spec.name, replica)
        raise NoEngine(f"No engine of model {live.spec.name} took the request.", code="engine_starting", retry_after=5)

    async def _exchange(
        self, request: web.Request, live: LiveRequest, replica: LiveReplica, headers: dict[str, str]
    ) -> web.StreamResponse | None:
        assert self._session is not None
        address = replica.address
        sent = {
            "Authorization": f"Bearer {address.token}",
            "Content-Type": "application/json",
            live_wire.PROJECT: live.caller.principal.project_id,
            live_wire.TIER: live.tier,
            live_wire.REQUEST: live.id,
            live_wire.WAIT_SECONDS: str(self._context.settings.flex_wait_seconds),
        }
        try:
            async with self._session.post(address.url + live.endpoint, data=live.raw, headers=sent) as upstream:
                if upstream.content_type == "text/event-stream":
                    return await self._stream(request[_STREAM], live, upstream, address)
                return await self._whole(live, upstream, headers)
        except (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError):
            return None
        except asyncio.CancelledError:  # the client has gone
            self._abort(live, address)
            raise
        except aiohttp.ClientError as error:
            log.warning("engine lost with a live request: %s", error, extra={"model": live.spec.name})
            self._engines.lose(live.spec.name, replica)
            message = "The engine ended while it had the request; try again."
            headers = {**headers, "Retry-After": "1"}
            fault = {"message": message, "code": "engine_died"}
            return errors.response(request.path, 503, fault, headers=headers, request_id=live.id)

    async def _whole(
        self, live: LiveRequest, upstream: aiohttp.ClientResponse, headers: dict[str, str]
    ) -> web.StreamResponse | None:
        data = await upstream.read()
        report = json_lines.loads(upstream.headers.get(live_wire.REPORT, "{}"))
        if upstream.status == 200:
            await self._account(live, report, None)  # nobody has seen a first token
            if live.plain:
                return web.Response(text=json_lines.loads(data)["text"], headers=headers)
            return web.Response(body=data, content_type="application/json", headers=headers)
        fault = _fault(data)
        if fault.get("code") == live_wire.STOPPING:
            return None
        await self._account(live, {**report, "failed": True}, None)
        if upstream.status in (429, 503):
            headers = {**headers, "Retry-After": "5"}
        return errors.response(live.endpoint, upstream.status, fault, headers=headers, request_id=live.id)

    async def _stream(
        self, stream: EventStream, live: LiveRequest, upstream: aiohttp.ClientResponse, address: EngineAddress
    ) -> web.StreamResponse:
        """Pass the pieces of a stream on as they come, and keep its report."""
        live.raw = b""  # nobody needs it any more
        if live.held is not None:
            live.held.release()
        await stream.begin()
        report: dict[str, Any] | None = None
        times: list[float] = [live.arrived]
        async for piece in _pieces(upstream, live.spec.name):
            if live_wire.REPORT_COMMENT in piece:
                piece, report = live_wire.split_report(piece)
            if piece:
                times.append(time.monotonic())
                try:
                    await stream.send(piece)
                except ConnectionError:  # the client has gone
                    self._abort(live, address)
                    return stream.response
        if report is None:
            message = "The engine ended while it had the request; send it again."
            fault = {"message": message, "type": "server_error", "param": None, "code": "engine_died"}
            await stream.send(stream_events.error(live.endpoint, fault))
        waits = [after - before for before, after in itertools.pairwise(times)]
        await self._account(live, report or {"failed": True}, waits[0] if waits else None, waits[1:])
        return await stream.end()

    async def _watch(self) -> None:
        """Ask the replicas that have requests whether they are there: one that hangs closes no connection."""
        while True:
            await asyncio.sleep(HEALTH_SECONDS)
            await asyncio.gather(*(self._ask(model, replica) for model, replica in self._engines.busy()))

    async def _ask(self, model: str, replica: LiveReplica) -> None:
        assert self._session is not None
        try:
            async with asyncio.timeout(HEALTH_SECONDS):
                async with self._session.get(replica.address.url + live_wire.HEALTH) as response:
                    await response.read()
            replica.silences = 0
        except TimeoutError:
            replica.silences += 1
            if replica.silences >= SILENCES:
                await self._engines.suspect(model, replica)
        except aiohttp.ClientError as error:  # it has ended, which its requests hear of
            log.info("engine not reached: %s", error, extra={"model": model})

    async def _account(
        self, live: LiveRequest, report: Mapping[str, Any], first_seconds: float | None, gaps: list[float] | None = None
    ) -> None:
        owner = live.caller.principal
        subject = Subject(owner.project_id, owner.key_id, live.spec.name, live.tier)
        used = self._accounting.add(subject, live.spec.price, report, first_seconds, gaps or [])
        live.span.set(requests.usage(report))
        tokens = (report.get("input_tokens") or 0) + (report.get("output_tokens") or 0)
        self._limits.count_tokens(owner.key_id, tokens)
        if (cap := live.caller.cap) is not None:  # before the response ends: its client may send the next one then
            await asyncio.to_thread(caps.add, self._context, cap, live.spec.price, used)

    def _abort(self, live: LiveRequest, address: EngineAddress) -> None:
        """End a request whose client has gone, and count what the engine has computed of it."""
        task = asyncio.create_task(self._aborted(live, address))
        self._aborting.add(task)
        task.add_done_callback(self._aborting.discard)

    async def _aborted(self, live: LiveRequest, address: EngineAddress) -> None:
        assert self._session is not None
        with suppress(aiohttp.ClientError, TimeoutError, orjson.JSONDecodeError):
            async with asyncio.timeout(ABORT_SECONDS):
                headers = {"Authorization": f"Bearer {address.token}"}
                url = f"{address.url}{live_wire.REQUESTS}/{live.id}"
                async with self._session.delete(url, headers=headers) as response:
                    report = json_lines.loads(await response.read())
            await self._account(live, {**report, "failed": True}, None)


async def _pieces(upstream: aiohttp.ClientResponse, model: str) -> AsyncIterator[bytes]:
    """Yield the pieces of a stream as they come, until it ends or its engine is lost."""
    try:
        async for piece in upstream.content.iter_any():
            yield piece
    except aiohttp.ClientError as error:
        log.warning("engine lost in a stream: %s", error, extra={"model": model})


def _fault(data: bytes) -> dict[str, Any]:
    """Return the error of an engine's response, which may be no JSON."""
    try:
        fault = json_lines.loads(data)["error"]
    except (orjson.JSONDecodeError, LookupError, TypeError):
        fault = None
    message = "The engine answered with an error that cannot be read."
    return fault if isinstance(fault, dict) else {"message": message, "code": "engine_error"}


def _tier(body: Mapping[str, Any], caller: Caller) -> Tier:
    """Return the tier that a request names. Raises RequestError."""
    name = body.get("service_tier")
    tier = OF_TIERS.get(name)  # a text or null, as the endpoint's body says
    if tier is None:
        message = f"There is no service tier {quoted(str(name))}; use auto, default or flex."
        raise RequestError(message, code="invalid_value", param="service_tier")
    if tier not in caller.tiers and name in (None, "auto") and caller.tiers:
        return caller.tiers[0]
    if tier not in caller.tiers:
        allowed = " or ".join(caller.tiers) or "none: it may send batches only"
        message = f"Project '{caller.project}' may not use the service tier {tier}; it may use {allowed}."
        raise RequestError(message, code="tier_not_allowed", param="service_tier")
    return tier
