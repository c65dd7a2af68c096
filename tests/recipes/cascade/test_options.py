"""Options of `cascade` that cannot be, each refused with its place."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from recipes.cascade.options import Cascade, check


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"proxy": "large"}, "proxy: it is the same as model"),
        ({"equal": "f1>=x"}, "equal: could not convert"),
        ({"equal": "f1>=0"}, "equal: the minimum score"),
        ({"precision": 0.9}, "precision: set it together with recall"),
        ({"precision": 0.9, "recall": 0.9}, "labels: precision and recall require two"),
        ({"precision": 0.9, "recall": 0.9, "labels": ["a", "b", "c"]}, "labels: precision and recall require two"),
        ({"precision": 0.9, "recall": 0.9, "labels": ["a", "b"], "agree": 0.95}, "agree: precision and recall replace"),
        ({"precision": 0.9, "recall": 0.9, "labels": ["a", "b"], "equal": "numeric"}, "equal: precision and recall"),
        ({"proxy": "a,large"}, "proxy: it is the same as model"),
        ({"proxy": "a, a"}, "proxy: a model is named twice"),
        ({"lowest_agree": 0.9}, "by: set it together with lowest_agree"),
        ({"by": "2100-01-01T00:00:00Z", "lowest_agree": 0.95}, "lowest_agree: it must be below agree"),
        ({"proxy": ""}, "proxy: name a small model"),
        ({"embedding": "e"}, "embedding: it chooses among labels"),
        ({"embedding": "small", "labels": ["a", "b"]}, "proxy: a model is named twice"),
        ({"scores": "p"}, "scores: they go together with precision and recall"),
        ({"template": "Of {*}"}, "template: {\\*} would have another order"),
    ],
)
def test_options_that_cannot_be_are_refused_with_their_place(options: dict[str, Any], reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        check(Cascade.model_validate({"model": "large", "proxy": "small"} | options))


@pytest.mark.parametrize("labels", [["a"], ["a", "A "], ["a", "a."], ["a", " "]])
def test_labels_are_two_or_more_that_differ(labels: list[str]) -> None:
    with pytest.raises(ValidationError):
        Cascade(model="large", proxy="small", labels=labels)


@pytest.mark.parametrize("share", [0, 1, 1.5])
def test_shares_lie_between_0_and_1(share: float) -> None:
    with pytest.raises(ValidationError):
        Cascade(model="large", proxy="small", agree=share)
    with pytest.raises(ValidationError):
        Cascade(model="large", proxy="small", confidence=share)
    with pytest.raises(ValidationError):
        Cascade(model="large", proxy="small", labels=["yes", "no"], precision=share, recall=0.9)
