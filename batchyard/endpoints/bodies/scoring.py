"""Scores of pairs of texts, and rankings of documents (vLLM's scoring endpoints, after Jina's and Cohere's)."""

from typing import Annotated, Any, Self

from pydantic import Field, NonNegativeInt, model_validator
from pydantic_core import PydanticCustomError

from batchyard.endpoints.bodies.common import Body, BodyObject

PAIRS = (("queries", "documents"), ("queries", "items"), ("text_1", "text_2"), ("data_1", "data_2"))
"""The keys in which a body may name both sides."""


class Multimodal(BodyObject):
    """A document of content parts."""

    content: list[dict[str, Any]] = Field(min_length=1, fail_fast=True)


class TextDocument(BodyObject):
    """A document as Cohere's and Jina's clients send it."""

    text: str


Text = str | Multimodal
_LISTED = Field(min_length=1, fail_fast=True)
Texts = Text | Annotated[list[Text], _LISTED]


class _Scoring(Body):
    instruction: str = ""
    max_tokens_per_query: NonNegativeInt = 0
    max_tokens_per_doc: NonNegativeInt = 0


def bare(value: Any) -> Any:
    """Return a query or documents with texts in place of objects that hold nothing else of use."""
    if isinstance(value, list):
        return [bare(entry) for entry in value]
    return value["text"] if isinstance(value, dict) and "content" not in value and "text" in value else value


class ScoreBody(_Scoring):
    """The body of /v1/score: one query for all documents, or as many queries as documents."""

    queries: Texts | None = None
    documents: Texts | None = None
    items: Texts | None = None
    text_1: Texts | None = None
    text_2: Texts | None = None
    data_1: Texts | None = None
    data_2: Texts | None = None

    @model_validator(mode="after")
    def _pairs(self) -> Self:
        for left, right in PAIRS:
            queries, documents = getattr(self, left), getattr(self, right)
            if queries is None or documents is None:
                continue
            if isinstance(queries, list) and len(queries) != 1:
                count = len(documents) if isinstance(documents, list) else 1
                if len(queries) != count:
                    message = f"{left} and {right} should have equal lengths, or {left} one entry"
                    raise PydanticCustomError("pairs", message)
            return self
        raise PydanticCustomError("pairs", "it should have queries and documents, or text_1 and text_2")


class RerankBody(_Scoring):
    """The body of /v1/rerank."""

    query: Text | TextDocument
    documents: Text | Annotated[list[Text | TextDocument], _LISTED]
    top_n: NonNegativeInt = 0
    return_documents: bool = True


class GenerativeScoringBody(Body):
    """The body of /generative_scoring: how probable the first of some tokens is after a query and each of its items."""

    query: str | list[NonNegativeInt]
    items: Annotated[list[str], _LISTED] | Annotated[list[list[NonNegativeInt]], _LISTED]
    label_token_ids: Annotated[list[NonNegativeInt], _LISTED]
    apply_softmax: bool = True
    item_first: bool = False
    add_special_tokens: bool = True
