"""Live requests through the gateway, with a real broker, a real database, and an engine in this process."""

from __future__ import annotations

import dataclasses
import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import anthropic
import httpx
import openai
import orjson
import pytest
import redis
from aiohttp import web

from store import keys, projects
from store.accounting import usage
from store.accounting.months import Month
from store.database import Database
from tasks.context import AppContext
from tasks.live import addresses, demand
from tests.support.gateways import LiveEngine, LoopThread, RunningGateway, publish
from tests.support.rows import until
from tests.support.webapps import on_sqlite
from tests.webapp.gateway.conftest import MODELS, Send
from webapp.gateway import live as gateway_live


def error(answer: httpx.Response) -> dict[str, Any]:
    return dict(answer.json()["error"])


def used(database: Database) -> dict[str, Any]:
    """Return the sums of what was written as usage."""
    with database.read() as session:
        entries = usage.listed(session, Month.of(), ["model"], None)
    return {str(entry.model): entry for entry in entries}


def test_the_openai_client_gets_whole_and_streamed_answers(gateway: RunningGateway, key: str) -> None:
    client = openai.OpenAI(base_url=f"{gateway.url}/v1", api_key=key, max_retries=0)
    messages: Any = [{"role": "user", "content": "three wagons"}]
    assert client.chat.completions.create(model="echo", messages=messages).choices[0].message.content == "three wagons"
    stream = client.chat.completions.create(model="echo", messages=messages, stream=True)
    assert "".join(chunk.choices[0].delta.content or "" for chunk in stream) == "three wagons"
    assert client.responses.create(model="echo", input="three wagons").output_text == "three wagons"
    with client.responses.stream(model="echo", input="three wagons") as events:
        assert events.get_final_response().output_text == "three wagons"
    assert len(client.embeddings.create(model="echo", input=["a", "b"]).data) == 2


def test_the_anthropic_client_gets_whole_and_streamed_answers_and_errors(gateway: RunningGateway, key: str) -> None:
    client = anthropic.Anthropic(base_url=gateway.url, api_key=key, max_retries=0)
    messages: Any = [{"role": "user", "content": "three wagons"}]
    whole = client.messages.create(model="echo", max_tokens=9, messages=messages)
    assert whole.content[0].text == "three wagons"  # type: ignore[union-attr]
    with client.messages.stream(model="echo", max_tokens=9, messages=messages) as stream:
        assert "".join(stream.text_stream) == "three wagons"
    with pytest.raises(anthropic.NotFoundError) as refused:
        client.messages.create(model="ecko", max_tokens=9, messages=messages)
    assert "Did you mean 'echo'?" in str(refused.value)


def test_no_answer_is_kept_by_a_browser_or_proxy(send: Send) -> None:
    for answer in (send(), send(stream=True), send(model="ecko")):
        assert answer.headers["Cache-Control"] == "no-store"
        assert answer.headers["X-Content-Type-Options"] == "nosniff"
        assert "frame-ancestors 'none'" in answer.headers["Content-Security-Policy"]


@pytest.mark.parametrize(
    ("parameters", "status", "code", "param"),
    [
        ({"model": "ecko"}, 404, "model_not_found", "model"),
        ({"temperature": "warm"}, 400, "invalid_request", "temperature"),
        ({"messages": []}, 400, "invalid_request", "messages"),
        ({"logit_bias": {"1": 2}}, 400, "unsupported_parameter", "logit_bias"),
        ({"service_tier": "gold"}, 400, "invalid_value", "service_tier"),
        ({"model": "offline"}, 400, "batches_only", "model"),
    ],
)
def test_bad_input_is_refused_with_place_and_code(
    send: Send, parameters: dict[str, Any], status: int, code: str, param: str
) -> None:
    answer = send(**parameters)
    assert (answer.status_code, error(answer)["code"], error(answer)["param"]) == (status, code, param)
    assert answer.headers["x-request-id"].startswith("req_")


def test_a_body_that_is_no_json_and_a_stream_where_none_can_be_are_refused(http: httpx.Client) -> None:
    answer = http.post("/v1/chat/completions", content=b"{oops")
    assert (answer.status_code, error(answer)["code"]) == (400, "invalid_json_line")
    answer = http.post("/v1/embeddings", json={"model": "echo", "input": "a", "stream": True})
    assert (answer.status_code, error(answer)["code"]) == (400, "streaming_unsupported")
    body = {"model": "echo", "prompt": "a", "stream": True, "prompt_logprobs": 1}
    refused = error(http.post("/v1/completions", json=body))
    assert (refused["code"], refused["param"]) == ("unsupported_parameter", "prompt_logprobs")


def test_a_wrong_key_and_a_revoked_one_open_nothing(
    send: Send, http: httpx.Client, database: Database, key: str
) -> None:
    assert http.post("/v1/chat/completions", json={}, headers={"Authorization": "Bearer by-x-y"}).status_code == 401
    assert http.post("/v1/chat/completions", json={}, headers={"Authorization": ""}).status_code == 401
    assert send().status_code == 200
    with database.write() as session:
        keys.revoke(session, key.split("-")[1])
    until(lambda: send().status_code != 200)
    assert send().status_code == 401


@on_sqlite
def test_live_requests_are_in_the_audit_with_who_sent_them_and_without_what(
    live_context: AppContext, thread: LoopThread, engines: dict[str, LiveEngine], key: str, tmp_path: Path
) -> None:
    path = tmp_path / "audit.jsonl"
    settings = live_context.settings.model_copy(update={"audit": str(path), "proxies": 1})
    audited = RunningGateway(thread, dataclasses.replace(live_context, settings=settings))
    body = {"model": "echo", "messages": [{"role": "user", "content": "three wagons"}]}
    forwarded = {"X-Forwarded-For": "9.9.9.9, 192.0.2.7"}
    with httpx.Client(base_url=audited.url, headers=forwarded, timeout=60) as client:
        for value in (key, "by-x-y"):
            client.post("/v1/chat/completions", json=body, headers={"Authorization": f"Bearer {value}"})
    audited.stop()
    assert "wagons" not in path.read_text() and key.split("-")[2] not in path.read_text()
    lines = [orjson.loads(line) for line in path.read_bytes().splitlines()]
    assert [(line["action"], line["object"], line["name"], line["result"], line["address"]) for line in lines] == [
        ("live", "/v1/chat/completions", "alice", "ok", "192.0.2.7"),
        ("live", "/v1/chat/completions", None, "refused", "192.0.2.7"),
    ]


def test_what_was_used_is_written_within_seconds_with_its_price(send: Send, database: Database) -> None:
    for _ in range(3):
        assert send("one two", model="priced").status_code == 200
    assert send("one two three", model="priced", stream=True).status_code == 200
    until(lambda: "priced" in used(database) and used(database)["priced"].amounts.requests == 4)
    entry = used(database)["priced"]
    assert (entry.amounts.input_tokens, entry.amounts.output_tokens, entry.amounts.failed) == (9, 9, 0)
    assert entry.cost == pytest.approx(9 * 3 / 1e6)


def test_a_client_that_goes_away_ends_its_request_and_pays_for_what_was_computed(
    http: httpx.Client, engines: dict[str, LiveEngine], database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gateway_live, "ABORT_SECONDS", 60)
    body = {"model": "paced", "messages": [{"role": "user", "content": "go"}], "max_tokens": 5000, "stream": True}
    with http.stream("POST", "/v1/chat/completions", json=body) as response:
        lines = response.iter_lines()
        for _ in range(20):  # ten words
            next(lines)
    until(lambda: not engines["paced"].queue.inside)
    until(lambda: "paced" in used(database))
    entry = used(database)["paced"]
    assert 5 <= entry.amounts.output_tokens < 4000 and entry.amounts.failed == 1


@pytest.mark.parametrize("start_seconds", [1], ids=[""])
def test_a_model_whose_engine_does_not_come_is_answered_in_time(send: Send) -> None:
    began = time.monotonic()
    answer = send(model="absent")
    assert (answer.status_code, error(answer)["code"]) == (503, "engine_starting")
    assert answer.headers["Retry-After"] and time.monotonic() - began < 30


def test_a_request_waits_for_the_engine_that_starts(send: Send, live_context: AppContext, thread: LoopThread) -> None:
    answers: list[httpx.Response] = []
    waiting = threading.Thread(target=lambda: answers.append(send(model="absent")))
    waiting.start()
    until(lambda: "absent" in demand.wanted(live_context))
    engine = LiveEngine(thread, MODELS["absent"], name="late")
    publish(live_context, "absent", engine)
    waiting.join()
    assert answers[0].status_code == 200
    engine.stop()


def test_a_failed_start_is_told_with_its_reason(send: Send, live_context: AppContext) -> None:
    addresses.fail(live_context, "absent", "no GPU has 80 GB")
    answer = send(model="absent")
    assert (answer.status_code, error(answer)["code"]) == (503, "engine_failed")
    assert "no GPU has 80 GB" in error(answer)["message"]


def test_a_replica_that_is_gone_is_left_for_the_other(
    send: Send, live_context: AppContext, thread: LoopThread, engines: dict[str, LiveEngine]
) -> None:
    other = LiveEngine(thread, MODELS["echo"], name="other")
    publish(live_context, "echo", engines["echo"], other)
    engines["echo"].over = True
    assert all(send().status_code == 200 for _ in range(4))
    assert (engines["echo"].answered, other.answered) == (0, 4)
    other.stop()


@pytest.mark.parametrize("start_seconds", [1], ids=[""])
def test_a_replica_that_was_only_late_is_used_again_when_a_worker_has_seen_it(
    send: Send, live_context: AppContext, engines: dict[str, LiveEngine]
) -> None:
    engines["echo"].over = True
    assert error(send())["code"] == "engine_starting"
    engines["echo"].over = False
    assert error(send())["code"] == "engine_starting", "nobody has seen it since"
    publish(live_context, "echo", engines["echo"])
    assert send().status_code == 200


@pytest.fixture
def frequent_checks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gateway_live, "HEALTH_SECONDS", 0.1)


def test_workers_are_told_of_a_replica_that_does_not_answer(
    frequent_checks: None, send: Send, live_context: AppContext
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent, ThreadPoolExecutor(1) as pool:
        url = f"http://127.0.0.1:{silent.getsockname()[1]}"
        addresses.publish(live_context, "absent", [addresses.EngineAddress("silent", url, "token", 8)])
        asked = pool.submit(send, model="absent")
        until(lambda: demand.suspects(live_context) == [("absent", "silent")])
        assert not asked.done()
        silent.close()
        assert asked.result().status_code == 503


def test_requests_of_one_session_go_to_one_replica_and_others_to_both(
    http: httpx.Client, live_context: AppContext, thread: LoopThread, engines: dict[str, LiveEngine]
) -> None:
    other = LiveEngine(thread, MODELS["echo"], name="other")
    publish(live_context, "echo", engines["echo"], other)
    body = {"model": "echo", "messages": [{"role": "user", "content": "hi"}]}
    for _ in range(6):
        assert http.post("/v1/chat/completions", json=body, headers={"x-session-id": "a"}).status_code == 200
    assert sorted([engines["echo"].answered, other.answered]) == [0, 6]
    for session in range(20):
        http.post("/v1/chat/completions", json=body, headers={"x-session-id": str(session)})
    assert min(engines["echo"].answered, other.answered) > 0
    other.stop()


def test_the_turns_of_an_outside_loop_keep_their_replica_in_tier_flex(
    gateway: RunningGateway, key: str, live_context: AppContext, thread: LoopThread, engines: dict[str, LiveEngine]
) -> None:
    other = LiveEngine(thread, MODELS["echo"], name="other")
    publish(live_context, "echo", engines["echo"], other)
    client = openai.OpenAI(base_url=f"{gateway.url}/v1", api_key=key, max_retries=0)
    histories: dict[str, list[Any]] = {f"trajectory-{number}": [] for number in range(8)}
    replicas: dict[str, list[bool]] = {name: [] for name in histories}
    for turn in range(4):
        for name, messages in histories.items():
            before = other.answered
            messages.append({"role": "user", "content": f"turn {turn}"})
            answer = client.chat.completions.create(
                model="echo", messages=messages, service_tier="flex", extra_headers={"x-session-id": name}
            )
            messages.append(answer.choices[0].message.to_dict())
            replicas[name].append(other.answered > before)
    assert all(len({*went}) == 1 for went in replicas.values()), "a trajectory has changed its replica"
    assert len({went[0] for went in replicas.values()}) == 2, "one replica has all trajectories"
    other.stop()


def test_a_project_that_may_use_one_tier_only_gets_that_one(send: Send, database: Database) -> None:
    with database.write() as session:
        project = projects.get_or_create(session, "default")
        projects.update(session, project.id, live_tier="flex")
    assert send().status_code == 200, "a request that names no tier gets the one there is"
    assert send(service_tier="flex").status_code == 200
    answer = send(service_tier="default")
    assert (answer.status_code, error(answer)["code"]) == (400, "tier_not_allowed")


def test_the_broker_may_be_away(send: Send, live_context: AppContext, monkeypatch: pytest.MonkeyPatch) -> None:
    assert send().status_code == 200
    away = redis.ConnectionPool.from_url("unix:///nowhere/redis.sock", decode_responses=True)
    monkeypatch.setattr(live_context.redis, "connection_pool", away)  # another thread may use one of the others
    began = time.monotonic()
    assert send().status_code == 200
    assert time.monotonic() - began < 30


def test_audio_comes_as_a_file_of_a_form(gateway: RunningGateway, key: str, http: httpx.Client) -> None:
    client = openai.OpenAI(base_url=f"{gateway.url}/v1", api_key=key, max_retries=0)
    file = ("a.wav", b"RIFF....", "audio/wav")
    whole = client.audio.transcriptions.create(model="priced", file=file, language="en", temperature=0.5)
    assert isinstance(whole.text, str) and whole.text
    text = client.audio.transcriptions.create(model="priced", file=file, response_format="text")
    assert text == whole.text
    with pytest.raises(openai.BadRequestError, match="file_url"):
        client.audio.translations.create(model="priced", file=("a.wav", b""))
    large = http.post("/v1/audio/transcriptions", files={"file": bytes(26 * 2**20)}, data={"model": "priced"})
    assert (large.status_code, error(large)["code"]) == (413, "file_too_large")


def test_tokens_of_messages_are_counted_for_the_anthropic_client(gateway: RunningGateway, key: str) -> None:
    client = anthropic.Anthropic(base_url=gateway.url, api_key=key, max_retries=0)
    messages: Any = [{"role": "user", "content": "three wagons here"}]
    assert client.messages.count_tokens(model="priced", messages=messages, system="one two").input_tokens == 5


@pytest.mark.parametrize(
    ("parameters", "param"),
    [
        ({"stream": "false"}, "stream"),
        ({"stream": 1}, "stream"),
        ({"stream": True, "stream_options": "include_usage"}, "stream_options"),
        ({"stream": True, "stream_options": True}, "stream_options"),
        ({"stream": True, "stream_options": {"include_usage": "yes"}}, "stream_options.include_usage"),
        ({"stream_options": {"include_usage": True}}, "stream_options"),
    ],
)
def test_flags_of_a_stream_have_their_types(send: Send, parameters: dict[str, Any], param: str) -> None:
    answer = send(**parameters)
    assert (answer.status_code, error(answer)["param"]) == (400, param), answer.text
    assert send(stream=None, stream_options=None).status_code == 200


@pytest.mark.parametrize("text", ["Server got itself in trouble", "[]", '{"error": "no"}', '"no"'])
def test_an_engines_error_that_is_no_json_is_an_error_in_openais_form(
    send: Send, engines: dict[str, LiveEngine], monkeypatch: pytest.MonkeyPatch, text: str
) -> None:
    async def broken(*_: Any) -> web.Response:
        return web.Response(status=500, text=text)

    monkeypatch.setattr(engines["echo"]._server, "_answer", broken)
    answer = send()
    assert (answer.status_code, error(answer)["code"]) == (500, "engine_error")


def test_an_empty_prefill_is_none(http: httpx.Client) -> None:
    user: dict[str, Any] = {"role": "user", "content": "hi"}

    def answer(*messages: dict[str, Any]) -> httpx.Response:
        return http.post("/v1/messages", json={"model": "echo", "max_tokens": 8, "messages": messages})

    for content in ("", []):
        prefilled = answer(user, {"role": "assistant", "content": content})
        assert prefilled.status_code == 200 and prefilled.json()["content"][0]["text"] == "hi", prefilled.text
    refused = answer({"role": "assistant", "content": ""}, user)
    assert refused.status_code == 400 and "messages[0].content" in error(refused)["message"]
    assert answer({"role": "assistant", "content": ""}).status_code == 400


def test_parameters_of_claude_code_without_effect_are_taken_and_others_are_not(http: httpx.Client) -> None:
    keep_all: dict[str, Any] = {"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]}
    body: dict[str, Any] = {
        "model": "echo",
        "max_tokens": 8,
        "messages": [{"role": "user", "content": "hi"}],
        "cache_control": {"type": "ephemeral"},
        "inference_geo": "us",
        "context_management": keep_all,
    }
    assert http.post("/v1/messages?beta=true", json=body).status_code == 200
    body["context_management"] = {"edits": [{"type": "clear_tool_uses_20250919"}]}
    assert http.post("/v1/messages", json=body).status_code == 400


def test_threads_are_refused_as_the_anthropic_package_expects(gateway: RunningGateway, key: str) -> None:
    client = anthropic.Anthropic(base_url=gateway.url, api_key=key, max_retries=0)
    messages: Any = [{"role": "user", "content": "hi"}]
    with pytest.raises(anthropic.BadRequestError) as refused:
        client.messages.create(model="echo", max_tokens=8, messages=messages, extra_body={"thread": {"type": "create"}})
    body: Any = refused.value.body
    assert body["error"]["details"] == {"error_code": "thread_unsupported_request", "unsupported": ["thread"]}
    assert refused.value.request_id is not None and refused.value.request_id == body["request_id"]
    answered = client.messages.create(model="echo", max_tokens=8, messages=messages)
    assert (answered._request_id or "").startswith("req_")


def test_documents_are_ranked_as_cohere_and_jina_send_them(http: httpx.Client) -> None:
    texts = ["It rains.", "A train leaves at noon."]
    body = {"model": "priced", "query": "When does a train leave?", "documents": texts}

    def results(**changes: Any) -> list[dict[str, Any]]:
        answer = http.post("/v1/rerank", json=body | changes)
        assert answer.status_code == 200, answer.text
        return list(answer.json()["results"])

    objects = [{"text": text, "title": "a"} for text in texts]
    assert results() == results(documents=objects) == results(documents=objects, return_documents=True)
    assert [result["index"] for result in results()] == [1, 0]
    assert results()[0]["document"] == {"text": texts[1]}
    assert all("document" not in result for result in results(documents=objects, return_documents=False))


def test_a_page_of_an_allowed_origin_may_send_requests(
    live_context: AppContext, thread: LoopThread, engines: dict[str, LiveEngine], key: str
) -> None:
    settings = live_context.settings.model_copy(update={"cors_origins": "http://localhost:3000"})
    running = RunningGateway(thread, dataclasses.replace(live_context, settings=settings))
    asks = {"Origin": "http://localhost:3000", "Access-Control-Request-Method": "POST"}
    asks["Access-Control-Request-Headers"] = "authorization,x-stainless-os"
    sent = {"Authorization": f"Bearer {key}", "Origin": "http://localhost:3000"}
    body: dict[str, Any] = {"model": "echo", "messages": [{"role": "user", "content": "hi"}]}
    with httpx.Client(base_url=running.url, timeout=60) as http:
        for path in ("/v1/chat/completions", "/v1/models", "/v1/batches"):
            allowed = http.options(path, headers=asks)
            assert allowed.status_code == 204
            assert allowed.headers["access-control-allow-origin"] == "http://localhost:3000"
            assert allowed.headers["access-control-allow-headers"] == "authorization,x-stainless-os"
            methods = set(allowed.headers["access-control-allow-methods"].split(", "))
            assert {"GET", "POST", "PATCH", "DELETE"} <= methods, "those of all routes"
            other = http.options(path, headers=asks | {"Origin": "http://evil.example"})
            assert "access-control-allow-origin" not in other.headers
        for parameters in ({}, {"stream": True}, {"model": "ecko"}):
            answer = http.post("/v1/chat/completions", json=body | parameters, headers=sent)
            assert answer.headers["access-control-allow-origin"] == "http://localhost:3000"
    running.stop()


def test_no_origin_is_allowed_unless_the_operator_says_so(http: httpx.Client) -> None:
    asks = {"Origin": "http://localhost:3000", "Access-Control-Request-Method": "POST"}
    assert "access-control-allow-origin" not in http.options("/v1/chat/completions", headers=asks).headers


def test_a_body_of_hundreds_of_thousands_of_parts_is_refused_and_holds_up_no_other_request(http: httpx.Client) -> None:
    parts = b'{"type":"text","text":"x"},' * 400_000
    body = b'{"model":"echo","messages":[{"role":"user","content":[' + parts.removesuffix(b",") + b"]}]}"

    def holds_up() -> bool:
        waits, start = [], time.monotonic()
        with ThreadPoolExecutor(1) as pool:
            refused = pool.submit(http.post, "/v1/chat/completions", content=body)
            while not refused.done():
                began = time.monotonic()
                assert http.get("/healthz").status_code == 200
                waits.append(time.monotonic() - began)
        assert refused.result().status_code == 400 and "more than 10,000" in refused.result().json()["error"]["message"]
        return max(waits) >= max(2, (time.monotonic() - start) / 2)  # a busy machine is slower in both

    assert not all(holds_up() for _ in range(10)), "a machine that stands still for seconds does so once"
