"""What vLLM's schemas refuse is the client's error, as its own server has it."""

from __future__ import annotations

import random
from typing import Any

import pytest

from batchyard.endpoints.guards import RepetitionDetection
from batchyard.models import ModelSpec
from inference.engine import EngineAnswer
from inference.engines.vllm import internals
from inference.engines.vllm.engine import VLLM
from inference.engines.vllm.handlers import parse

CHAT = {"model": "m", "messages": [{"role": "user", "content": "hello"}]}
TOOL = {"type": "function", "function": {"name": "price", "parameters": {"type": "object"}}}
SPEC = ModelSpec(
    name="m", engine="vllm", source="a/b", engine_args={"enable_auto_tool_choice": True, "tool_call_parser": "hermes"}
)
REFUSED: list[tuple[dict[str, Any], str | None]] = [
    ({"tools": []}, "tools"),
    ({"prompt_logprobs": -2}, "prompt_logprobs"),
    ({"tools": [TOOL], "tool_choice": {"type": "function", "function": {"name": "cost"}}}, "tool_choice"),
    ({"structured_outputs": {"choice": ["a"], "regex": "a"}}, None),
    ({"add_generation_prompt": True, "continue_final_message": True}, None),
]
STREAMED: list[tuple[dict[str, Any], str | None]] = [
    ({"stream_options": {"include_usage": True}}, "stream_options"),
    ({"stream": True, "prompt_logprobs": 1}, "prompt_logprobs"),
]


@pytest.mark.parametrize(("parameters", "param"), [*REFUSED, *STREAMED, ({"tools": 5}, None), ({"tools": [5]}, None)])
def test_what_vllm_refuses_is_a_refusal(parameters: dict[str, Any], param: str | None) -> None:
    answer = parse(internals.ChatCompletionRequest, {**CHAT, **parameters})
    assert isinstance(answer, EngineAnswer) and answer.body is not None
    assert answer.status_code == 400
    assert param is None or answer.body["error"]["param"] == param
    assert answer.body["error"]["message"]


@pytest.mark.parametrize(("parameters", "param"), REFUSED)
def test_batches_are_told_in_validation_in_vllms_words(parameters: dict[str, Any], param: str | None) -> None:
    unsupported = VLLM.unsupported(SPEC, "/v1/chat/completions", {**CHAT, **parameters})
    answer = parse(internals.ChatCompletionRequest, {**CHAT, **parameters})
    assert unsupported is not None and isinstance(answer, EngineAnswer) and answer.body is not None
    assert unsupported[1] in answer.body["error"]["message"]
    assert param is None or unsupported[0] == f"body.{param}"


def test_what_vllm_takes_is_taken() -> None:
    body = {**CHAT, "tools": [TOOL], "tool_choice": {"type": "function", "function": {"name": "price"}}}
    assert VLLM.unsupported(SPEC, "/v1/chat/completions", body) is None
    assert not isinstance(parse(internals.ChatCompletionRequest, body), EngineAnswer)


def test_repetitions_are_those_that_vllm_finds() -> None:
    from vllm.sampling_params import RepetitionDetectionParams
    from vllm.v1.core.sched.utils import check_sequence_repetition

    chance, found = random.Random(1), 0
    for _ in range(2000):
        tokens = [chance.randrange(2) for _ in range(chance.randint(1, 24))]
        least, more, count = chance.randint(0, 3), chance.randint(0, 3), chance.randint(2, 4)
        limits = {"min_pattern_size": least, "max_pattern_size": least + more, "min_count": count}
        found += (theirs := check_sequence_repetition(tokens, RepetitionDetectionParams(**limits)))
        assert RepetitionDetection(**limits).found(tokens) == theirs, (tokens, limits)
    assert 200 < found < 1800
