"""Values of gates name columns of the item."""

from __future__ import annotations

from typing import Any

import pytest

from recipes.gates import BUILT_IN, texts
from tests.support.gates import ITEM


@pytest.mark.parametrize(
    ("value", "named"),
    [
        ("{{answer}} or {{extra.word}}", ["answer", "extra.word"]),
        (["a", "{{answer}}"], ["answer"]),
        ({"most": 2, "text": "{{answer}}"}, ["answer"]),
        (None, []),
        (3, []),
    ],
)
def test_the_columns_that_a_value_names_are_known(value: Any, named: list[str]) -> None:
    assert texts.named_columns(value) == named


def test_an_item_without_the_column_that_a_value_names_is_told_so() -> None:
    with pytest.raises(KeyError, match="the item has no column 'label'; its columns: answer, extra"):
        BUILT_IN["equals"]("x", ITEM, "{{label}}")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("is {{answer}}", "is 3.5"),
        ("{{ extra.word }} and {{answer}}", "a.b and 3.5"),
        ("{{extra}}", "{'word': 'a.b'}"),
        ("{answer} {{}} {{a b}}", "{answer} {{}} {{a b}}"),  # none of these is a place
    ],
)
def test_places_are_filled_with_the_values_of_the_item(text: str, expected: str) -> None:
    assert texts.filled(text, ITEM) == expected


def test_a_value_may_be_quoted_before_it_fills_its_place() -> None:
    assert texts.filled("{{extra.word}}$", ITEM, quote=str.upper) == "A.B$"


def test_a_field_within_a_text_is_no_column() -> None:
    with pytest.raises(KeyError, match=r"the item has no column 'answer\.word'"):
        texts.filled("{{answer.word}}", ITEM)
