"""Embeddings stand apart from the JSON of their response, and come back into it number for number."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from batchyard.endpoints import output_lines, vectors

FINITE = st.floats(width=32, allow_nan=False, allow_infinity=False)


def a_body(*embeddings: Any) -> dict[str, Any]:
    return {"model": "m", "data": [{"index": index, "embedding": each} for index, each in enumerate(embeddings)]}


def line_of(body: dict[str, Any], custom_id: str = "a") -> str:
    return output_lines.line(custom_id, 200, orjson.dumps(body), None)


@given(st.lists(arrays(np.float32, st.integers(1, 9), elements=FINITE), min_size=1, max_size=4))
def test_vectors_of_any_length_come_back_as_the_same_float32_numbers(embeddings: list[Any]) -> None:
    body, apart = vectors.set_aside(a_body(*embeddings))
    assert apart is not None and len(apart) == 4 * sum(map(len, embeddings))
    answer = json.loads(vectors.put_back(line_of(body), apart))
    for entry, embedding in zip(answer["response"]["body"]["data"], embeddings, strict=True):
        assert np.array_equal(np.array(entry["embedding"], np.float32), embedding)


def test_a_number_has_the_digits_that_tell_it_from_other_float32_and_no_more() -> None:
    body, apart = vectors.set_aside(a_body(np.array([0.1, -2.5e-8], np.float32)))
    assert '"embedding":[0.1,-2.5e-8]' in vectors.put_back(line_of(body), apart or b"")


def test_the_rest_of_a_line_stays_as_it_was_and_is_one_line_for_every_reader() -> None:
    line = line_of(a_body(np.zeros(2, np.float32).tolist()), "a\u2028ü")
    body, apart = vectors.set_aside(a_body(np.zeros(2, np.float32)))
    whole = vectors.put_back(line_of(body, "a\u2028ü"), apart or b"")
    assert len(whole.splitlines()) == 1
    fixed = [{**json.loads(each), "id": "", "response": json.loads(each)["response"]["body"]} for each in (line, whole)]
    assert fixed[0] == fixed[1]


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"data": []},
        {"data": ["no entry"]},
        {"choices": [{"text": "yes"}]},
        a_body([0.1, 0.2]),
        a_body("AACAPw=="),
        a_body(np.zeros(2)),
        a_body(np.zeros((2, 2), np.float32)),
        a_body(np.zeros(2, np.float32), [0.5]),
    ],
)
def test_a_body_without_vectors_of_float32_alone_stays_whole(body: dict[str, Any]) -> None:
    assert vectors.set_aside(body) == (body, None)
