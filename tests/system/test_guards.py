"""Guards on real vLLM: answers that repeat themselves end early, and their batch counts them."""

from __future__ import annotations

import pytest

from tests.support.stacks import RunningStack, a_chat

STEERED = {"logit_bias": {"1": -100}, "temperature": 0, "max_tokens": 400}
"""Takes the end of an answer away from `mini`, which then repeats itself."""


@pytest.mark.vllm
def test_a_batch_with_a_guard_ends_answers_that_repeat_themselves_and_counts_them(vllm_stack: RunningStack) -> None:
    lines = [a_chat(f"r{n}", f"What is {n} + 58?", model="mini") for n in range(12)]
    for line in lines[::3]:
        line["body"] |= STEERED
    free = vllm_stack.wait(vllm_stack.submit(lines))
    guarded = vllm_stack.wait(vllm_stack.submit(lines, extra_body={"guard": "repetition"}))
    assert (free.batchyard["looped"], free.batchyard["guard"], guarded.batchyard["guard"]) == (0, None, "repetition")
    after = {line["custom_id"]: line["response"]["body"] for line in vllm_stack.lines(guarded.output_file_id)}
    looped = [name for name, body in after.items() if body["choices"][0]["finish_reason"] == "repetition"]
    assert guarded.batchyard["looped"] == len(looped) >= 3 and {int(name[1:]) % 3 for name in looped} == {0}
    assert guarded.usage.output_tokens < free.usage.output_tokens
    assert not any("batchyard" in body for name, body in after.items() if name not in looped)
    for body in (after[name] for name in looped):
        text = body["choices"][0]["message"]["content"]
        assert body["batchyard"]["stopped"] == "repetition" and 0 <= body["batchyard"]["loop_start"] < len(text) / 2
        assert 128 <= body["usage"]["completion_tokens"] < 400
