"""A reply has all of an engine's answer, and comes through Ray as it was."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

from inference.engine import EngineAnswer
from inference.residents.replies import CLOSED, ENGINE_DIED, MOST_TOKENS, EngineReply, packed, unpacked


def test_a_reply_has_the_body_as_json_and_the_tokens_of_its_usage() -> None:
    usage = {
        "prompt_tokens": 7,
        "completion_tokens": 3,
        "prompt_tokens_details": {"cached_tokens": 4},
        "completion_tokens_details": {"reasoning_tokens": 2},
    }
    body = {"choices": [{"text": "yes"}], "usage": usage, "batchyard": {"served_model": "theirs"}}
    reply = EngineReply.of(EngineAnswer(200, body), 0.5)
    assert json.loads(reply.body or b"") == body
    assert reply[2:] == (None, 7, 4, 3, 0.5, 2, "theirs", None)


def test_what_is_no_answer_has_nothing_set_aside() -> None:
    reply = EngineReply.of(EngineAnswer(400, {"data": [{"embedding": np.array([0.5], np.float32)}]}), 0.5, apart=True)
    assert (reply.body, reply.vectors) == (b'{"data":[{"embedding":[0.5]}]}', None)


def test_a_vector_of_an_engine_is_text_for_a_live_client_and_apart_from_it_for_a_batch() -> None:
    answer = EngineAnswer(200, {"data": [{"embedding": np.array([0.1, 0.5], np.float32)}]})
    live, of_batch = EngineReply.of(answer, 0.5), EngineReply.of(answer, 0.5, apart=True)
    assert (live.body, live.vectors) == (b'{"data":[{"embedding":[0.1,0.5]}]}', None)
    assert (of_batch.body, of_batch.vectors) == (b'{"data":[{"embedding":2}]}', np.array([0.1, 0.5], "<f4").tobytes())


@pytest.mark.parametrize("body", [{}, {"choices": []}, {"choices": [None]}, {"error": {"message": "bug"}}])
def test_a_body_that_is_no_answer_is_an_error_whatever_its_status(body: dict[str, Any]) -> None:
    reply = EngineReply.of(EngineAnswer(200, body), 0.5)
    assert (reply.status_code, reply.body, (reply.error or {})["code"]) == (None, None, "invalid_response")


@pytest.mark.parametrize("usage", [None, "many", [], {"prompt_tokens": -1}, {"prompt_tokens": MOST_TOKENS + 1}])
def test_a_usage_that_is_none_counts_no_tokens(usage: Any) -> None:
    reply = EngineReply.of(EngineAnswer(200, {"choices": [{"text": "yes"}], "usage": usage}), 0.5)
    assert (reply.input_tokens, reply.cached_tokens, reply.output_tokens) == (0, 0, 0)


def test_a_refusal_counts_no_tokens() -> None:
    assert EngineReply.of(EngineAnswer(400, {"usage": {"prompt_tokens": 7}}), 0.5).input_tokens == 0


def test_only_the_reply_of_an_engine_that_died_says_why_it_did() -> None:
    assert EngineReply.failed(ENGINE_DIED, "killed").death == "killed"
    assert EngineReply.failed("request_timeout", "too long").death is None
    assert EngineReply(200, b"{}", None).death is None


def test_packed_replies_are_plain_tuples_and_come_out_as_they_were() -> None:
    replies = [(1, EngineReply(200, b"{}", None, 1, 2, 3, 0.5)), (2, None), (3, CLOSED)]
    assert [type(reply) for _, reply in packed(replies)] == [tuple, type(None), tuple]
    assert unpacked(packed(replies)) == replies
    assert all(reply is None or type(reply) is EngineReply for _, reply in unpacked(packed(replies)))
