"""Engine `openai`: OpenAI-compatible endpoints that someone else runs, several per model.

A request waits for a slot and goes to the endpoint that has its prefix cached, unless that one has too much to do. If
it fails and another attempt can help, it is tried again, at another endpoint if there is one. Health and limits of
endpoints are in endpoints.py.
"""

import asyncio
import logging
import re
import time
from collections.abc import AsyncGenerator, Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal

import aiohttp
from pydantic import BaseModel, ConfigDict, Field, PositiveFloat, PositiveInt, ValidationInfo, field_validator
from pydantic_core import PydanticCustomError

from batchyard import json_lines
from batchyard.backoff import Backoff, retry_after
from batchyard.endpoints import responses, stream_events
from batchyard.endpoints.catalog import AUDIO, CHAT, COMPLETIONS, ENDPOINTS, RESPONSES
from batchyard.endpoints.stream_end import ENDED_EARLY, StreamEnd, expected_outputs
from batchyard.errors import EngineError, EngineStartError
from batchyard.failures import accounts
from batchyard.models import ModelSpec
from inference.engine import Engine, EngineAnswer, streamed
from inference.engines.openai import client
from inference.engines.openai.client import Content, EndpointClient, EndpointReply, NoReply, ProbeFailed
from inference.engines.openai.discovery import DiscoveredServer, Folder
from inference.engines.openai.endpoints import MAX_DELAY, RemoteEndpoint, SlotQueue
from inference.progress import PROGRESS, RequestProgress
from inference.requests import media
from inference.requests.ordering import prefix_key

ATTEMPTS = 5
"""Failed attempts per request. Attempts that did not run (429, 503, no connection) do not count."""
OVERLOADED = (429, 503)
TOO_SLOW = (408, 504)
AGAIN = (*OVERLOADED, *TOO_SLOW, 409)

log = logging.getLogger(__name__)

Variable = Field(None, pattern=r"^[A-Za-z_]\w*$", description="name of the environment variable that holds the key")


class EndpointArguments(BaseModel):
    """One of `endpoints`: its base URL, the variable that holds its key, and its limit of requests in flight."""

    model_config = ConfigDict(extra="forbid", hide_input_in_errors=True)

    url: str
    api_key_env: str | None = Variable
    max_in_flight: PositiveInt | None = None

    @field_validator("url")
    @classmethod
    def _base(cls, url: str) -> str:
        url = url.rstrip("/")
        if not re.fullmatch(r"https?://[^\s/?#@]+(/[^\s?#@]*)?", url):
            raise PydanticCustomError(
                "url", "write the base URL of OpenAI's clients, such as http://host:8000/v1, without user or password"
            )
        return url


class PassedOn(BaseModel):
    """The `engine_args` of all engines whose servers answer.

    `model` is what the endpoints call the model (default: as models.toml does); `allowed_media_domains` are those that
    endpoints may fetch images, audio and videos from, and `allowed_parameters` those by which a request may reach
    further (inference/requests/media.py); `api_key_env` is for the endpoints
    that name none, those of `endpoint_folder` included; the two last are seconds: the first wait before a request or a
    probe is tried again, and how often the folder is read and due probes are sent.
    """

    model_config = ConfigDict(extra="forbid", hide_input_in_errors=True)

    model: str | None = Field(None, min_length=1)
    api_key_env: str | None = Variable
    max_model_len: PositiveInt | None = None
    allowed_media_domains: tuple[str, ...] = ()
    allowed_parameters: tuple[Literal["chat_template", "kv_transfer_params", "mcp", "mcp_servers"], ...] = ()
    backoff_seconds: PositiveFloat = 0.5
    watch_seconds: PositiveFloat = 1.0


class OpenAIArguments(PassedOn):
    """`engine_args` of engine openai: the endpoints, a folder that names more of them, and how they are asked."""

    endpoints: tuple[EndpointArguments, ...] = ()
    endpoint_folder: Path | None = Field(None, validate_default=True)

    @field_validator("endpoint_folder")
    @classmethod
    def _any(cls, folder: Path | None, info: ValidationInfo) -> Path | None:
        if folder is None:
            if info.data.get("endpoints") == ():
                raise PydanticCustomError("missing", "engine openai needs endpoints, an endpoint_folder, or both")
            return None
        folder = folder.expanduser()
        if not folder.is_absolute():
            raise PydanticCustomError("path", "write an absolute path: engines have working folders of their own")
        return folder


def _is_of_account(answer: EngineAnswer) -> bool:
    """True for an error that every request of this key would get, at once and at any later attempt."""
    return answer.body is not None and accounts.refused(answer.status_code, answer.body["error"])


@dataclass(frozen=True)
class FailedAttempt:
    """A failed attempt. `answer` is the request's if no attempt follows; None if it did not run."""

    answer: EngineAnswer | None


@dataclass(frozen=True)
class OpenStream:
    """A stream of an endpoint, which holds a slot there until it is read."""

    endpoint: RemoteEndpoint
    response: aiohttp.ClientResponse
    began: float  # time.monotonic() of its request
    beside: int  # requests in flight there then


def _ignored(request: dict[str, Any], answer: dict[str, Any]) -> str | None:
    """Return the parameter that a server has ignored, as the choices of its answer show."""
    if not isinstance(choices := answer.get("choices"), list):
        return None
    if len(choices) < expected_outputs(request):
        return "n"
    asks = request.get("logprobs") not in (None, False)
    outputs = responses.outputs(answer) if asks else ()
    return "logprobs" if any(one.text for one in outputs) and all(one.logprobs is None for one in outputs) else None


def _note_usage(progress: RequestProgress | None, holder: dict[str, Any]) -> None:
    """Note the usage that an event reports; later ones report more."""
    if progress is not None and isinstance(holder.get("usage"), dict):
        usage = responses.usage(holder)
        progress.input_tokens = usage.input_tokens or progress.input_tokens
        progress.cached_tokens = usage.cached_tokens or progress.cached_tokens
        progress.output_tokens = usage.output_tokens or progress.output_tokens


class OpenAI(Engine):
    """Passes requests on unchanged but for nulls and the model's name there, and returns the endpoint's answers.

    A request waits for its first slot as long as others are answered; if none is answered for `request_timeout`, it is
    `engine_unavailable`. From its first slot on it has `request_timeout` for everything: attempts, pauses, slots.
    """

    name: ClassVar[str] = "openai"
    serves: ClassVar[Collection[str]] = ENDPOINTS
    passes_on: ClassVar[bool] = True
    needs_source: ClassVar[bool] = False  # the endpoints have the model; a folder only says how long its context is
    arguments: ClassVar[type[BaseModel] | None] = OpenAIArguments

    def __init__(self, spec: ModelSpec, request_timeout: float) -> None:
        super().__init__(spec, request_timeout)
        self._arguments = OpenAIArguments.model_validate(spec.engine_args)
        self._model = self._arguments.model or spec.name
        self._backoff = Backoff(self._arguments.backoff_seconds, longest=MAX_DELAY, jitter=(0.0, 1.0))
        path = self._arguments.endpoint_folder
        self._folder = Folder(path, self._model) if path else None
        self._endpoints: dict[DiscoveredServer, RemoteEndpoint] = {}
        for entry in self._arguments.endpoints:
            limit = entry.max_in_flight or spec.in_flight()
            self._endpoints[DiscoveredServer(entry.url, 0.0)] = self._endpoint(entry.url, limit, entry.api_key_env)
        self._slots = SlotQueue(self._endpoints)
        self._without_options: set[str] = set()  # URLs of endpoints that do not know `stream_options`
        self._attempts: dict[asyncio.Timeout, RemoteEndpoint] = {}
        self._served_at = time.monotonic()
        self._watch: asyncio.Task[None] | None = None

    @classmethod
    def unsupported(cls, spec: ModelSpec, endpoint: str, body: dict[str, Any]) -> tuple[str, str] | None:
        """Return None: only the server knows what it supports, and its 400 is the request's answer."""
        return None

    @classmethod
    def structure(cls, kind: str, value: Any) -> dict[str, Any]:
        if kind == "json":
            return {"response_format": {"type": "json_schema", "json_schema": {"name": "answer", "schema": value}}}
        return {"structured_outputs": {kind: value}}  # vLLM's parameter, which other servers refuse or ignore

    async def start(self) -> None:
        self._client = EndpointClient()
        await self._refresh()
        if not any(endpoint.usable for endpoint in self._endpoints.values()):
            await self.stop()
            raise EngineStartError(f"no endpoint of model {self._model} can be used: {self._reasons()}")
        self._watch = asyncio.create_task(self._keep_watch())

    async def answer(self, endpoint: str, body: dict[str, Any]) -> EngineAnswer:
        answer = await self._answer(endpoint, self._parameters(endpoint, body), prefix_key(endpoint, body))
        self.answered_at = time.monotonic()
        assert isinstance(answer, EngineAnswer)
        ignored = _ignored(body, answer.body) if answer.status_code == 200 and answer.body else None
        if ignored is not None:
            message = f"The server ignored `{ignored}`, which its answer lacks. Leave it out, or use another server."
            return EngineAnswer.refused(message, param=ignored, code="unsupported_parameter")
        return answer

    async def stream(self, endpoint: str, body: dict[str, Any]) -> EngineAnswer | AsyncGenerator[bytes]:
        shows_usage = bool((body.get("stream_options") or {}).get("include_usage"))
        bare = None
        if endpoint in (CHAT.path, COMPLETIONS.path):  # their streams say what they used only if they are asked
            if body.get("stream_options") is None:
                bare = Content(json_lines.dumps(self._parameters(endpoint, body)))
            body = {**body, "stream_options": {**(body.get("stream_options") or {}), "include_usage": True}}
        answer = await self._answer(
            endpoint, self._parameters(endpoint, body), prefix_key(endpoint, body), streams=True, bare=bare
        )
        if isinstance(answer, OpenStream):
            return self._events(answer, StreamEnd(body), shows_usage=shows_usage)
        # Some servers give a whole answer although a stream was asked for.
        return streamed(endpoint, {"stream_options": {"include_usage": shows_usage}}, answer)

    def _parameters(self, endpoint: str, body: dict[str, Any]) -> dict[str, Any]:
        parameters = {name: value for name, value in body.items() if value is not None}
        if endpoint == RESPONSES.path:  # a server would answer before it has computed anything
            parameters.pop("background", None)
        return {**parameters, "model": self._model}  # some servers refuse a name even with null

    async def _events(self, opened: OpenStream, end: StreamEnd, *, shows_usage: bool) -> AsyncGenerator[bytes]:
        """Yield a stream's events under our name of the model. Raises EngineError if it breaks off."""
        progress = PROGRESS.get()
        try:
            async for event in self._client.events(opened.response):
                self.answered_at = time.monotonic()
                end.read(event)
                changed = self._renamed_event(event, progress, shows_usage=shows_usage)
                if changed is not None:
                    yield changed + b"\n\n"
            if not end.is_whole:
                opened.endpoint.failed(time.monotonic(), ENDED_EARLY)
                raise EngineError(f"endpoint {opened.endpoint.url}: {ENDED_EARLY}")
            if end.lacks_done:
                yield stream_events.DONE.data
            opened.endpoint.answered(time.monotonic(), opened.began, opened.beside)
            self._served_at = time.monotonic()
        except NoReply as error:
            opened.endpoint.failed(time.monotonic(), error.reason, responded=False)
            raise EngineError(f"endpoint {opened.endpoint.url}: {error.reason}") from error
        finally:
            opened.response.close()
            self._slots.release(opened.endpoint)

    def _renamed_event(self, event: bytes, progress: RequestProgress | None, *, shows_usage: bool) -> bytes | None:
        """Return an event under our name of the model; None for the usage that the client has not asked for."""
        lines = event.split(b"\n")
        for number, line in enumerate(lines):
            data = client.json_object(line.removeprefix(b"data:")) if line.startswith(b"data:") else {}
            if not data:
                continue
            for holder in (data, data.get("response"), data.get("message")):
                if isinstance(holder, dict):
                    _note_usage(progress, holder)
                    if isinstance(holder.get("model"), str):
                        holder["model"] = self.spec.name
            if data.get("usage") and data.get("choices") == [] and not shows_usage:
                return None
            if progress is not None and (data.get("choices") or data.get("delta")):
                progress.note()
            lines[number] = b"data: " + json_lines.dumps(data)
        return b"\n".join(lines)

    def versions(self) -> dict[str, str]:
        """Return the base URLs that can answer now, and their servers' versions."""
        usable = [endpoint for endpoint in self._endpoints.values() if endpoint.usable]
        values_by_key = {
            "endpoints": {endpoint.url for endpoint in usable},
            "version": {endpoint.version for endpoint in usable if endpoint.version},
        }
        versions = {key: ", ".join(sorted(values)) for key, values in values_by_key.items() if values}
        return {"engine": self.name, "model": self._model, **versions}

    def endpoints(self) -> list[dict[str, Any]]:
        now = time.monotonic()
        return [endpoint.state(now) for endpoint in self._endpoints.values()]

    async def stop(self) -> None:
        if self._watch is not None:
            self._watch.cancel()
            await asyncio.wait([self._watch])
        await self._client.close()

    def _endpoint(self, url: str, limit: int, variable: str | None = None, age: float | None = None) -> RemoteEndpoint:
        return RemoteEndpoint(
            url=url,
            max_in_flight=limit,
            last_response_at=time.monotonic() - (age or 0.0),
            api_key_env=variable or self._arguments.api_key_env,
            discovered=age is not None,
            backoff=self._backoff,
        )

    async def _keep_watch(self) -> None:
        while True:
            await asyncio.sleep(self._arguments.watch_seconds)
            try:
                await self._refresh()
            except Exception:  # without this loop no endpoint would become healthy again
                log.exception("endpoints could not be looked after", extra={"model": self.spec.name})

    async def _refresh(self) -> None:
        if self._folder is not None:
            self._discover(await asyncio.to_thread(self._folder.servers))
        now = time.monotonic()
        await asyncio.gather(*(self._probe(endpoint) for endpoint in self._endpoints.values() if endpoint.due(now)))
        self._slots.hand_out()

    def _discover(self, servers: frozenset[DiscoveredServer]) -> None:
        for server in servers:
            if DiscoveredServer(server.url, 0.0) not in self._endpoints and server not in self._endpoints:
                age = max(0.0, time.time() - server.started_at)
                self._endpoints[server] = self._endpoint(server.url, self.spec.in_flight(), age=age)
        for key, endpoint in list(self._endpoints.items()):
            endpoint.gone = endpoint.discovered and key not in servers
            if endpoint.gone and not endpoint.in_flight:
                del self._endpoints[key]

    async def _probe(self, endpoint: RemoteEndpoint) -> None:
        try:
            await self._client.probe(endpoint, self._model)
        except ProbeFailed as failure:
            endpoint.probe_failed(time.monotonic(), failure.reason, responded=failure.responded, fatal=failure.fatal)
            if endpoint.down and not failure.responded:
                # Attempts at a machine that left the network time out: it does not even close its connections.
                for scope, attempted in self._attempts.items():
                    if attempted is endpoint and not scope.expired():
                        scope.reschedule(asyncio.get_running_loop().time())
        else:
            endpoint.probed(time.monotonic())

    async def _answer(
        self,
        path: str,
        parameters: dict[str, Any],
        prefix: bytes | None,
        *,
        streams: bool = False,
        bare: Content | None = None,
    ) -> EngineAnswer | OpenStream:
        """Answer a request at one endpoint after the other. `bare`: without options that some do not know."""
        arrived = time.monotonic()
        endpoint = await self._slots.acquire(
            lambda: max(arrived, self._served_at) + self.request_timeout, prefix=prefix
        )
        self.answered_at = time.monotonic()  # waiting for a slot is no hang
        deadline = time.monotonic() + self.request_timeout
        attempts = failures = 0
        content = await self._content(path, parameters, endpoint) if endpoint is not None else client.NOTHING
        if isinstance(content, EngineAnswer):
            return content
        while endpoint is not None:
            outcome = await self._attempt(endpoint, path, content, deadline, streams=streams, bare=bare)
            if not isinstance(outcome, FailedAttempt):
                return outcome
            attempts += 1
            failures += outcome.answer is not None
            if outcome.answer is not None and failures == ATTEMPTS:
                return outcome.answer
            pause = self._backoff.seconds(attempts)
            await asyncio.sleep(min(pause, deadline - time.monotonic()))
            endpoint = await self._slots.acquire(lambda: deadline, endpoint, prefix)
        message = f"no endpoint could be used for {self.request_timeout:g} seconds: {self._reasons()}"
        return EngineAnswer.failed("engine_unavailable", message)

    async def _content(self, path: str, parameters: dict[str, Any], endpoint: RemoteEndpoint) -> Content | EngineAnswer:
        """Return what the endpoint is sent, or the answer to a request whose file cannot be had, and free its slot.

        Files are read with a slot only: there are twice as many requests as slots, and files are large.
        """
        content: Content | EngineAnswer | None = None
        try:
            content = media.refusal(self.spec, parameters) if path in AUDIO else None
            content = content or await client.sent_as(path, parameters)
            return content
        finally:
            if not isinstance(content, Content):
                self._slots.release(endpoint)

    async def _attempt(
        self,
        endpoint: RemoteEndpoint,
        path: str,
        content: Content,
        deadline: float,
        *,
        streams: bool,
        bare: Content | None,
    ) -> EngineAnswer | FailedAttempt | OpenStream:
        began, beside, holds_slot = time.monotonic(), endpoint.in_flight, True
        try:
            async with asyncio.timeout(deadline - began) as scope:
                self._attempts[scope] = endpoint
                try:
                    if bare is not None and endpoint.url in self._without_options:
                        content = bare
                    reply = await self._client.post(endpoint, path, content, streams=streams)
                    if bare not in (None, content) and reply.status in (400, 422) and b"stream_options" in reply.data:
                        self._without_options.add(endpoint.url)
                        reply = await self._client.post(endpoint, path, bare, streams=streams)
                finally:
                    del self._attempts[scope]
            if reply.stream is not None:
                holds_slot = False  # until the stream is read
                return OpenStream(endpoint, reply.stream, began, beside)
            return self._outcome(endpoint, began, beside, content.plain, reply)
        except NoReply as error:
            endpoint.failed(time.monotonic(), error.reason, responded=False)
            return self._failure(endpoint, error.reason) if error.connected else FailedAttempt(None)
        except TimeoutError:
            now, reason = time.monotonic(), "no answer in time"
            endpoint.overloaded(now, began, reason)
            endpoint.failed(now, reason, responded=False)
            return EngineAnswer.timed_out(self.request_timeout) if now >= deadline else self._failure(endpoint, reason)
        finally:
            if holds_slot:
                self._slots.release(endpoint)

    def _outcome(
        self, endpoint: RemoteEndpoint, began: float, beside: int, plain: bool, reply: EndpointReply
    ) -> EngineAnswer | FailedAttempt:
        """Record a reply at its endpoint, and return its meaning for the request."""
        now, status, reason = time.monotonic(), reply.status, client.described(reply.status)
        if status == 200:
            body = client.json_object(reply.data)
            if plain and not body and reply.media_type.startswith("text/plain"):
                body = {"text": reply.data.decode(errors="replace")}
            return self._received(endpoint, began, beside, body, reply.data)
        refusal = client.refused(status, reply.data)
        if status in client.MISCONFIGURED or _is_of_account(refusal):
            if any(other.usable for other in self._endpoints.values() if other is not endpoint):
                endpoint.failed(now, reason, fatal=True)
                return FailedAttempt(None)
            # It may be this request's alone, and no other endpoint would answer it. So the others are asked as well.
            endpoint.responded(now)
            self._served_at = now
            return refusal
        if 400 <= status < 500 and status not in AGAIN:
            endpoint.responded(now)
            self._served_at = now
            return refusal
        if status in OVERLOADED or status in TOO_SLOW:
            endpoint.overloaded(now, began, reason)
        if status != 429:
            endpoint.failed(now, reason)
        pause = min(retry_after(reply.retry_after, time.time()) or 0.0, self.request_timeout)
        if pause:
            endpoint.pause(now, pause)
            asyncio.get_running_loop().call_later(pause, self._slots.hand_out)
        return FailedAttempt(None if status in OVERLOADED else refusal)

    def _received(
        self, endpoint: RemoteEndpoint, began: float, beside: int, body: dict[str, Any], data: bytes
    ) -> EngineAnswer | FailedAttempt:
        """Record a response with status 200, and return its meaning for the request."""
        now = time.monotonic()
        fault = responses.fault(body or None)
        if fault is None:
            endpoint.answered(now, began, beside)
            self._served_at = now
            served, extension = body.get("model"), body.get("batchyard")
            if isinstance(served, str) and served != self.spec.name:  # it stands beside our name of the model
                extension = {**(extension if isinstance(extension, dict) else {}), "served_model": served}
                body = {**body, "batchyard": extension}
            return EngineAnswer(200, {**body, "model": self.spec.name})
        if body:  # no fault of the endpoint: its model has no answer to this prompt
            endpoint.responded(now)
            self._served_at = now
        else:
            endpoint.failed(now, "HTTP 200 without an answer")
        answer = client.no_answer(endpoint.url, data, fault)
        final = fault.status is not None and fault.status < 500 and fault.status not in AGAIN
        return answer if final or _is_of_account(answer) else FailedAttempt(answer)

    def _failure(self, endpoint: RemoteEndpoint, reason: str) -> FailedAttempt:
        return FailedAttempt(EngineAnswer.failed("engine_error", f"endpoint {endpoint.url}: {reason}"))

    def _reasons(self) -> str:
        now = time.monotonic()
        reasons = [f"{one.url} is {one.health(now)}: {one.reason}" for one in self._endpoints.values()]
        if self._folder is not None and not any(one.discovered for one in self._endpoints.values()):
            reasons.append(f"{self._arguments.endpoint_folder} holds no endpoint file for {self._model}")
        return "; ".join(reasons)
