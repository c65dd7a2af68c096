"""Recipe `cascade-round`: the small model answers rows, or the large one answers those that it is needed for."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from batchyard.recipes import Answer, Ask, Flow, InvalidItem, Item, Result, Score, Scored, recipe
from recipes.answers import lost, unanswered
from recipes.cascade import rounds
from recipes.cascade.options import STATE, Cascading, Round, check

PROXY, LARGE = "proxy", "large"


def _ask(options: Cascading, stage: str, content: Any) -> Ask:
    model = options.proxy if stage == PROXY else options.model
    choice = options.labels if options.labels and options.structured else None
    logprobs = True if stage == PROXY else None
    return Ask(stage, content, model=model, choice=choice, logprobs=logprobs, **options.sampling.parameters())


def _probe(options: Round) -> list[Ask | Score]:
    asks: list[Ask | Score] = [_ask(options, stage, "1 + 1 =") for stage in (PROXY, LARGE)]
    return [*asks, Score(options.comparison[0], "", "2", "2")]


def _columns(options: Round, row: Mapping[str, Any]) -> Sequence[str]:
    """Check that no column of the input has the name of a new one. Raises InvalidItem."""
    taken = [name for name in rounds.NEW if name in row and STATE not in row]
    if taken:
        raise InvalidItem("column_taken", f"The column '{taken[0]}' has the name of one of the results; rename it.")
    return []


def confidence_of(answer: Answer) -> float | None:
    """Return the probability of an answer's tokens; None if the engine has not said it."""
    tokens = (answer.extra.get("logprobs") or {}).get("content")
    return math.exp(min(0.0, math.fsum(float(token["logprob"]) for token in tokens))) if tokens else None


def label_of(text: str, labels: Sequence[str]) -> str | None:
    """Return the label that a text is, but for case and blanks around it; None if it is none."""
    return next((label for label in labels if label.strip().casefold() == text.strip().casefold()), None)


@recipe(
    "cascade-round",
    Round,
    stages=(PROXY, LARGE),
    probe=_probe,
    check=check,
    columns=_columns,
    finish=rounds.finish,
    main=rounds.ANSWERS,
)
def answered(item: Item, options: Round) -> Flow:
    """Make one round of `cascade`: the small model answers all rows, or the large one answers some."""
    state = item.columns.get(STATE)
    if state is not None and "rows" in state:
        return Result()  # rows that this round asks nothing about
    stage = PROXY if state is None else LARGE
    (answer,) = yield [_ask(options, stage, item.chat())]
    kept: dict[str, Any] = {"text": None, "tokens": [answer.input_tokens, answer.output_tokens]}
    error = unanswered(answer)
    if error is None:
        kept["text"] = (label_of(answer.text, options.labels) if options.labels else None) or answer.text
    else:
        kept["error"] = dict(error)
    if state is None:
        is_usable = error is None and (not options.labels or kept["text"] in options.labels)
        kept["confidence"] = confidence_of(answer) if is_usable else None
        # The order of sampling follows from the job's seed and the row's id, and from nothing that was answered.
        values: dict[str, Any] = {"order": item.seed("sample"), "proxy": kept}
    else:
        values = {"large": kept}
        if error is None and state["proxy"].get("confidence") is not None:
            reward, least = options.comparison
            scored: list[Scored] = yield [Score(reward, "", state["proxy"]["text"], kept["text"])]
            score = scored[0].score if scored[0].acc is None or least != 1 else scored[0].acc
            kept["equal"] = scored[0].error is None and score >= least
    return lost(item, answer, **values) if error is not None else Result(kept["text"], **values)
