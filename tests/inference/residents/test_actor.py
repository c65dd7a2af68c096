"""The engine actor marks the answers of simulated engines, and gives up what nobody wants."""

from __future__ import annotations

import asyncio
import json
from types import SimpleNamespace
from typing import Any, ClassVar

import psutil
import pyarrow as pa
import pytest
import ray

from batchyard.errors import EngineStartError
from batchyard.models import ModelSpec
from inference.engine import EngineAnswer
from inference.engines.echo import Echo
from inference.ray import tables
from inference.residents import actor, memory, replies
from inference.residents.replies import CLOSED, EngineReply, unpacked
from inference.residents.session import EngineSession
from tests.support.rows import chat


@pytest.fixture(autouse=True)
def no_cluster(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let an engine tell its state outside of a cluster: Ray would start one, and keep it for the tests that follow."""
    monkeypatch.setattr(ray, "get_runtime_context", lambda: SimpleNamespace(get_accelerator_ids=dict))


async def holds(resident: actor.EngineActor, requests: int) -> None:
    """Wait until so many requests are in the engine."""
    while (await resident.state())["in_flight"] != requests:  # noqa: ASYNC110  what changes here has no event
        await asyncio.sleep(0.01)


class Pretender(Echo):
    """A simulated engine that claims to be a model."""

    def versions(self) -> dict[str, str]:
        return {"engine": "pretender", "model_sha256": "0" * 64, "simulated": "false"}


class Model(Echo):
    """An engine whose class says that it runs a model."""

    simulated = False


def test_answers_are_marked_by_what_the_engines_class_says() -> None:
    spec = ModelSpec(name="m", engine="echo")
    answer, refusal = EngineAnswer(200, {"choices": [], "simulated": False}), EngineAnswer.refused("no")
    simulated, real = Pretender(spec, 1.0), Model(spec, 1.0)
    assert replies.marked(answer, simulated).body == {"choices": [], "simulated": True}
    assert replies.marked(refusal, simulated) == refusal
    assert replies.marked(answer, real) == answer
    assert replies.marked_versions(simulated) == {"engine": "pretender", "simulated": "true"}
    assert replies.marked_versions(real) == real.versions()


def test_an_unknown_engine_argument_is_a_start_error_with_the_nearest_right_one() -> None:
    spec = ModelSpec(name="e", engine="echo", engine_args={"latency": 5})
    with pytest.raises(EngineStartError, match=r"engine_args\.latency.*latency_ms"):
        asyncio.run(actor.EngineActor("a", spec, 120.0).ready(60))


class Odd(Echo):
    """An engine whose answer to a text is odd in the way that the text says."""

    async def answer(self, endpoint: str, body: dict[str, Any]) -> EngineAnswer:
        answer, text = await super().answer(endpoint, body), body["messages"][0]["content"]
        assert answer.body is not None
        match text:
            case "integer keys":
                return EngineAnswer(
                    200, answer.body | {"prompt_logprobs": [None, {5: {"logprob": -1.5}, 7: {"rank": 2}}]}
                )
            case "half an emoji":
                return EngineAnswer(200, answer.body | {"system_fingerprint": "\ud83d"})
            case "no JSON":
                return EngineAnswer(200, answer.body | {"system_fingerprint": object()})
            case "raises":
                raise KeyError("choices")
            case "usage is a list":
                return EngineAnswer(200, answer.body | {"usage": [1, 2]})
            case "usage is text":
                return EngineAnswer(200, answer.body | {"usage": {"prompt_tokens": "7", "prompt_tokens_details": 3}})
            case "usage is huge":
                return EngineAnswer(200, answer.body | {"usage": {"prompt_tokens": 2**62, "completion_tokens": -1}})
            case "error is half an emoji":
                return EngineAnswer.failed("engine_error", "\ud83d")
        return answer


ODD = {
    "integer keys": None,
    "half an emoji": "engine_error",
    "no JSON": "engine_error",
    "raises": "engine_error",
    "usage is a list": None,
    "usage is text": None,
    "usage is huge": None,
    "error is half an emoji": "engine_error",
}
"""The code of the error that each odd answer is."""


@pytest.mark.parametrize("alone", [False, True])
def test_an_odd_answer_harms_no_other(monkeypatch: pytest.MonkeyPatch, alone: bool) -> None:
    monkeypatch.setattr(actor, "engine_class", lambda _name: Odd)
    texts = [*ODD, *(f"plain {number}" for number in range(20))]
    bodies = [json.dumps(body) for body in chat(*texts)] + [json.dumps(chat("x", max_tokens=["5"], n="2")[0])]

    async def all_replies() -> list[EngineReply | None]:
        resident = actor.EngineActor("a", ModelSpec(name="e", engine="echo"), 120.0)
        await resident.ready(60)
        if alone:
            permit = await resident.reserve()
            assert permit is not None
            return list(await resident.answer_alone("/v1/chat/completions", bodies, permit) or [])
        session = EngineSession("run", "work", len(bodies), 64)
        requests = [(line, line, len(body), body) for line, body in enumerate(bodies)]
        by_line: dict[int, EngineReply | None] = {}
        while len(by_line) < len(bodies):
            replies = await resident.exchange(session, "caller", "/v1/chat/completions", requests)
            by_line |= dict(unpacked(replies or []))
            requests = []
        return [by_line[line] for line in range(len(bodies))]

    lines = pa.table(
        {"line": pa.array(range(len(bodies)), pa.int64()), "custom_id": list(map(str, range(len(bodies))))}
    )
    answered = tables.answers(lines, [reply for reply in asyncio.run(asyncio.wait_for(all_replies(), 120)) if reply])
    answers = [json.loads(answer) for answer in answered.column("answer").to_pylist()]
    errors = [answer["error"] and answer["error"]["code"] for answer in answers]
    assert dict(zip(texts, errors, strict=False)) == {**dict.fromkeys(texts), **ODD}
    assert answers[0]["response"]["body"]["prompt_logprobs"][1] == {"5": {"logprob": -1.5}, "7": {"rank": 2}}
    assert "KeyError" in answers[3]["error"]["message"]
    assert answered.column("ok").to_pylist() == [error is None for error in errors]


class Company(Echo):
    """Notes for each text those that are in the engine with it."""

    inside: ClassVar[list[str]] = []
    beside: ClassVar[dict[str, set[str]]] = {}

    async def answer(self, endpoint: str, body: dict[str, Any]) -> EngineAnswer:
        text = body["messages"][0]["content"]
        self.beside[text] = set(self.inside)
        for other in self.inside:
            self.beside[other].add(text)
        self.inside.append(text)
        answer = await super().answer(endpoint, body)
        self.inside.remove(text)
        return answer


def test_a_request_that_is_to_be_alone_has_no_other_beside_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(actor, "engine_class", lambda _name: Company)

    async def scene() -> None:
        resident = actor.EngineActor("a", ModelSpec(name="e", engine="echo", engine_args={"latency_ms": 20}), 120.0)
        await resident.ready(60)

        async def ask(session: EngineSession) -> None:
            left = [(line, line, 1, json.dumps(chat(f"{session.name} {line}")[0])) for line in range(session.rows)]
            answered = 0
            while answered < session.rows:
                sent, left = left[: session.in_flight], left[session.in_flight :]
                answered += len(await resident.exchange(session, "caller", "/v1/chat/completions", sent) or [])

        alone = EngineSession("alone", "one work", 5, 1, alone=True)
        await asyncio.gather(ask(EngineSession("others", "other work", 12, 4)), ask(alone))

    asyncio.run(asyncio.wait_for(scene(), 120))
    assert len(Company.beside) == 17
    assert [len(Company.beside[f"alone {line}"]) for line in range(5)] == [0] * 5
    assert any(Company.beside[f"others {line}"] for line in range(12))


class Withholding(Echo):
    """Answers nothing before it may."""

    may: ClassVar[asyncio.Event]

    async def answer(self, endpoint: str, body: dict[str, Any]) -> EngineAnswer:
        await self.may.wait()
        return await super().answer(endpoint, body)


def test_a_session_that_is_closed_has_its_requests_in_the_engine_answered_and_no_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(actor, "engine_class", lambda _name: Withholding)

    async def scene() -> None:
        Withholding.may = asyncio.Event()
        resident = actor.EngineActor("a", ModelSpec(name="e", engine="echo", max_in_flight=2), 120.0)
        await resident.ready(60)
        session = EngineSession("run", "work", 9, 8)
        requests = [(line, line, 1, json.dumps(chat("hello")[0])) for line in range(5)]
        endpoint = "/v1/chat/completions"
        exchange = asyncio.create_task(resident.exchange(session, "caller", endpoint, requests))
        await holds(resident, 2)
        await resident.close("other work")
        await resident.close("work")
        Withholding.may.set()
        replies = dict(unpacked(await exchange or []))
        while len(replies) < 5:
            replies |= dict(unpacked(await resident.exchange(session, "caller", endpoint, []) or []))
        assert {line for line, reply in replies.items() if reply == CLOSED} == {2, 3, 4}
        assert [reply and reply.status_code for reply in (replies[0], replies[1])] == [200, 200]
        assert await resident.exchange(session, "caller", endpoint, [requests[4]]) == [(4, CLOSED)]
        await resident.drop("run")
        later = EngineSession("next run", "work", 9, 8)
        ((_, again),) = unpacked(await resident.exchange(later, "caller", endpoint, [requests[4]]) or [])
        assert again is not None and again.status_code == 200

    asyncio.run(asyncio.wait_for(scene(), 120))


def test_a_session_that_is_dropped_frees_the_engine_and_its_caller_hears_of_it() -> None:
    async def scene() -> None:
        resident = actor.EngineActor("a", ModelSpec(name="e", engine="echo", engine_args={"latency_ms": 60_000}), 120.0)
        await resident.ready(60)
        session, request = EngineSession("run", "work", 1, 8), (0, 0, 1, json.dumps(chat("hello")[0]))
        exchange = asyncio.create_task(resident.exchange(session, "caller", "/v1/chat/completions", [request]))
        await holds(resident, 1)
        await resident.drop("run")
        assert await exchange is None
        await holds(resident, 0)
        again = await resident.exchange(session, "caller", "/v1/chat/completions", [request])
        assert again is None, "a caller that runs on sends nothing more"

    asyncio.run(asyncio.wait_for(scene(), 120))


def test_an_engine_says_how_long_it_started_how_much_it_runs_at_once_and_the_most_memory_it_had(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(memory, "LOOK_SECONDS", 0.0)
    monkeypatch.setattr(psutil.Process, "children", lambda *_, **__: [])  # other tests' come and go

    async def scene() -> None:
        resident = actor.EngineActor("a", ModelSpec(name="e", engine="echo", engine_args={"slots": 3}), 120.0)
        await resident.ready(60)
        state = await resident.state()
        assert state["capacity"] == 3 and 0 <= state["start_seconds"] < 120
        assert state["peak_memory_bytes"] >= 10_000_000 and state["peak_gpu_memory_bytes"] is None
        held = bytearray(200_000_000)
        held[::4096] = b"x" * len(held[::4096])
        grown = (await resident.state())["peak_memory_bytes"]
        del held
        assert grown > state["peak_memory_bytes"] + 150_000_000
        later = await resident.state()
        assert later["peak_memory_bytes"] >= grown and later["memory_bytes"] < grown - 150_000_000

    asyncio.run(asyncio.wait_for(scene(), 120))
