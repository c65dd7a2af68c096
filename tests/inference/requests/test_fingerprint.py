"""Only requests that must get the same answer have the same fingerprint."""

from __future__ import annotations

from typing import Any

import pytest

from inference.requests.ordering import fingerprint

CHAT, EMBEDDINGS, RESPONSES = "/v1/chat/completions", "/v1/embeddings", "/v1/responses"
ASKED = [{"model": "m", "input": "a", "temperature": 0} | more for more in ({}, {"background": True})]


def chat(content: str, **body: Any) -> dict[str, Any]:
    return {"model": "m", "messages": [{"role": "user", "content": content}], **body}


@pytest.mark.parametrize(
    ("endpoint", "body", "deterministic"),
    [
        (CHAT, chat("a", temperature=0), True),
        (CHAT, chat("a", temperature=0.0), True),
        (CHAT, chat("a", seed=7), True),
        (CHAT, chat("a"), False),
        (CHAT, chat("a", temperature=None, seed=None), False),
        (CHAT, chat("a", temperature=1.8, seed=-1), False),
        (CHAT, chat("a", seed=0), True),
        (CHAT, chat("a", temperature=0.1), False),
        (EMBEDDINGS, {"model": "m", "input": "a"}, True),
    ],
)
def test_only_deterministic_requests_have_a_fingerprint(
    endpoint: str, body: dict[str, Any], deterministic: bool
) -> None:
    assert (fingerprint(endpoint, body) is not None) == deterministic


def test_equal_requests_have_one_fingerprint() -> None:
    same = [
        {"model": "m", "temperature": 0, "messages": [{"role": "user", "content": "a"}]},
        {"messages": [{"content": "a", "role": "user"}], "temperature": 0, "model": "m", "max_tokens": None},
        chat("a", temperature=0, user="somebody", metadata={"a": "b"}),
    ]
    assert len({fingerprint(CHAT, body) for body in same}) == 1
    assert len({fingerprint(RESPONSES, body) for body in ASKED}) == 1, "it says how the caller waits"
    assert len({fingerprint(CHAT, body) for body in ASKED}) == 2, "chats have no such parameter"
    other = [chat("b", temperature=0), chat("a", temperature=0, max_tokens=1), chat("a", temperature=0, seed=1)]
    assert len({fingerprint(CHAT, body) for body in [same[0], *other]}) == 4
