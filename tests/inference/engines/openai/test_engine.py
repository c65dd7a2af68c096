"""Engine openai: endpoints someone else runs. Real HTTP servers on loopback, one of them vLLM's own."""

from __future__ import annotations

import asyncio
import json
import logging
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import ExitStack, asynccontextmanager, closing
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import pytest

from batchyard.errors import ConfigurationError, EngineError, EngineStartError
from batchyard.local import ports
from batchyard.models import ModelSpec, vllm_installed
from inference import catalog
from inference.engine import Engine, EngineAnswer
from inference.engines.openai import client, endpoints
from inference.engines.openai import engine as openai_engine
from inference.engines.registry import check_arguments, engine_class
from inference.residents.session import EngineTimeouts
from tests.support.rows import all_answers, chat, table
from tests.support.servers import Reply, Server, answer, listening, serving
from tests.support.stacks import PATIENCE

CHAT, RESPONSES = "/v1/chat/completions", "/v1/responses"
KEY = "sk-very-secret"


def spec(*servers: Server, max_in_flight: int = 256, **arguments: Any) -> ModelSpec:
    entries = [{"url": server.url} for server in servers]
    quick = {"model": "theirs", "backoff_seconds": 0.02, "watch_seconds": 0.02}
    arguments = {**quick, **({"endpoints": entries} if entries else {}), **arguments}
    return ModelSpec(name="ours", engine="openai", max_in_flight=max_in_flight, engine_args=arguments)


@asynccontextmanager
async def started(model: ModelSpec, request_timeout: float = 60.0) -> AsyncIterator[Engine]:
    check_arguments(model)
    kind = engine_class(model.engine)
    assert issubclass(kind, Engine)
    engine = kind(model, request_timeout)
    await engine.start()
    try:
        yield engine
    finally:
        await engine.stop()


def ask(model: ModelSpec, *texts: str, request_timeout: float = 60.0, path: str = CHAT) -> list[EngineAnswer]:
    """The answers of a new engine."""

    async def scene() -> list[EngineAnswer]:
        async with started(model, request_timeout) as engine:
            return await all_answers(engine, path, chat(*texts))

    return asyncio.run(scene())


def text_of(answer: EngineAnswer) -> str:
    assert answer.status_code == 200 and answer.body is not None, answer
    text: str = answer.body["choices"][0]["message"]["content"]
    return text


async def comes_true(condition: Callable[[], bool], seconds: float = 60) -> None:
    deadline = time.monotonic() + PATIENCE * seconds
    while not condition():
        assert time.monotonic() < deadline, "the condition did not come true"
        await asyncio.sleep(0.01)


def healths(engine: Engine) -> dict[str, str]:
    return {entry["url"]: entry["health"] for entry in engine.endpoints()}


# Requests at an endpoint, and the outcomes of its answers


def test_an_endpoint_hears_its_own_name_of_the_model_and_the_answer_has_ours() -> None:
    with serving(Server()) as (server,):
        (answer,) = ask(spec(server), "hello")
    assert text_of(answer) == "hello" and answer.body is not None and answer.body["model"] == "ours"
    assert [body["model"] for _, body in server.asked] == ["theirs"]


def test_a_null_parameter_is_not_sent_since_some_servers_refuse_its_name() -> None:
    async def scene(model: ModelSpec) -> None:
        async with started(model) as engine:
            await all_answers(engine, CHAT, chat("hello", max_tokens=None, max_completion_tokens=5))

    with serving(Server()) as (server,):
        asyncio.run(scene(spec(server)))
    ((_, body),) = server.asked
    assert "max_tokens" not in body and body["max_completion_tokens"] == 5


def test_a_server_is_not_told_to_answer_before_it_has_an_answer() -> None:
    async def scene(model: ModelSpec) -> None:
        async with started(model) as engine:
            await engine.answer(RESPONSES, {"model": "ours", "input": "hello", "background": True, "store": False})

    with serving(Server()) as (server,):
        asyncio.run(scene(spec(server)))
    _, body = server.asked[0]
    assert body == {"model": "theirs", "input": "hello", "store": False}


def test_every_answer_is_that_of_its_own_request() -> None:
    texts = [f"text {index}" for index in range(300)]
    with serving(Server(), Server(latency=0.005)) as servers:
        assert [text_of(answer) for answer in ask(spec(*servers), *texts)] == texts


@pytest.mark.parametrize("status", [408, 409, 429, 500, 502, 503, 504, 529])
def test_what_may_be_another_answer_next_time_is_asked_again(status: int) -> None:
    with serving(Server([Reply(status), Reply(status)])) as (server,):
        assert text_of(ask(spec(server), "hello")[0]) == "hello"
    assert len(server.asked) == 3


@pytest.mark.parametrize("failing", [Reply(500), Reply(drop=True), Reply(body=b"<html>"), Reply(307)])
def test_a_request_that_fails_at_one_endpoint_is_tried_at_another(failing: Reply) -> None:
    bad = Server(always=failing)
    with serving(bad, Server()) as servers:
        answers = ask(spec(*servers), *map(str, range(40)))
    assert [text_of(one) for one in answers] == list(map(str, range(40)))
    assert bad.asked


def test_an_endpoint_that_says_when_to_come_again_is_left_alone_until_then() -> None:
    with serving(Server([Reply(429, {"Retry-After": "0.4"})])) as (server,):
        ask(spec(server, watch_seconds=60), "hello")
    first, second = (at for at, _ in server.asked)
    assert 0.4 <= second - first < 30


@pytest.mark.parametrize(
    ("status", "body", "error"),
    [
        (
            400,
            {"error": {"message": "no", "type": "x", "param": "n", "code": "bad"}},
            {"message": "no", "type": "x", "param": "n", "code": "bad"},
        ),
        (
            400,
            {"error": {"message": "no", "type": "BadRequestError", "param": None, "code": 400}},
            {"message": "no", "type": "BadRequestError"},
        ),
        (
            400,
            {"message": "maximum context length is 8", "object": "error"},
            {"message": "maximum context length is 8", "code": "context_length_exceeded"},
        ),
        (413, "too large", {"message": "too large"}),
        (422, {"detail": [{"msg": "no"}]}, {"message": '[{"msg":"no"}]'}),
        (422, "", {"message": "HTTP 422 Unprocessable Entity"}),
    ],
)
def test_what_an_endpoint_refuses_is_that_requests_own_answer_in_openais_form(
    status: int, body: Any, error: dict[str, Any]
) -> None:
    content = body.encode() if isinstance(body, str) else json.dumps(body).encode()
    with serving(Server([Reply(status, body=content)])) as (server,):
        refused, fine = ask(spec(server, max_in_flight=1), "a", "b")
    assert refused.status_code == status and refused.body is not None
    assert refused.body == {"error": {"type": "invalid_request_error", "param": None, "code": None, **error}}
    assert text_of(fine) == "b" and len(server.asked) == 2


def test_a_request_that_fails_each_time_is_answered_with_the_last_failure() -> None:
    with serving(Server(always=Reply(500, body=b'{"error": {"message": "bug"}}'))) as (server,):
        (answer,) = ask(spec(server), "hello")
    assert answer.status_code == 500 and answer.body == {
        "error": {"message": "bug", "type": "server_error", "param": None, "code": None}
    }
    assert len(server.asked) == 5
    with serving(Server(always=Reply(drop=True))) as (server,):
        (answer,) = ask(spec(server), "hello")
    assert answer.error is not None and answer.error["code"] == "engine_error"
    assert len(server.asked) == 5


def test_an_integer_of_any_size_is_the_same_at_the_endpoint_and_in_its_answer() -> None:
    number = 123456789012345678901234
    with serving(Server(always=_completion(choices=[{"index": 0, "message": {"content": "a"}}], id=number))) as (
        server,
    ):

        async def scene() -> EngineAnswer:
            async with started(spec(server)) as engine:
                return await engine.answer(CHAT, chat("hi", metadata={"maximum": number})[0])

        answer = asyncio.run(scene())
    assert server.asked[0][1]["metadata"] == {"maximum": number}
    assert answer.body is not None and answer.body["id"] == number


def stream_of(model: ModelSpec, path: str = CHAT) -> tuple[bytes, list[str]]:
    """Return what an engine streams as its answer, and the reasons of its endpoints' health. Raises EngineError."""

    async def scene() -> tuple[bytes, list[str]]:
        async with started(model) as engine:
            stream = await engine.stream(path, {**chat("hello")[0], "stream": True})
            assert not isinstance(stream, EngineAnswer), stream
            try:
                return b"".join([event async for event in stream]), []
            except EngineError as error:
                raise EngineError(f"{error.message}; {[one['reason'] for one in engine.endpoints()]}") from error

    return asyncio.run(scene())


def _stream(*events: Any) -> Reply:
    content = b"".join(b"data: " + json.dumps(event).encode() + b"\n\n" for event in events)
    return Reply(headers={"Content-Type": "text/event-stream"}, body=content)


def test_a_stream_that_ends_in_good_order_before_its_answer_does_fails_and_its_endpoint_takes_note() -> None:
    piece = {"choices": [{"index": 0, "delta": {"content": "half"}, "finish_reason": None}]}
    last = {"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]}
    for broken, reason in (
        (_stream(piece), r"ended before its end; \['the answer ended before its end'\]"),
        (_stream(piece, {"error": {"message": "overloaded"}}), "overloaded"),
    ):
        with serving(Server(always=broken)) as (server,), pytest.raises(EngineError, match=reason):
            stream_of(spec(server))
    with serving(Server(always=_stream(piece, last))) as (server,):  # some servers send no [DONE]
        assert b"half" in stream_of(spec(server))[0]


def test_a_whole_answer_in_place_of_a_stream_is_streamed() -> None:
    with serving(Server()) as (server,):
        content, _ = stream_of(spec(server))
    assert b'"content":"hello"' in content and b'"finish_reason":"stop"' in content and b"[DONE]" in content
    assert b'"usage"' not in content, "the client has not asked for it"


def _completion(**values: Any) -> Reply:
    return Reply(body=json.dumps({"id": "1", "model": "theirs-2026-08-06", **values}).encode())


FAILED_CHOICE = {
    "index": 0,
    "finish_reason": "error",
    "error": {"code": 502, "message": "Upstream error"},
    "message": {"content": ""},
}


@pytest.mark.parametrize(
    ("reply", "says"),
    [
        (_completion(choices=[]), "choices is an empty list"),
        (_completion(choices=None), "choices is null"),
        (_completion(choices=[None]), "choices[0] is null"),
        (_completion(choices=[FAILED_CHOICE]), "Upstream error"),
        (_completion(choices=[{"finish_reason": "abort", "message": {"content": "Par"}}]), "finish_reason abort"),
        (_completion(error={"message": "worker lost", "type": "server_error"}), "worker lost"),
        (Reply(body=b""), "an empty body"),
        (Reply(body=b"<html>Sign in</html>"), "<html>Sign in</html>"),
        (Reply(body=b'{"choices": [{"message": {"cont'), '{"choices": [{"message": {"cont'),
    ],
)
def test_a_response_with_status_200_that_is_no_answer_is_an_error_in_the_endpoints_words(
    reply: Reply, says: str
) -> None:
    with serving(Server(always=reply)) as (server,):
        (answer,) = ask(spec(server), "hello")
    assert answer.status_code != 200
    error = answer.error or (answer.body or {})["error"]
    assert says in error["message"]
    assert len(server.asked) == 5, "another attempt may have an answer"


def test_a_prompt_that_gets_no_answer_harms_no_other() -> None:
    with serving(Server()) as (server,):

        def reply(body: dict[str, Any]) -> Reply:
            server.asked.append((time.monotonic(), body))
            return _completion(choices=[None]) if body["messages"][0]["content"] == "bad" else answer(body)

        server.chosen = reply  # type: ignore[method-assign]
        answers = ask(spec(server), "bad", *map(str, range(30)), "bad")
        assert [one.status_code for one in answers].count(200) == 30


@pytest.mark.parametrize(
    ("status", "error"),
    [
        (429, {"message": "Your quota is used up; see your plan.", "code": "insufficient_quota"}),
        (401, {"message": "Incorrect API key provided.", "code": "invalid_api_key"}),
        (402, {"message": "Add credits."}),
        (403, {"message": "This model is not for you."}),
        (404, {"message": "The model does not exist.", "code": "model_not_found"}),
        (200, {"message": "Your credit balance is too low.", "code": 402}),
    ],
)
def test_an_error_that_no_attempt_mends_is_the_answer_at_once(status: int, error: dict[str, Any]) -> None:
    refusing = Server(always=Reply(status, body=json.dumps({"error": error}).encode()))
    with serving(refusing) as (server,):
        began = time.monotonic()
        answers = ask(spec(server), *map(str, range(40)), request_timeout=120)
    assert time.monotonic() - began < 60
    assert {(one.status_code, (one.body or {})["error"]["message"]) for one in answers} == {
        (402 if status == 200 else status, error["message"])
    }
    assert len(server.asked) == 40


def test_a_quota_that_is_used_up_at_one_endpoint_is_there_at_another() -> None:
    quota = json.dumps({"error": {"message": "used up", "code": "insufficient_quota"}}).encode()
    with serving(Server(always=Reply(429, body=quota)), Server()) as servers:
        answers = ask(spec(*servers), *map(str, range(40)))
    assert [text_of(one) for one in answers] == list(map(str, range(40)))
    assert 0 < len(servers[0].asked) < 40


def test_the_endpoints_own_name_of_the_model_is_kept_beside_ours() -> None:
    choice = {"index": 0, "message": {"content": "yes"}, "finish_reason": "stop"}
    with serving(Server(always=_completion(choices=[choice]))) as (server,):
        (answer,) = ask(spec(server), "hello")
    assert answer.body is not None
    assert (answer.body["model"], answer.body["batchyard"]) == ("ours", {"served_model": "theirs-2026-08-06"})


def test_a_request_that_runs_too_long_times_out_and_the_others_are_answered() -> None:
    async def scene(model: ModelSpec, slow: Server) -> list[EngineAnswer]:
        async with started(model, request_timeout=0.5) as engine:
            slow.stuck = threading.Event()
            late = asyncio.create_task(engine.answer(CHAT, chat("a")[0]))
            await comes_true(lambda: bool(slow.asked))
            engine.request_timeout = 60.0  # of the others, which nothing delays but the machine
            others = asyncio.create_task(all_answers(engine, CHAT, chat(*"bcdef")))
            await late
            slow.stuck.set()
            return [late.result(), *await others]

    with serving(Server(), Server()) as servers:
        model = spec(*servers, endpoints=[{"url": one.url, "max_in_flight": 1} for one in servers])
        answers = asyncio.run(scene(model, servers[0]))
    assert [one.error and one.error["code"] for one in answers] == ["request_timeout"] + [None] * 5


def test_an_endpoint_that_does_not_answer_in_time_is_degraded_and_given_less() -> None:
    async def scene(model: ModelSpec) -> dict[str, Any]:
        async with started(model, request_timeout=0.2) as engine:
            await all_answers(engine, CHAT, chat("a", "b"))
            (state,) = engine.endpoints()
            return state

    with serving(Server(latency=30)) as (server,):
        state = asyncio.run(scene(spec(server)))
    assert (state["health"], state["reason"], state["limit"]) == ("degraded", "no answer in time", 8)


def test_an_engine_shows_work_with_each_answer() -> None:
    async def scene(model: ModelSpec) -> None:
        async with started(model) as engine:
            began = time.monotonic()
            await all_answers(engine, CHAT, chat("a"))
            assert engine.answered_at - began >= 0.1

    with serving(Server(latency=0.1)) as (server,):
        asyncio.run(scene(spec(server)))


def test_waiting_for_a_turn_is_not_running(monkeypatch: pytest.MonkeyPatch) -> None:
    with serving(Server()) as (server,):
        clock = SimpleNamespace(time=time.time, monotonic=lambda: time.monotonic() + 3 * len(server.asked))
        for module in (openai_engine, endpoints):
            monkeypatch.setattr(module, "time", clock)  # each request takes three seconds
        texts = [*map(str, range(18))]
        model = spec(server, endpoints=[{"url": server.url, "max_in_flight": 1}])
        assert [text_of(answer) for answer in ask(model, *texts, request_timeout=30)] == texts


def test_a_response_without_end_is_not_read_to_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client, "MAX_RESPONSE_BYTES", 1000)
    long = answer({"model": "theirs", "messages": [{"content": "x" * 100_000}]})
    with serving(Server([long])) as (server,):
        assert text_of(ask(spec(server), "hello")[0]) == "hello"


def test_a_redirect_is_not_followed() -> None:
    with serving(Server(), Server(), Server()) as (elsewhere, moved, fine):
        moved.always = Reply(307, {"Location": f"{elsewhere.url}/chat/completions"})
        assert [text_of(answer) for answer in ask(spec(moved, fine), *"abcdef")] == list("abcdef")
    assert moved.asked and not elsewhere.asked


# The choice of an endpoint, and its limit


def test_the_faster_endpoint_answers_more() -> None:
    with serving(Server(latency=1), Server(latency=0.01)) as servers:
        entries = [{"url": server.url, "max_in_flight": 2} for server in servers]
        ask(spec(endpoints=entries), *map(str, range(60)))
    slow, fast = (len(server.asked) for server in servers)
    assert slow + fast == 60 and fast > 2 * slow > 0


def test_questions_about_one_document_are_asked_of_one_endpoint() -> None:
    async def scene(model: ModelSpec) -> None:
        async with started(model) as engine:
            for question in ("why?", "when?", "who?"):
                for number in range(12):
                    await engine.answer(CHAT, chat(f"{number} {'A long document. ' * 60} {question}")[0])

    with serving(*(Server() for _ in range(4))) as servers:
        asyncio.run(scene(spec(*servers)))
    places = [{body["messages"][0]["content"].split()[0] for _, body in server.asked} for server in servers]
    assert sum(map(len, places)) == 12 and max(map(len, places)) < 12


def test_concurrency_falls_where_an_endpoint_says_too_many_and_every_request_is_answered() -> None:
    async def scene(server: Server) -> tuple[list[EngineAnswer], list[dict[str, Any]]]:
        async with started(spec(server)) as engine:
            server.stuck = threading.Event()
            asked = asyncio.create_task(all_answers(engine, CHAT, chat(*map(str, range(60)))))
            await comes_true(lambda: len(server.asked) == 16)  # at once, whatever else the machine does
            server.stuck.set()
            return await asked, engine.endpoints()

    with serving(Server(most=4, latency=0.03)) as (server,):
        answers, (state,) = asyncio.run(scene(server))
    assert [text_of(one) for one in answers] == list(map(str, range(60)))
    assert 1 <= state["limit"] < 16
    refused = len(server.asked) - 60
    assert 12 <= refused < 60


def test_concurrency_grows_to_what_is_allowed_while_answers_come() -> None:
    async def scene(model: ModelSpec) -> list[int]:
        async with started(model) as engine:
            limits = [engine.endpoints()[0]["limit"]]
            await all_answers(engine, CHAT, chat(*map(str, range(200))))
            return [*limits, engine.endpoints()[0]["limit"]]

    with serving(Server(latency=0.02)) as (server,):
        entries = [{"url": server.url, "max_in_flight": 24}]
        assert asyncio.run(scene(spec(server, endpoints=entries))) == [16, 24]


def test_requests_that_nobody_waits_for_any_more_leave_their_places() -> None:
    async def scene(model: ModelSpec) -> None:
        async with started(model) as engine:
            running, waiting = (asyncio.create_task(all_answers(engine, CHAT, chat(text))) for text in ("a", "b"))
            await comes_true(lambda: engine.endpoints()[0]["in_flight"] == 1)
            waiting.cancel()
            running.cancel()
            await asyncio.wait([running, waiting])
            assert engine.endpoints()[0]["in_flight"] == 0
            assert text_of((await all_answers(engine, CHAT, chat("c")))[0]) == "c"

    with serving(Server(latency=0.1)) as (server,):
        asyncio.run(scene(spec(server, endpoints=[{"url": server.url, "max_in_flight": 1}])))


# How endpoints are


def test_a_wrong_key_makes_an_endpoint_unhealthy_and_is_told_without_the_key(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    monkeypatch.setenv("THEIR_KEY", KEY)
    echoed = json.dumps({"error": {"message": f"wrong key {KEY} for my prompt"}}).encode()
    wrong = Server(always=Reply(401, body=echoed))

    async def scene(model: ModelSpec) -> Engine:
        async with started(model) as engine:
            answers = await all_answers(engine, CHAT, chat(*["my prompt"] * 20))
            assert [text_of(one) for one in answers] == ["my prompt"] * 20
            return engine

    with serving(wrong, Server()) as servers:
        model = spec(endpoints=[{"url": servers[0].url, "api_key_env": "THEIR_KEY"}, {"url": servers[1].url}])
        engine = asyncio.run(scene(model))
    state = {entry["url"]: entry for entry in engine.endpoints()}
    assert state[wrong.url]["reason"] == "HTTP 401 Unauthorized"
    assert {headers.get("Authorization") for headers in wrong.headers} == {f"Bearer {KEY}"}
    assert not any("Authorization" in headers for headers in servers[1].headers)
    shown = caplog.text + str([record.__dict__ for record in caplog.records]) + str(engine.endpoints())
    shown += str(engine.versions()) + model.model_dump_json()
    assert "HTTP 401" in shown and KEY not in shown and "my prompt" not in shown


def test_with_no_endpoint_left_requests_say_so_and_one_that_comes_back_is_asked_again() -> None:
    async def scene(server: Server, stack: ExitStack) -> None:
        async with started(spec(server)) as engine:
            assert text_of((await all_answers(engine, CHAT, chat("a")))[0]) == "a"
            stack.close()
            engine.request_timeout = 2.0
            lost = await all_answers(engine, CHAT, chat("b", "c"))
            for answer in lost:
                assert answer.error is not None and answer.error["code"] == "engine_unavailable"
                assert server.url in answer.error["message"] and "Cannot connect" in answer.error["message"]
            assert healths(engine) == {server.url: "unhealthy"}
            engine.request_timeout = 60.0
            with serving(server):
                await comes_true(lambda: healths(engine) != {server.url: "unhealthy"})
                assert text_of((await all_answers(engine, CHAT, chat("d")))[0]) == "d"

    with ExitStack() as stack:
        server = stack.enter_context(listening(Server()))
        asyncio.run(scene(server, stack))


def test_what_a_server_that_has_vanished_from_the_network_had_is_answered_elsewhere(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def scene(servers: tuple[Server, ...]) -> list[EngineAnswer]:
        async with started(spec(*servers), request_timeout=60) as engine:
            monkeypatch.setattr(client, "PROBE_SECONDS", 0.2)
            monkeypatch.setattr(endpoints, "QUIET_SECONDS", 0.05)
            servers[0].stuck = threading.Event()
            return await all_answers(engine, CHAT, chat(*"abcd"))

    with serving(Server(), Server()) as servers:
        began = time.monotonic()
        answers = asyncio.run(scene(servers))
        assert servers[0].stuck is not None
        servers[0].stuck.set()
    assert [text_of(one) for one in answers] == list("abcd") and servers[0].asked
    assert time.monotonic() - began < 40, "not only once the request had timed out"


def test_a_server_without_a_list_of_models_is_asked_for_its_health() -> None:
    with serving(Server(probe=404)) as (server,):
        assert text_of(ask(spec(server), "hello")[0]) == "hello"


def test_an_engine_without_an_endpoint_it_can_use_does_not_start_and_names_each(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("NO_KEY", raising=False)
    with (
        serving(Server(serves="other"), Server(probe=403), Server(probe=500)) as servers,
        closing(ports.Port("127.0.0.1", 0)) as port,
    ):
        nowhere = f"http://127.0.0.1:{port.number}/v1"
        entries = [{"url": one.url} for one in servers]
        entries += [{"url": nowhere}, {"url": "http://127.0.0.1:1/keyed/v1", "api_key_env": "NO_KEY"}]
        with pytest.raises(EngineStartError) as caught:
            ask(spec(endpoints=entries), "hello")
    for says in (
        f"{servers[0].url} is unhealthy: it serves other, not theirs",
        f"{servers[1].url} is unhealthy: HTTP 403 Forbidden",
        f"{servers[2].url} is unhealthy: HTTP 500",
        f"{nowhere} is unhealthy: Cannot connect",
        "environment variable NO_KEY is not set",
    ):
        assert says in caught.value.message
    with pytest.raises(EngineStartError, match=f"{tmp_path} holds no endpoint file for theirs"):
        ask(spec(endpoint_folder=str(tmp_path)), "hello")


def test_versions_are_what_the_endpoints_say() -> None:
    async def scene(model: ModelSpec) -> dict[str, str]:
        async with started(model) as engine:
            return engine.versions()

    with serving(Server()) as (server,):
        versions = asyncio.run(scene(spec(server)))
    assert versions == {"engine": "openai", "model": "theirs", "endpoints": server.url, "version": "1.2"}


# Discovered endpoints


def put(folder: Path, name: str, **content: Any) -> Path:
    """An endpoint file, as a server's job writes it."""
    path = folder / name
    path.with_suffix(".tmp").write_text(json.dumps(content))
    path.with_suffix(".tmp").replace(path)
    return path


def test_endpoints_come_and_go_with_their_files(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async def scene(one: Server, two: Server) -> None:
        common = {"host": "127.0.0.1", "started_at": time.time()}
        first = put(tmp_path, "one.json", port=one.port, model="theirs", **common)
        put(tmp_path, "other.json", port=1, model="another", **common)
        (tmp_path / "broken.json").write_text('{"host": "127.0.0.1", "por')
        async with started(spec(endpoint_folder=str(tmp_path))) as engine:
            assert set(healths(engine)) == {one.url}
            put(tmp_path, "two.json", port=two.port, model="theirs", **common)
            await comes_true(lambda: healths(engine) == {one.url: "healthy", two.url: "healthy"})
            first.unlink()
            await comes_true(lambda: set(healths(engine)) == {two.url})
            before = len(one.asked)
            await all_answers(engine, CHAT, chat(*"abcdef"))
            assert len(one.asked) == before and two.asked

    with serving(Server(), Server()) as (one, two):
        asyncio.run(scene(one, two))
    assert sum("broken.json" in record.getMessage() for record in caplog.records) == 1
    assert "other.json" not in caplog.text


def test_a_folder_that_cannot_be_listed_for_a_while_keeps_its_endpoints(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def scene(server: Server) -> None:
        content = {"host": "127.0.0.1", "port": server.port, "model": "theirs", "started_at": time.time()}
        put(tmp_path, "one.json", **content)
        async with started(spec(endpoint_folder=str(tmp_path))) as engine:
            with monkeypatch.context() as patch:
                patch.setattr(Path, "iterdir", away)
                await comes_true(lambda: calls > 3)
                assert healths(engine) == {server.url: "healthy"}
            (tmp_path / "one.json").unlink()
            await comes_true(lambda: engine.endpoints() == [])

    calls = 0

    def away(_: Path) -> Iterator[Path]:
        nonlocal calls
        calls += 1
        raise OSError("Stale file handle")

    with serving(Server()) as (server,):
        asyncio.run(scene(server))
    assert caplog.text.count("Stale file handle") == 1


def test_a_file_that_vanishes_lets_the_requests_there_end(tmp_path: Path) -> None:
    async def scene(server: Server) -> None:
        content = {"host": "127.0.0.1", "port": server.port, "model": "theirs", "started_at": "2026-11-21T12:00:00Z"}
        file = put(tmp_path, "one.json", **content)
        async with started(spec(endpoint_folder=str(tmp_path))) as engine:
            running = asyncio.create_task(all_answers(engine, CHAT, chat("hello")))
            await comes_true(lambda: bool(server.asked))
            file.unlink()
            assert text_of((await running)[0]) == "hello"
            await comes_true(lambda: engine.endpoints() == [])

    with serving(Server(latency=0.2)) as (server,):
        asyncio.run(scene(server))
    assert len(server.asked) == 1


def test_a_file_that_its_server_left_behind_is_stale_and_a_server_that_is_just_starting_is_not(tmp_path: Path) -> None:
    async def scene(server: Server) -> dict[str, str]:
        dead = {"host": "127.0.0.1", "model": "theirs"}
        put(tmp_path, "old.json", port=old.number, started_at=time.time() - 86400, **dead)
        put(tmp_path, "new.json", port=new.number, started_at=datetime.now(UTC).isoformat(), **dead)
        async with started(spec(server, endpoint_folder=str(tmp_path))) as engine:
            return healths(engine)

    with (
        serving(Server()) as (server,),
        closing(ports.Port("127.0.0.1", 0)) as old,
        closing(ports.Port("127.0.0.1", 0)) as new,
    ):
        assert sorted(asyncio.run(scene(server)).values()) == ["healthy", "stale", "unhealthy"]


# Configuration


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ({}, "engine_args.endpoint_folder: engine openai needs endpoints, an endpoint_folder, or both"),
        ({"endpoints": []}, "needs endpoints"),
        ({"endpoint_folder": "endpoints"}, "write an absolute path"),
        ({"endpoints": [{"url": "host:8000"}]}, "engine_args.endpoints.0.url: write the base URL"),
        ({"endpoints": [{"url": "http://me:pw@host/v1"}]}, "without user or password"),
        ({"endpoints": [{"url": "http://host/v1", "api_key_env": KEY}]}, "endpoints.0.api_key_env: must be a text"),
        ({"endpoint": []}, "did you mean endpoints?"),
    ],
)  # fmt: skip
def test_wrong_arguments_are_refused_without_a_start(arguments: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        check_arguments(ModelSpec(name="m", engine="openai", engine_args=arguments))
    assert says in caught.value.message
    assert KEY not in str(caught.value) + str(caught.value.__cause__)


def test_a_model_elsewhere_needs_no_source_but_may_have_one(tmp_path: Path) -> None:
    file = tmp_path / "models.toml"
    file.write_text("[models.a]\nengine='openai'\nengine_args.endpoints=[{url='http://host/v1'}]")
    loaded = catalog.load(file)["a"]
    check_arguments(loaded)
    assert loaded.source == ""
    file.write_text("[models.a]\nengine='openai'\nsource='./nowhere'")
    with pytest.raises(ConfigurationError, match=r"models\.a\.source: no folder"):
        catalog.load(file)


# A real one


@pytest.mark.vllm
@pytest.mark.skipif(not vllm_installed(), reason="vLLM is not installed")
@pytest.mark.exhaustive
@pytest.mark.usefixtures("cluster")
def test_answers_of_vllm_serve_through_the_pipeline_are_those_it_gives_when_asked_itself(
    vllm_serve: httpx.Client,
) -> None:
    from inference import pipeline
    from inference.residents import directory

    timeouts = EngineTimeouts(request_timeout=60.0, start_timeout=60.0, idle_seconds=600.0)
    url = f"{vllm_serve.base_url}/v1"
    model = spec(endpoints=[{"url": url}], model="mini", watch_seconds=1.0)
    bodies = chat(*[f"What is {index} + {index}?" for index in range(40)], temperature=0, max_tokens=24)
    bodies += chat("x" * 900)
    try:
        versions = pipeline.start(model, timeouts).versions
        lines: dict[int, dict[str, Any]] = {}
        for answers in pipeline.run(model, CHAT, table(bodies), timeouts):
            lines |= {row["line"]: {**row, **json.loads(row["answer"])} for row in answers.to_pylist()}
        (state,) = (state for state in directory.states().values() if state.model == "ours")
    finally:
        directory.stop_all("ours")
    assert versions["engine"] == "openai" and versions["version"].startswith("0.") and "model_sha256" not in versions
    assert [(one["url"], one["health"]) for one in state.endpoints] == [(url, "healthy")]
    refused = lines.pop(40)["response"]
    assert refused["status_code"] == 400 and refused["body"]["error"]["code"] == "context_length_exceeded"
    texts = set()
    for line, ours in lines.items():
        theirs = vllm_serve.post(CHAT, json={**bodies[line], "model": "mini"}).json()
        body = ours["response"]["body"]
        assert body["model"] == "ours" and body["choices"] == theirs["choices"] and body["usage"] == theirs["usage"]
        assert ours["output_tokens"] == theirs["usage"]["completion_tokens"]
        texts.add(body["choices"][0]["message"]["content"])
    assert len(lines) == 40 and len(texts) > 20


@pytest.mark.parametrize("own", [False, True])
def test_a_server_that_does_not_know_our_option_of_streams_is_asked_without_it(own: bool) -> None:
    """What the client itself has sent is the server's to refuse."""
    unknown = Reply(422, body=b'{"detail": [{"loc": ["body", "stream_options"], "msg": "Extra inputs"}]}')
    events = Reply(headers={"Content-Type": "text/event-stream"}, body=b'data: {"choices": []}\n\ndata: [DONE]\n\n')
    options = {"stream_options": {"include_usage": True}} if own else {}

    async def ask_all(model: ModelSpec) -> list[Any]:
        async with started(model) as engine:
            answers = []
            for _ in range(2):
                answer = await engine.stream(CHAT, {"model": "m", **chat("hi")[0], "stream": True, **options})
                answers.append(
                    answer if isinstance(answer, EngineAnswer) else b"".join([event async for event in answer])
                )
            return answers

    with serving(Server(script=[unknown, events, events])) as (server,):
        first, second = asyncio.run(ask_all(spec(server)))
        sent = ["stream_options" in body for _, body in server.asked]
    assert b"[DONE]" in second
    if own:
        assert first.status_code == 422 and sent == [True, True]
    else:
        assert b"[DONE]" in first and sent == [True, False, False]
