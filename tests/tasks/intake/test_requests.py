"""What is wrong with a request is named with its parameter, and what the plan keeps tells equal requests."""

from __future__ import annotations

from typing import Any

import orjson
import pytest

from batchyard.endpoints.guards import REPETITION
from batchyard.models import Adapter, ModelSpec
from batchyard.request_lines.lines import LineError
from inference.engine import EngineAnswer
from tasks.intake.requests import Prepared, RequestChecker
from tests.support.stacks import ROOT

CHAT = "/v1/chat/completions"
EMBEDDINGS = "/v1/embeddings"
MODELS = {
    "echo": ModelSpec(name="echo", engine="echo"),
    "vectors": ModelSpec(name="vectors", engine="echo", endpoints=(EMBEDDINGS,)),
}
BODY: dict[str, Any] = {"model": "echo", "messages": [{"role": "user", "content": "hello"}]}


def line(**changes: Any) -> dict[str, Any]:
    return {"custom_id": "a", "method": "POST", "url": CHAT, "body": BODY} | changes


def body(**changes: Any) -> dict[str, Any]:
    return BODY | changes


def prepare(**changes: Any) -> Prepared | EngineAnswer:
    content = body(**changes)
    return RequestChecker(MODELS).prepare(CHAT, "echo", content, orjson.dumps(content))


@pytest.mark.parametrize(
    ("request_line", "code", "param", "says"),
    [
        (line(custom_id=None), "missing_required_parameter", "custom_id", "'custom_id'"),
        (line(custom_id=7), "invalid_request", "custom_id", "a string"),
        (line(method="GET"), "invalid_method", "method", "'POST'"),
        (line(url="/v1/embeddings"), "invalid_url", "url", "'/v1/embeddings', not '/v1/chat/completions'"),
        (line(body=[]), "invalid_request", "body", "an object"),
        (line(body=body(model=None)), "invalid_request", "body.model", "names no model"),
        (line(body=body(model="ekho")), "model_not_found", "body.model", "served: echo, vectors"),
        (line(body=body(model="vectors")), "unsupported_parameter", "url", "it serves /v1/embeddings"),
        (line(body=body(stream=True)), "streaming_unsupported", "body.stream", "leave 'stream' out"),
        (line(body=body(messages="hello")), "invalid_request", "body.messages", "list"),
        ({"custom_id": "a", "refused": {"code": "row_too_long", "message": "long"}}, "row_too_long", "", "long"),
    ],
)
def test_a_request_that_cannot_run_is_refused_with_its_parameter_and_the_remedy(
    request_line: dict[str, Any], code: str, param: str, says: str
) -> None:
    with pytest.raises(LineError, match=says) as caught:
        RequestChecker(MODELS).check(CHAT, request_line)
    assert (caught.value.code, caught.value.param or "") == (code, param)


def test_a_good_request_is_to_the_model_that_it_names() -> None:
    assert RequestChecker(MODELS).check(CHAT, line()) == "echo"


def test_a_request_to_an_adapter_runs_on_its_base_and_has_another_answer_and_order() -> None:
    spec = ModelSpec(name="base", engine="echo", adapters={"french": Adapter(), "legal": Adapter()})
    checker = RequestChecker({"base": spec})
    prepared = {}
    for name in ("base", "french", "legal"):
        content = body(model=name, temperature=0)
        assert checker.check(CHAT, line(body=content)) == "base"
        prepared[name] = checker.prepare(CHAT, "base", content, orjson.dumps(content))
    assert len({each.fingerprint for each in prepared.values() if isinstance(each, Prepared)}) == 3
    assert len({each.order_key[:4] for each in prepared.values() if isinstance(each, Prepared)}) == 3
    with pytest.raises(LineError, match=r"served: base, french, legal\. Did you mean 'french'\?"):
        checker.check(CHAT, line(body=body(model="frensh")))


def test_a_step_refuses_the_request_that_it_could_not_use() -> None:
    checker = RequestChecker(MODELS, [lambda body: ("body.metadata", "no expected text") if "n" in body else None])
    assert checker.check(CHAT, line()) == "echo"
    with pytest.raises(LineError, match="no expected text"):
        checker.check(CHAT, line(body=body(n=1)))


def test_requests_that_differ_in_the_order_of_their_keys_are_one() -> None:
    first, other = prepare(max_tokens=5, temperature=0.0), prepare(temperature=0.0, max_tokens=5)
    assert isinstance(first, Prepared) and isinstance(other, Prepared)
    assert first == other and first.fingerprint is not None and first.output_limit == 5


def test_a_request_whose_answer_depends_on_chance_has_no_fingerprint() -> None:
    prepared = prepare(temperature=1.0)
    assert isinstance(prepared, Prepared) and prepared.fingerprint is None


def test_a_prompt_that_fits_into_no_context_is_answered_without_an_engine() -> None:
    nano = ModelSpec(name="nano", engine="transformers", source=str(ROOT / "examples/models/nano"))
    content = body(model="nano", messages=[{"role": "user", "content": "word " * 10_000}])
    refusal = RequestChecker({"nano": nano}).prepare(CHAT, "nano", content, orjson.dumps(content))
    assert isinstance(refusal, EngineAnswer) and refusal.body is not None
    assert (refusal.status_code, refusal.body["error"]["code"]) == (400, "context_length_exceeded")


VLLM = {"m": ModelSpec(name="m", engine="vllm", source="a/b")}


@pytest.mark.parametrize(("spec", "guard"), [({"guard": "repetition"}, None), ({}, "repetition")])
def test_a_guard_of_a_model_or_of_a_batch_is_a_parameter_unless_the_request_has_its_own(
    spec: dict[str, Any], guard: Any
) -> None:
    checker = RequestChecker({"m": VLLM["m"].model_copy(update=spec)}, guard=guard)
    asked = BODY | {"model": "m"}
    assert checker.guarded(CHAT, "m", asked) == REPETITION | asked
    for own in (None, {"max_pattern_size": 8, "min_count": 2}):
        mine = asked | {"repetition_detection": own}
        assert checker.guarded(CHAT, "m", mine) == mine
    assert checker.guarded(EMBEDDINGS, "m", asked) is asked
    assert RequestChecker(VLLM).guarded(CHAT, "m", asked) is asked


def test_a_guard_that_an_engine_lacks_is_refused_by_its_name() -> None:
    with pytest.raises(LineError, match="engine echo of model 'echo' cannot end answers that repeat") as caught:
        RequestChecker(MODELS, guard="repetition").guarded(CHAT, "echo", BODY)
    assert (caught.value.code, caught.value.param) == ("unsupported_parameter", "guard")
