"""Servers that others run, asked over HTTP: which models they have, and what these can do. Needs no engine."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from http import HTTPStatus
from typing import Any, NamedTuple

import httpx
from pydantic import ValidationError

from batchyard.endpoints import responses
from batchyard.endpoints.base import Endpoint
from batchyard.endpoints.catalog import CHAT, COMPLETIONS, EMBEDDINGS, ENDPOINTS
from batchyard.errors import ConfigurationError
from batchyard.failures.reasons import one_line
from batchyard.schema_words import invalid_values
from batchyard.wording import cut
from inference.doctor.folder import Finding
from inference.engines.openai.client import NO_SUCH_ROUTE, json_object
from inference.engines.openai.engine import OpenAIArguments

LIST_SECONDS = 10.0
ANSWER_SECONDS = 60.0
MAX_REASON = 200
USUAL = (CHAT.path, COMPLETIONS.path, EMBEDDINGS.path)
"""Endpoints of a server that does not describe its routes."""
SCHEMA = {
    "type": "object",
    "properties": {"even": {"type": "boolean"}},
    "required": ["even"],
    "additionalProperties": False,
}
FUNCTION = {"name": "add", "parameters": {"type": "object", "properties": {"number": {"type": "integer"}}}}


class ListedServer(NamedTuple):
    """A server: its base URL, its models, and the endpoints that it has a route for."""

    url: str
    models: Sequence[str]
    endpoints: Sequence[str]


class _Ability(NamedTuple):
    """Something that a server may be able to do."""

    name: str
    endpoint: Endpoint
    request: dict[str, Any]  # what is added to the request of `endpoint`
    shown: Callable[[Any], Any]  # true if an answer shows it. Of a stream it gets the list of events.
    without: str  # what follows for Batchyard where it is missing


def _has_output(body: Any) -> bool:
    return bool(responses.outputs(body)) and responses.fault(body) is None


def _follows_schema(body: Any) -> bool:
    return isinstance(json_object(responses.output(body).text or "").get("even"), bool)


def _event_with(key: str) -> Callable[[Any], bool]:
    return lambda events: any(event.get(key) for event in events)


_STREAM = {"stream": True}
_LOGPROBS = {"logprobs": True, "top_logprobs": 1}
_USAGE = _STREAM | {"stream_options": {"include_usage": True}}
_ONE = {"max_completion_tokens": 1, "max_tokens": None}
_TWO = {"n": 2, "temperature": 1.0}
_JSON = {"response_format": {"type": "json_schema", "json_schema": {"name": "answer", "schema": SCHEMA}}}
_TOOLS = {"tools": [{"type": "function", "function": FUNCTION}], "tool_choice": "required"}
_ABILITIES = (
    _Ability("chat", CHAT, {}, _has_output, "no chats, and no recipes"),
    _Ability("completions", COMPLETIONS, {}, _has_output, "no requests to /v1/completions"),
    _Ability("embeddings", EMBEDDINGS, {}, responses.vectors, "no `batchyard embed`"),
    _Ability("stream", CHAT, _STREAM, _event_with("choices"), "live answers come as a whole"),
    _Ability("stream_options.include_usage", CHAT, _USAGE, _event_with("usage"), "tokens of streams are not counted"),
    _Ability("logprobs", CHAT, _LOGPROBS, lambda body: responses.output(body).logprobs, "no probabilities of labels"),
    _Ability("n", CHAT, _TWO, lambda body: len(responses.outputs(body)) == 2, "one answer per request"),
    _Ability(
        "max_completion_tokens", CHAT, _ONE, lambda body: responses.usage(body).output_tokens == 1, "use max_tokens"
    ),
    _Ability("response_format json_schema", CHAT, _JSON, _follows_schema, "answers are not held to a schema"),
    _Ability("tools", CHAT, _TOOLS, lambda body: responses.output(body).tool_calls, "no agents with tools"),
)


def listed(url: str, key_env: str | None = None) -> ListedServer:
    """Ask a server for its models and routes."""
    arguments: dict[str, Any] = {"endpoints": [{"url": url}], "api_key_env": key_env}
    try:
        url = OpenAIArguments.model_validate(arguments).endpoints[0].url
    except ValidationError as error:
        raise ConfigurationError(f"server {url}: {invalid_values(error, arguments)[0].reason}") from error
    with _client(url, key_env) as client:
        try:
            reply = client.get("/models")
            routes = client.get(f"{url.removesuffix('/v1')}/openapi.json")
        except httpx.HTTPError as error:
            said = str(error) or type(error).__name__
            raise ConfigurationError(f"server {url} cannot be asked: {said}; start it, or correct the URL") from error
    if reply.status_code in (HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN):
        said = "wants an API key" if key_env is None else f"refuses the key in {key_env}"
        raise ConfigurationError(f"server {url} {said}; name its variable with --server-key-env")
    data, paths = _document(reply).get("data"), _document(routes).get("paths")
    entries = data if isinstance(data, list) else ()
    names = [str(entry["id"]) for entry in entries if isinstance(entry, dict) and entry.get("id")]
    if not names and not url.endswith("/v1"):
        return listed(f"{url}/v1", key_env)
    if not names:
        remedy = "name the base URL of OpenAI's clients, which mostly ends in /v1"
        if reply.status_code not in NO_SUCH_ROUTE:
            remedy = "write an entry of engine openai, with `model` and `endpoints`"
        raise ConfigurationError(
            f"server {url} lists no models: GET /models is answered with HTTP {reply.status_code}; {remedy}"
        )
    described = [path for path in ENDPOINTS if path in paths] if isinstance(paths, dict) else []
    return ListedServer(url, names, described or USUAL)


def entries(servers: Sequence[ListedServer], key_env: str | None = None) -> dict[str, dict[str, Any]]:
    """Return entries of models.toml for all models of these servers; one that several have gets them all."""
    models: dict[str, dict[str, Any]] = {}
    for server in servers:
        for name in server.models:
            key = {"api_key_env": key_env} if key_env else {}
            entry = models.setdefault(
                name, {"engine": "openai", "endpoints": [], "engine_args": {"endpoints": [], **key}}
            )
            entry["endpoints"] += [path for path in server.endpoints if path not in entry["endpoints"]]
            entry["engine_args"]["endpoints"].append({"url": server.url})
    return models


def check(server: ListedServer, key_env: str | None, models: Sequence[str] = ()) -> Iterator[Finding]:
    """Yield what each of a server's models can do, by asking it; by default its first one."""
    shown = ", ".join(server.models[:8]) + (f" and {len(server.models) - 8} more" if len(server.models) > 8 else "")
    if unknown := [model for model in models if model not in server.models]:
        raise ConfigurationError(f"server {server.url} has no model {unknown[0]!r}; it has {shown}")
    yield Finding(server.url, "models", "ok", shown)
    with _client(server.url, key_env, ANSWER_SECONDS) as client:
        for model in models or server.models[:1]:
            lacks: set[str] = set()
            for ability in _ABILITIES:
                if ability.endpoint.path in lacks:
                    yield Finding(model, ability.name, "no", f"no answer on {ability.endpoint.path}", ability.without)
                    continue
                reason = _ask(client, ability, model)
                if reason is None:
                    yield Finding(model, ability.name, "ok")
                else:
                    lacks |= {ability.endpoint.path} if not ability.request else set()
                    yield Finding(model, ability.name, "no", reason, ability.without)


def is_usable(findings: Sequence[Finding]) -> bool:
    """Return whether a server has an answer on at least one endpoint."""
    basic = {ability.name for ability in _ABILITIES if not ability.request}
    return any(finding.result == "ok" and finding.check in basic for finding in findings)


def _ask(client: httpx.Client, ability: _Ability, model: str) -> str | None:
    """Return why an answer does not show an ability; None if it does."""
    question = "Is 4 even? Answer in JSON." if "response_format" in ability.request else "Add 2 and 3."
    bodies: dict[str, dict[str, Any]] = {
        CHAT.path: {"messages": [{"role": "user", "content": question}], "max_tokens": 64},
        COMPLETIONS.path: {"prompt": question, "max_tokens": 8},
        EMBEDDINGS.path: {"input": question},
    }
    request = {**bodies[ability.endpoint.path], "model": model, **ability.request}
    try:
        reply = client.post(
            ability.endpoint.path.removeprefix("/v1"),
            json={name: value for name, value in request.items() if value is not None},
        )
    except httpx.TimeoutException:
        return f"no answer within {ANSWER_SECONDS:g} s"
    except httpx.HTTPError as error:
        return one_line(str(error)) or type(error).__name__
    answer: Any = json_object(reply.content)
    if reply.status_code != HTTPStatus.OK:
        said = responses.error(answer).get("message") or reply.reason_phrase
        return cut(one_line(f"HTTP {reply.status_code}: {said}"), MAX_REASON)
    if "stream" in ability.request:
        events = [line.removeprefix("data:") for line in reply.text.splitlines() if line.startswith("data:")]
        answer = [event for event in map(json_object, events) if event]
    return None if ability.shown(answer) else "the answer does not show it"


def _client(url: str, key_env: str | None, seconds: float = LIST_SECONDS) -> httpx.Client:
    if key_env is not None and not os.environ.get(key_env):
        raise ConfigurationError(f"environment variable {key_env} is not set; set it to the key of {url}")
    headers = {"Authorization": f"Bearer {os.environ[key_env].strip()}"} if key_env else {}
    return httpx.Client(base_url=url, headers=headers, timeout=seconds, trust_env=False)


def _document(reply: httpx.Response) -> dict[str, Any]:
    return json_object(reply.content) if reply.status_code < HTTPStatus.INTERNAL_SERVER_ERROR else {}
