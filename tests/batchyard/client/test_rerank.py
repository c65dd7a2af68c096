"""Queries and documents as requests, and rankings out of answers."""

from __future__ import annotations

from typing import Any

import pandas as pd
import pytest

from batchyard.client.rerank import RankedDocument, Rankings, pairs, request
from batchyard.errors import ConfigurationError
from batchyard.tables.cells import CellError


def test_queries_share_documents_or_have_a_list_each() -> None:
    assert pairs("one", ["a", {"text": "b"}]) == [{"query": "one", "documents": ["a", {"text": "b"}]}]
    shared = pairs(pd.Series(["one", "two"]), ("a", "b"))
    assert [row["documents"] for row in shared] == [["a", "b"]] * 2
    assert pairs(["one", "two"], [["a"], ["b"]])[1] == {"query": "two", "documents": ["b"]}


def test_lists_that_are_not_as_many_as_queries_are_refused() -> None:
    with pytest.raises(ConfigurationError, match="1 lists for 2 queries; pass one list, or one for each"):
        pairs(["a", "b"], [["c"]])
    with pytest.raises(ConfigurationError, match="documents: pass a column or a list, not str"):
        pairs(["a", "b"], "c")


@pytest.mark.parametrize(
    "documents",
    [["a", "b"], ("a", "b"), pd.Series(["a", "b"]).to_numpy(), '["a", "b"]', [{"text": "a", "id": 7}, {"text": "b"}]],
)
def test_documents_are_a_list_of_texts_or_of_objects_with_one_or_json(documents: Any) -> None:
    assert request({"query": "q", "documents": documents}) == {"query": "q", "documents": ["a", "b"]}


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        ({"query": "", "documents": ["a"]}, "column query is empty"),
        ({"query": "q", "documents": []}, "column documents is empty"),
        ({"query": "q", "documents": None}, "column documents is empty"),
        ({"query": "q", "documents": ["a", None]}, "column documents is empty"),
        ({"query": "q", "documents": "a"}, "column documents holds no list of texts"),
    ],
)
def test_a_row_without_a_query_or_documents_is_not_sent(row: dict[str, Any], reason: str) -> None:
    with pytest.raises(CellError) as refusal:
        request(row)
    assert str(refusal.value) == reason


def test_a_ranking_is_in_the_order_of_the_answer() -> None:
    rankings = Rankings()
    results = [
        {"index": 1, "document": {"text": "b"}, "relevance_score": 0.9},
        {"index": 0, "document": {"text": "a"}, "relevance_score": 0},
    ]
    assert rankings.keep(rankings.add(), {"results": results}) is None
    assert rankings.values == [[RankedDocument(1, 0.9, "b"), RankedDocument(0, 0.0, "a")]]
    assert rankings.keep(rankings.add(), {"results": [{"index": 0}]}) == "the answer is no ranking"
    assert rankings.values[1] is None
