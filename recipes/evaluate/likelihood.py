"""Multiple choice by likelihood: the choice that the model finds most likely behind the question.

As lm-evaluation-harness does for `multiple_choice`: `acc` takes the log-probability of all tokens of a choice,
`acc_norm` divides it by the choice's characters.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from batchyard.recipes import Answer, Ask, Flow, InvalidItem, Item, Messages, Result, Stage
from recipes.evaluate.options import ACC, ACC_NORM, Evaluate
from recipes.evaluate.questions import question_of
from recipes.options import column_of
from recipes.rewards.choices import letter_of

STAGE = Stage("likelihood", "/v1/completions")


def choices_of(columns: Mapping[str, Any], path: str) -> list[str]:
    """Return the choices of a row. Raises InvalidItem if it has fewer than two."""
    values = column_of(columns, path)
    if not isinstance(values, list | tuple) or len(values) < 2 or not all(map(str, values)):
        raise InvalidItem("invalid_choices", f"The column '{path}' is no list of two or more texts.")
    return [str(value) for value in values]


def asks(model: str, context: str, choices: Sequence[str]) -> list[Ask]:
    """Return a request for each choice, which reads it behind the context and generates one token."""
    return [
        Ask(STAGE.name, context + choice, model=model, echo=True, logprobs=1, max_tokens=1, temperature=0.0)
        for choice in choices
    ]


def logprob(answer: Answer, context: str, choice: str) -> float:
    """Return the log-probability of the tokens after the context. Raises ValueError without those of the prompt."""
    logprobs = answer.extra.get("logprobs") or {}
    offsets, values = logprobs.get("text_offset") or (), logprobs.get("token_logprobs") or ()
    end = len(context) + len(choice)
    of_choice = [
        value
        for offset, value in zip(offsets, values, strict=False)
        if len(context) <= offset < end and value is not None
    ]
    if not of_choice:
        raise ValueError("the answer has no log-probabilities of the choice")
    return float(sum(of_choice))


def scores(choices: Sequence[str], logprobs: Sequence[float], truth: Any) -> tuple[dict[str, float], str]:
    """Return `acc` and `acc_norm`, and the choice that `acc` takes. The right one is a text, a letter or a place."""
    texts = [choice.strip() for choice in choices]
    letter = letter_of(int(truth) if str(truth).strip().isdecimal() else truth, texts)
    right = ord(letter) - ord("A") if len(letter) == 1 else -1
    plain = max(range(len(texts)), key=lambda at: logprobs[at])
    by_length = max(range(len(texts)), key=lambda at: logprobs[at] / max(1, len(texts[at])))
    return {ACC: float(plain == right), ACC_NORM: float(by_length == right)}, texts[plain]


def most_likely(item: Item, options: Evaluate, content: Messages) -> Flow:
    """Take the most likely of the row's choices."""
    assert options.choices is not None
    texts = choices_of(item.columns, options.choices)
    context = "\n\n".join(str(message.get("content") or "") for message in content)
    answers: list[Answer] = yield asks(options.model, context, texts)
    logprobs, reason = [], None
    for text, answer in zip(texts, answers, strict=True):
        try:
            logprobs.append(logprob(answer, context, text))
        except ValueError as error:
            reason = dict(answer.error or {"code": "no_logprobs", "message": str(error)})
    question = question_of(item)
    counters = {"samples": 1, "unanswered": int(reason is not None), "wrong": 1, "metric_errors": 0}
    if reason is not None:
        values = {"samples": [{"text": None, "score": 0.0, "error": reason}], **dict.fromkeys(options.labels, 0.0)}
        return item.failed(reason["code"], reason.get("message"), counters=counters, question=question, **values)
    acc, text = scores(texts, logprobs, column_of(item.columns, options.ground_truth))
    sample = {
        **{"text": text, "pred": text, "score": acc[ACC], "acc": acc[ACC], "scores": acc, "error": None, "values": {}},
        "logprobs": {f"logprob {at}": value for at, value in enumerate(logprobs)},
    }
    counters["wrong"] = int(acc[ACC] < 1)
    return Result(text, counters, question=question, samples=[sample], **acc)
