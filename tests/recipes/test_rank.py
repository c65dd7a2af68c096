"""Recipe `rank`: passages in the order of their similarity to the prompt."""

from __future__ import annotations

import base64
from array import array
from typing import Any

import pytest

from batchyard.recipes import Answer, InvalidItem, Item, Result, play
from batchyard.recipes.program import Request
from recipes.rank import Rank, rank, similarity

VECTORS = {"north": [0.0, 1.0], "up": [0.1, 2.0], "east": [1.0, 0.0], "south": [0.0, -1.0]}


def ranked(passages: list[str], *, packed: bool = False, **options: Any) -> tuple[Result, Request]:
    asked: list[Request] = []

    def answer(request: Request) -> Answer:
        asked.append(request)
        data = [
            {"index": index, "embedding": base64.b64encode(array("f", vector).tobytes()).decode() if packed else vector}
            for index, vector in enumerate(VECTORS[text.rpartition(" ")[2]] for text in request.body["input"])
        ]
        return Answer(ok=True, extra={"data": data[::-1]}, input_tokens=7)  # in no order but that of `index`

    item = Item(0, "a", {"prompt": "north", "passages": passages})
    return play(rank, item, Rank(model="vectors", **options), answer), asked[0]


@pytest.mark.parametrize("packed", [False, True])
def test_passages_are_ranked_by_their_similarity_to_the_prompt(packed: bool) -> None:
    result, request = ranked(["south", "east", "up"], packed=packed)
    assert request.endpoint == "/v1/embeddings"
    assert request.body["input"] == ["north", "south", "east", "up"]
    assert [(entry["index"], entry["passage"]) for entry in result.values["ranking"]] == [
        (2, "up"),
        (1, "east"),
        (0, "south"),
    ]
    assert [entry["score"] for entry in result.values["ranking"]] == pytest.approx([0.99875, 0, -1], abs=1e-4)
    assert result.text == "up"


def test_only_the_top_is_kept_and_prefixes_stand_before_the_texts() -> None:
    result, request = ranked(["south", "up"], top=1, query_prefix="query: ", passage_prefix="passage: ")
    assert request.body["input"] == ["query: north", "passage: south", "passage: up"]
    assert [entry["passage"] for entry in result.values["ranking"]] == ["up"]


def test_an_item_without_an_answer_fails_with_the_engines_error() -> None:
    refusal = Answer(ok=False, error={"code": "context_length_exceeded", "message": "too long"})
    item = Item(0, "a", {"prompt": "north", "passages": ["up"]})
    result = play(rank, item, Rank(model="vectors"), lambda _: refusal)
    assert result.state == "failed"
    assert result.error == {"code": "context_length_exceeded", "message": "too long"}


@pytest.mark.parametrize("passages", ["a text", [], ["a", 1], [""]])
def test_a_row_whose_passages_are_no_list_of_texts_is_refused(passages: Any) -> None:
    assert rank.columns is not None
    with pytest.raises(InvalidItem, match="'passages' is no list of texts"):
        rank.columns(Rank(model="vectors"), {"passages": passages})


def test_a_vector_without_a_length_is_similar_to_nothing() -> None:
    assert similarity([0.0, 0.0], [1.0, 0.0]) == 0
