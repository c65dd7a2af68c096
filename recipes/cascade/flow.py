"""Recipe `cascade-round`: the small model answers all rows, or the large one some."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from batchyard.endpoints import label_probabilities
from batchyard.recipes import Answer, Ask, Flow, InvalidItem, Item, Result, Score, Stage, recipe
from batchyard.tables.cells import CellError, is_empty
from recipes.answers import Part, lost, unanswered
from recipes.cascade import rounds
from recipes.cascade.classifier import packed
from recipes.cascade.options import STATE, Cascading, Round, check, label_of

PROXY, LARGE = "proxy", "large"
EMBED = Stage("embed", "/v1/embeddings")


def _stages(options: Round) -> list[str | Stage]:
    return [PROXY, *([] if options.embedding is None else [EMBED]), LARGE]


def _embed(options: Round, text: str) -> list[Ask]:
    return [] if options.embedding is None else [Ask(EMBED.name, text, model=options.embedding)]


def _ask(options: Cascading, stage: str, model: str, content: Any) -> Ask:
    choice = options.labels if options.labels and options.structured else None
    probabilities: dict[str, Any] = {}
    if stage == PROXY:
        probabilities = label_probabilities.REQUEST if options.filters else {"logprobs": True}
    return Ask(stage, content, model=model, choice=choice, **probabilities, **options.sampling.parameters())


def _text(content: Any) -> str:
    """Return what an embedding model sees of a message: not its images."""
    if not isinstance(content, list):
        return str(content)
    return "\n".join(part["text"] for part in content if part.get("type") == "text")


def _probe(options: Round) -> list[Ask | Score]:
    stages = [*((PROXY, model) for model in options.chat_proxies), (LARGE, options.model)]
    asks = [_ask(options, *stage, "1 + 1 =") for stage in stages]
    return [*asks, *_embed(options, "1 + 1 ="), Score(options.comparison[0], "", "2", "2")]


def _columns(options: Round, row: Mapping[str, Any]) -> Sequence[str]:
    """Check the cells that options name, and that no column has a new one's name. Raises InvalidItem."""
    if STATE in row:
        return []
    taken = [name for name in rounds.NEW if name in row]
    if taken:
        raise InvalidItem("column_taken", f"The column '{taken[0]}' has the name of a result column; rename it.")
    _given_score(options, row)
    try:
        options.known(row)
    except CellError as error:
        raise InvalidItem(error.code, f"{error}.") from None
    return []


def _given_score(options: Round, row: Mapping[str, Any]) -> float | None:
    """Return what a row has in the column of scores, None without a value. Raises InvalidItem."""
    cell: Any = row.get(options.scores or "")
    if is_empty(cell):
        return None
    try:
        score = float(cell)
    except (TypeError, ValueError):
        score = math.nan
    if not 0 <= score <= 1:
        raise InvalidItem("invalid_score", f"The column '{options.scores}' holds no number from 0 to 1.")
    return score


def confidence_of(answer: Answer) -> float | None:
    """Return the probability of an answer's tokens; None if the engine reports none."""
    tokens = (answer.extra.get("logprobs") or {}).get("content")
    return math.exp(min(0.0, math.fsum(float(token["logprob"]) for token in tokens))) if tokens else None


def score_of(answer: Answer, label: str, labels: Sequence[str]) -> float | None:
    """Return the probability of the first of two labels; None if the engine reports none.

    `label`: the answer. The two probabilities add up to 1 if the engine reports alternative tokens.
    """
    logprobs = answer.extra.get("logprobs") or {}
    if any(token.get("top_logprobs") for token in logprobs.get("content") or ()):
        known = label_probabilities.of_chat({"choices": [{"logprobs": logprobs}]}, labels)
        if known is not None:
            return known[labels[0]]
    confidence = confidence_of(answer)
    return confidence if confidence is None or label == labels[0] else 1 - confidence


def _same(options: Round, answer: str, other: str) -> Part[bool]:
    reward, least = options.comparison
    (scored,) = yield [Score(reward, "", answer, other)]
    score = scored.score if scored.acc is None or least != 1 else scored.acc
    return scored.error is None and score >= least


@recipe(
    "cascade-round",
    Round,
    stages=_stages,
    probe=_probe,
    check=check,
    columns=_columns,
    finish=rounds.finish,
    main=rounds.ANSWERS,
)
def answered(item: Item, options: Round) -> Flow:
    """Run one round of `cascade`: the small model answers all rows, or the large one some."""
    state = item.columns.get(STATE)
    if state is not None and "rows" in state:
        return Result()  # rows that this round asks nothing about
    # The order of sampling follows from the job's seed and the row's id, and from nothing that was answered.
    values: dict[str, Any] = {"order": item.seed("sample")} if state is None else {}
    if state is None and options.scores is not None:
        score = _given_score(options, item.columns)
        text = None if score is None else options.labels[score <= 0.5]
        return Result(text, **values, proxies=[{"text": text, "confidence": score}])
    stage, models = (PROXY, options.chat_proxies) if state is None else (LARGE, [options.model])
    asks = [_ask(options, stage, model, item.chat()) for model in models]
    embeds = _embed(options, _text(item.messages[-1]["content"])) if state is None else []
    answers: list[Answer] = yield [*asks, *embeds]
    all_kept = []
    for answer in answers:
        all_kept.append((yield from _kept(options, item, answer, stage)))
    if state is None:
        values["proxies"] = all_kept
    else:
        (kept,) = all_kept
        values["large"], kept["equal"] = kept, []
        for proxy in state["proxies"]:
            # No text: the program never ended, or an embedding whose classifier is not trained yet.
            is_equal = "error" not in kept and proxy.get("text") == kept["text"]
            if not options.filters and "error" not in kept and proxy.get("confidence") is not None:
                is_equal = yield from _same(options, proxy["text"], kept["text"])
            kept["equal"].append(is_equal)
    failed = next((answer for kept, answer in zip(all_kept, answers, strict=True) if "error" in kept), None)
    return Result(all_kept[0]["text"], **values) if failed is None else lost(item, failed, **values)


def _kept(options: Round, item: Item, answer: Answer, stage: str) -> Part[dict[str, Any]]:
    """Return what is kept of an answer: text or error, tokens, confidence, and whether it is right where known."""
    kept: dict[str, Any] = {"text": None, "tokens": [answer.input_tokens, answer.output_tokens]}
    if (error := unanswered(answer)) is not None:
        return {**kept, "error": dict(error)}
    if answer.extra.get("data"):
        return {**kept, "vector": packed(answer.extra["data"])}
    kept["text"] = (label_of(answer.text, options.labels) if options.labels else None) or answer.text
    if not options.filters and (known := options.known(item.columns)) is not None:
        kept["right"] = yield from _same(options, kept["text"], known)
    if stage == PROXY and (not options.labels or kept["text"] in options.labels):
        kept["confidence"] = (
            score_of(answer, kept["text"], options.labels) if options.filters else confidence_of(answer)
        )
    return kept
