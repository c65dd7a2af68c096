"""Requests that begin alike stand together, and only such that must get the same answer are the same."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inference.requests.ordering import PIECE, fingerprint, order_key

CHAT, COMPLETIONS, EMBEDDINGS = "/v1/chat/completions", "/v1/completions", "/v1/embeddings"


def chat(*contents: str, **body: Any) -> dict[str, Any]:
    return {"model": "m", "messages": [{"role": "user", "content": content} for content in contents], **body}


def shared(left: bytes, right: bytes) -> int:
    return next(
        (at for at, pair in enumerate(zip(left, right, strict=False)) if pair[0] != pair[1]), min(len(left), len(right))
    )


def test_questions_about_one_document_stand_together_whatever_their_order_in_the_file() -> None:
    documents = [f"document {number} " * 40 for number in range(5)]
    requests = [(document, question) for question in ("why?", "when?", "who?") for document in documents]
    ordered = sorted(requests, key=lambda request: order_key(CHAT, chat(*request)))
    assert [document for document, _ in ordered] == [ordered[at - at % 3][0] for at in range(len(ordered))]


@given(texts=st.lists(st.text(alphabet="ab", max_size=300), min_size=2, max_size=12))
def test_neighbours_share_the_longest_prefix_there_is(texts: list[str]) -> None:
    ordered = sorted(texts, key=lambda text: order_key(COMPLETIONS, {"prompt": text}))
    for at, text in enumerate(ordered):
        pieces = [shared(text.encode(), other.encode()) // PIECE for other in ordered]
        beside = max(pieces[max(0, at - 1) : at] + pieces[at + 1 : at + 2])
        # The prompt does not begin where its JSON does, so that a piece more or less may be shared.
        assert beside >= max(pieces[:at] + pieces[at + 1 :]) - 1


def test_tools_come_before_messages_as_in_the_prompt() -> None:
    tools = [{"type": "function", "function": {"name": "find", "description": "x" * 200}}]
    keys = [order_key(CHAT, chat(text, tools=tools)) for text in ("first", "other")]
    assert shared(*keys) >= 200 // PIECE * 4


@pytest.mark.parametrize(
    ("endpoint", "body", "deterministic"),
    [
        (CHAT, chat("a", temperature=0), True),
        (CHAT, chat("a", temperature=0.0), True),
        (CHAT, chat("a", seed=7), True),
        (CHAT, chat("a"), False),
        (CHAT, chat("a", temperature=None, seed=None), False),
        (CHAT, chat("a", temperature=0.1), False),
        (EMBEDDINGS, {"model": "m", "input": "a"}, True),
    ],
)
def test_only_what_chance_does_not_touch_has_a_fingerprint(
    endpoint: str, body: dict[str, Any], deterministic: bool
) -> None:
    assert (fingerprint(endpoint, body) is not None) == deterministic


def test_what_asks_for_the_same_has_one_fingerprint() -> None:
    same = [
        {"model": "m", "temperature": 0, "messages": [{"role": "user", "content": "a"}]},
        {"messages": [{"content": "a", "role": "user"}], "temperature": 0, "model": "m", "max_tokens": None},
        chat("a", temperature=0, user="somebody", metadata={"a": "b"}),
    ]
    assert len({fingerprint(CHAT, body) for body in same}) == 1
    other = [chat("b", temperature=0), chat("a", temperature=0, max_tokens=1), chat("a", temperature=0, seed=1)]
    assert len({fingerprint(CHAT, body) for body in [same[0], *other]}) == 4
