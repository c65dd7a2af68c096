"""/jobs/<id>/items/<number>: one item with its row, its conversation turn by turn, and its result."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import flask
from flask import Blueprint
from flask.typing import ResponseReturnValue
from pydantic import BaseModel

from batchyard.errors import ConflictError
from tasks.jobs import reading
from tasks.jobs.reading import ItemDetails, Judgement, RequestRow, Turn
from webapp.jobs import get_job
from webapp.pages.formats import figure
from webapp.pages.jobs import title
from webapp.requests import current_context, query

routes = Blueprint("items", __name__, url_prefix="/jobs/<job_id>/items")

ANSWERS = 32
"""Answers of one request that are shown at first."""
IN_RESULT = ("text", "samples")
"""Values of a result that stand elsewhere on the page."""


class ItemParams(BaseModel):
    all: bool = False


class Passage(NamedTuple):
    """A text of a conversation with the role of who said it, or of a row with its column's name."""

    name: str
    text: str


@dataclass
class AnswerView:
    """An answer. `facts` are its tokens, seconds, seed and finish reason, `marks` what a reward said of it."""

    request: RequestRow
    text: str = ""
    error: str = ""
    waiting: bool = False
    thinking: str = ""
    facts: list[str] = field(default_factory=list)
    marks: list[str] = field(default_factory=list)


@dataclass
class Exchange:
    """What was asked, and the answers to it side by side."""

    stage: str
    batch_id: str
    model: str
    prompt: list[Passage]
    parameters: str
    answers: list[AnswerView] = field(default_factory=list)


@dataclass
class TurnView:
    """A turn: what was asked in it, and the outcomes of its scores and checks."""

    turn: Turn
    exchanges: list[Exchange]
    outcomes: list[tuple[str, list[Passage], bool]]


@routes.get("/<int:number>")
def show(job_id: str, number: int) -> ResponseReturnValue:
    job, params = get_job(job_id), query(ItemParams)
    try:
        item = reading.item(current_context(), job, number)
    except ConflictError as error:
        return flask.render_template("item.html", job=job, title=title(job), number=number, problem=error.message)
    turns = [TurnView(turn, _exchanges(turn), [_outcome(one) for one in turn.judgements]) for turn in item.turns]
    _mark(turns, item)
    return flask.render_template(
        "item.html",
        job=job,
        title=title(job),
        number=number,
        problem=None,
        item=item,
        columns=[Passage(name, _text(value)) for name, value in item.columns.items()],
        turns=turns,
        result=_result(item),
        most=None if params.all else ANSWERS,
    )


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, indent=1)


def _exchanges(turn: Turn) -> list[Exchange]:
    """Return the requests of a turn, those that differ in nothing but their seed together."""
    exchanges: dict[str, Exchange] = {}
    for request in turn.requests:
        parameters = {name: value for name, value in request.body.items() if name not in ("messages", "model", "seed")}
        prompt = _prompt(request.body)
        key = json.dumps([request.stage, request.body.get("model"), prompt, parameters])
        if key not in exchanges:
            model = str(request.body.get("model", ""))
            shown = ", ".join(f"{name} {_text(value)}" for name, value in parameters.items() if name not in _ASKED)
            exchanges[key] = Exchange(request.stage, request.batch_id, model, prompt, shown)
        exchanges[key].answers.append(_answer(request))
    return list(exchanges.values())


_ASKED = ("prompt", "input")


def _prompt(body: Mapping[str, Any]) -> list[Passage]:
    messages = body.get("messages")
    if isinstance(messages, list) and all(isinstance(message, dict) for message in messages):
        return [Passage(str(message.get("role", "")), _text(message.get("content"))) for message in messages]
    return [Passage("", _text(body[name])) for name in _ASKED if name in body]


def _answer(request: RequestRow) -> AnswerView:
    answer = AnswerView(request)
    response = request.response or {}
    failure = request.error or response.get("error")
    if request.status_code is None and request.error is None:
        answer.waiting = True
    elif failure or request.status_code != 200:
        failure = failure if isinstance(failure, dict) else {"message": _text(failure)}
        answer.error = ": ".join(str(part) for part in (failure.get("code"), failure.get("message")) if part)
    else:
        answer.text, answer.thinking, finish_reason = _said(response)
        usage = response.get("usage") or {}
        answer.facts = [
            *(
                f"{figure(usage[name])} tokens {way}"
                for name, way in (("completion_tokens", "out"), ("prompt_tokens", "in"))
                if usage.get(name) is not None
            ),
            *([f"finish reason {finish_reason}"] if finish_reason else []),
        ]
    if (seed := request.body.get("seed")) is not None:
        answer.facts.append(f"seed {seed}")
    return answer


def _said(response: Mapping[str, Any]) -> tuple[str, str, str | None]:
    """Return text, reasoning and finish reason of a response; its JSON as the text if it has no choices."""
    choices = response.get("choices")
    if not isinstance(choices, list) or not choices or not isinstance(choices[0], dict):
        return _text(response), "", None
    choice = choices[0]
    message = choice.get("message")
    message = message if isinstance(message, dict) else {"content": choice.get("text")}
    content, calls = message.get("content"), message.get("tool_calls")
    parts = [_text(part) for part in (content, calls) if part]
    reasoning = message.get("reasoning_content") or message.get("reasoning")
    return "\n".join(parts), _text(reasoning) if reasoning else "", choice.get("finish_reason")


def _outcome(judgement: Judgement) -> tuple[str, list[Passage], bool]:
    """Return kind and values of a score, a check or a refused request, and whether it is bad news."""
    values = dict(judgement.value) if isinstance(judgement.value, dict) else {"value": judgement.value}
    if isinstance(values.get("values"), dict):  # all that a reward said
        values = values.pop("values") | values
    passages = [Passage(name, _value(value)) for name, value in values.items() if value not in (None, {}, [], "")]
    if judgement.kind == "check":
        return "check", passages, values.get("passed") is False
    return judgement.kind, passages, judgement.kind == "refused" or bool(values.get("error"))


def _value(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return figure(value) if isinstance(value, int | float) else _text(value)


def _mark(turns: Sequence[TurnView], item: ItemDetails) -> None:
    """Set what a reward said of each answer, where the result has a sample for each request in their order."""
    samples = item.result.get("samples") if isinstance(item.result, dict) else None
    by_place: dict[tuple[int, int, int], list[AnswerView]] = {}
    for view in turns:
        for exchange in view.exchanges:
            for answer in exchange.answers:
                place = (view.turn.turn, answer.request.visit, answer.request.sample)
                by_place.setdefault(place, []).append(answer)
    if not isinstance(samples, list) or len(samples) != len(by_place) or any(turn.turn.life > 1 for turn in turns):
        return
    for place, sample in zip(sorted(by_place), samples, strict=True):
        answer = by_place[place][-1]  # the last attempt
        for name in ("score", "pred"):
            if isinstance(sample, dict) and sample.get(name) is not None:
                answer.marks.append(f"{name} {_value(sample[name])}")


def _result(item: ItemDetails) -> list[Passage]:
    """Return text and values of the result, but for those that stand elsewhere."""
    if not isinstance(item.result, dict):
        return [] if item.result is None else [Passage("", _text(item.result))]
    text = item.result.get("text")
    values = {name: value for name, value in item.result.items() if name not in IN_RESULT}
    return [
        *([Passage("text", _text(text))] if text is not None else []),
        *(Passage(name, _value(value)) for name, value in values.items()),
    ]
