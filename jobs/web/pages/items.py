"""/jobs/<id>/items/<number>: one item with its row, its conversation turn by turn, and its result."""

import json
import secrets
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import flask
from flask import Blueprint
from flask.typing import ResponseReturnValue

from batchyard.endpoints import responses
from batchyard.errors import ConflictError
from batchyard.statuses import TERMINAL
from batchyard.wording import REMEDIES
from jobs.item_replies import MENDABLE
from jobs.items import detail
from jobs.items.detail import ItemDetails, JudgementRow, RequestRow, TurnRow
from jobs.web.jobs import get_job, post
from webapp.pages import answers
from webapp.pages.answers import Passage, text_of, value_of
from webapp.pages.formats import figure
from webapp.requests import current_context, query, validated
from webapp.wire.items import ItemReply
from webapp.wire.lists import QueryParams
from webapp.work import title

routes = Blueprint("items", __name__, url_prefix="/jobs/<job_id>/items")

ANSWERS = 32
IN_RESULT = ("text", "samples")
"""Values of a result that stand elsewhere on the page."""


class ItemParams(QueryParams):
    all: bool = False


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
    stage: str
    batch_id: str
    model: str
    prompt: list[Passage]
    parameters: str
    answers: list[AnswerView] = field(default_factory=list)


@dataclass
class TurnView:
    turn: TurnRow
    exchanges: list[Exchange]
    outcomes: list[tuple[str, list[Passage], bool]]


@routes.get("/<int:number>")
def show(job_id: str, number: int) -> ResponseReturnValue:
    job, params = get_job(job_id), query(ItemParams)
    try:
        item = detail.item(current_context(), job, number)
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
        columns=[answers.passage(name, value) for name, value in item.columns.items()],
        turns=turns,
        result=_result(item),
        scored=[answer for view in turns for exchange in view.exchanges for answer in exchange.answers if answer.marks],
        remedy=REMEDIES.get((item.error or {}).get("code", "")),
        left=job.total - job.completed,
        once=secrets.token_hex(16),
        most=None if params.all else ANSWERS,
        waits_for=[Passage(name, text_of(value)) for name, value in (item.waits_for or {}).items() if name != "gate"],
        can_be_mended=item.state in MENDABLE,
        ended=job.status in TERMINAL,
        fields={},
    )


@routes.post("/<int:number>")
def reply(job_id: str, number: int) -> ResponseReturnValue:
    """Take the verdict or the text of a person, or put the item back. The value of the button says which."""
    fields = {name: value for name, value in flask.request.form.items() if value.strip()}
    done = fields.get("reply")
    if done == "resolve":
        body: dict[str, Any] = {"text": fields.get("text"), "by": fields.get("by")}
    elif done == "requeue":
        body = {"requeue": {"hint": fields.get("hint")}}
    else:
        verdict = {name: fields.get(name) for name in ("gate", "turn", "category", "message", "by")}
        body = {"verdict": verdict | {"passed": done == "pass"}}
    post(job_id, number, validated(ItemReply, body))
    return flask.redirect(flask.url_for("pages.items.show", job_id=job_id, number=number), 303)


def _exchanges(turn: TurnRow) -> list[Exchange]:
    """Return the requests of a turn, those that differ in nothing but their seed together."""
    exchanges: dict[str, Exchange] = {}
    for request in turn.requests:
        parameters = answers.parameters(request.body)
        parameters.pop("seed", None)
        prompt = answers.prompt(request.body)
        key = json.dumps([request.stage, request.body.get("model"), prompt, parameters])
        if key not in exchanges:
            model = str(request.body.get("model", ""))
            shown = ", ".join(f"{name} {value}" for name, value in parameters.items())
            exchanges[key] = Exchange(request.stage, request.batch_id, model, prompt, shown)
        exchanges[key].answers.append(_answer(request))
    return list(exchanges.values())


def _answer(request: RequestRow) -> AnswerView:
    answer = AnswerView(request)
    failure = request.error or responses.error(request.response)
    if request.status_code is None and request.error is None:
        answer.waiting = True
    elif failure or request.status_code != 200:
        answer.error = ": ".join(str(part) for part in (failure.get("code"), failure.get("message")) if part)
    else:
        answer.text, answer.thinking, finish_reason = answers.choices(request.response)[0]
        usage = responses.usage(request.response)
        tokens = ((usage.output_tokens, "out"), (usage.input_tokens, "in"))
        answer.facts = [
            *(f"{figure(number)} tokens {way}" for number, way in tokens if number is not None),
            *([f"finish reason {finish_reason}"] if finish_reason else []),
        ]
    if (seed := request.body.get("seed")) is not None:
        answer.facts.append(f"seed {seed}")
    return answer


def _outcome(judgement: JudgementRow) -> tuple[str, list[Passage], bool]:
    """Return kind and values of a score, a check, a call or a refused request, and whether it is bad news."""
    values = dict(judgement.value) if isinstance(judgement.value, dict) else {"value": judgement.value}
    if isinstance(values.get("values"), dict):  # all that a reward said
        values = values.pop("values") | values
    passages = [Passage(name, value_of(value)) for name, value in values.items() if value not in (None, {}, [], "")]
    if judgement.kind in ("check", "verdict"):
        return judgement.kind, passages, values.get("passed") is False
    return judgement.kind, passages, judgement.kind == "refused" or bool(values.get("error"))


def _mark(turns: Sequence[TurnView], item: ItemDetails) -> None:
    """Set the reward of each answer, if the result has a sample for each request, in their order."""
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
                answer.marks.append(f"{name} {value_of(sample[name])}")


def _result(item: ItemDetails) -> list[Passage]:
    """Return text and values of the result, but for those that stand elsewhere."""
    if not isinstance(item.result, dict):
        return [] if item.result is None else [Passage("", text_of(item.result))]
    text = item.result.get("text")
    values = {name: value for name, value in item.result.items() if name not in IN_RESULT}
    return [
        *([Passage("text", text_of(text))] if text is not None else []),
        *(Passage(name, value_of(value)) for name, value in values.items()),
    ]
