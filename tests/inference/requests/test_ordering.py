"""Requests that begin alike stand together."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from inference.requests.ordering import PIECE, order_key

CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"


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
