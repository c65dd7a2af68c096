"""Recipe `rank`: the passages of a row in the order of their similarity to its prompt, by an embedding model."""

import base64
from array import array
from collections.abc import Mapping, Sequence
from typing import Any

from pydantic import Field

from batchyard.recipes import BASIC, Ask, ColumnName, Flow, InvalidItem, Item, Options, Result, Stage, recipe
from recipes.answers import lost

STAGE = Stage("embed", "/v1/embeddings")


class Rank(Options):
    """Options of `rank`."""

    model: str = Field(description="Model of embeddings")
    passages: ColumnName[str] = Field(
        "passages", description="Column with the list of passages", json_schema_extra=BASIC
    )
    top: int | None = Field(None, ge=1, description="Keep only so many", json_schema_extra=BASIC)
    query_prefix: str = Field("", description="What the model wants before a query, such as `query: `")
    passage_prefix: str = Field("", description="What it wants before a passage")


def _columns(options: Rank, row: Mapping[str, Any]) -> list[str]:
    passages = row.get(options.passages)
    if passages is not None and not (
        isinstance(passages, list) and passages and all(isinstance(text, str) and text for text in passages)
    ):
        raise InvalidItem("invalid_passages", f"The column '{options.passages}' is no list of texts.")
    return [options.passages]


def similarity(one: Sequence[float], other: Sequence[float]) -> float:
    """Return the cosine of the angle between two vectors, 0 if one has no length."""
    product = sum(a * b for a, b in zip(one, other, strict=True))
    lengths = sum(a * a for a in one) * sum(b * b for b in other)
    return float(product / lengths**0.5) if lengths else 0.0


def _ask(options: Rank, query: str, passages: Sequence[str]) -> Ask:
    texts = [options.query_prefix + query, *(options.passage_prefix + passage for passage in passages)]
    return Ask(STAGE.name, texts, model=options.model)


@recipe(
    "rank",
    Rank,
    stages=(STAGE,),
    probe=lambda options: [_ask(options, "Which?", ["This."])],
    columns=_columns,
    expected=lambda _: [1.0],
)
def rank(item: Item, options: Rank) -> Flow:
    """Rank the passages of each row by their similarity to its prompt."""
    passages = item.columns[options.passages]
    (answer,) = yield [_ask(options, str(item.messages[-1]["content"]), passages)]
    if not answer.ok:
        return lost(item, answer)
    entries = sorted(answer.extra.get("data") or [], key=lambda entry: entry["index"])
    query, *vectors = [
        array("f", base64.b64decode(vector)) if isinstance(vector := entry["embedding"], str) else vector
        for entry in entries
    ]
    scores = [similarity(query, vector) for vector in vectors]
    order = sorted(range(len(passages)), key=lambda index: -scores[index])[: options.top]
    ranking = [{"index": index, "score": round(scores[index], 6), "passage": passages[index]} for index in order]
    return Result(str(ranking[0]["passage"]), ranking=ranking, input_tokens=answer.input_tokens)
