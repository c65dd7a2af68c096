"""Recipe `generate-round`: candidates of a seed are written, filtered, answered and rated."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from batchyard.recipes import (
    Answer,
    Ask,
    Check,
    Checked,
    Failure,
    Flow,
    InvalidItem,
    Item,
    Messages,
    Result,
    Score,
    messages_of,
    recipe,
)
from batchyard.tables.cells import CellError
from batchyard.tables.template import TemplateError, parsed
from batchyard.wording import fill
from recipes.answers import Part, failure_of
from recipes.gates import subject
from recipes.generate import rounds
from recipes.generate.options import RATING, RATING_OF_ANSWERS, Drafts, Making, RaterOptions, ResponderOptions, check
from recipes.generate.rounds import STATE, Candidate

DRAFT, ANSWER, JUDGE = "draft", "answer", "judge"
PERSONA = "persona"
_RATING = re.compile(r"(?<!\d)(10|[1-9])(?!\d)")


@dataclass
class _RatedText:
    """A text that may be kept: a draft, or an answer to one."""

    text: str
    seed: int | None
    rating: int | None = None


@dataclass
class _Row:
    """What becomes of a candidate."""

    candidate: Candidate
    prompt: Messages  # what the draft was asked with
    draft: _RatedText | None = None
    answers: list[_RatedText] = field(default_factory=list)
    reason: str | None = None  # why it is no good row; None as long as it is one
    message: str | None = None  # in words
    unanswered: bool = False
    requests: int = 0
    tokens: int = 0

    def reject(self, reason: str, message: str | None) -> None:
        self.reason, self.message = reason, message

    def count(self, answer: Answer) -> None:
        self.requests += 1
        self.tokens += answer.input_tokens + answer.output_tokens

    def values(self, options: Making) -> dict[str, Any]:
        draft = self.draft
        return {
            "candidate": self.candidate.number + 1,
            "template": self.candidate.template + 1 if options.templates else None,
            "persona": options.personas[self.candidate.persona] if options.personas else None,
            "prompt": self.prompt,
            "draft": draft and draft.text,
            "draft_seed": draft and draft.seed,
            "rating": draft and draft.rating,
            "answers": [asdict(each) for each in self.answers],
            **{name: getattr(self, name) for name in ("reason", "message", "unanswered", "requests", "tokens")},
        }


def prompt_of(columns: Mapping[str, Any], options: Making, candidate: Candidate) -> Messages:
    """Return the messages of a candidate's draft. Raises InvalidItem if its seed lacks what a template names."""
    persona = {PERSONA: options.personas[candidate.persona]} if options.personas else {}
    template = options.prompts[candidate.template]
    system: Messages = []
    if options.system is not None:
        system = [{"role": "system", "content": _filled(options.system, persona)}]
    if template is None:
        return [*system, *messages_of(columns)]
    return [*system, {"role": "user", "content": _filled(template, {**columns, **persona})}]


def _filled(text: str, columns: Mapping[str, Any]) -> Any:
    try:
        return parsed(text).fill(columns)
    except TemplateError as error:
        raise InvalidItem("invalid_template", f"A template has {error}.") from None
    except CellError as error:
        raise InvalidItem(error.code, f"A template cannot be filled: {error}.") from None


def _columns(options: Drafts, row: Mapping[str, Any]) -> Sequence[str]:
    """Check that each template can be filled with a seed. Raises InvalidItem."""
    if row.get(STATE) is None:
        for number in range(len(options.prompts)):
            prompt_of(row, options, Candidate(0, number, 0))
    return []


def _draft(options: Making, content: Any) -> Ask:
    return Ask(DRAFT, content, model=options.model, **options.sampling.parameters())


def _answer(responder: ResponderOptions, text: str) -> Ask:
    system = [] if responder.system is None else [{"role": "system", "content": responder.system}]
    content = [*system, {"role": "user", "content": text}]
    return Ask(ANSWER, content, model=responder.model, **responder.sampling.parameters())


def _rate(judge: RaterOptions, task: str | None, text: str) -> Ask:
    prompt = judge.prompt or (RATING if task is None else RATING_OF_ANSWERS)
    content = fill(prompt, {"text": text, "task": task or ""})
    return Ask(JUDGE, content, model=judge.model, **judge.sampling.parameters())


def _probe(options: Drafts) -> list[Ask | Score | Check]:
    asks: list[Ask | Score | Check] = [_draft(options, "Write a question.")]
    asks += [] if options.answers is None else [_answer(options.answers, "What is a cluster?")]
    asks += [] if options.judge is None else [_rate(options.judge, None, "A text.")]
    return asks + [Check(gate.gate, "A text.", gate.value) for gate in options.gates]


def _filter(options: Making, rows: Sequence[_Row], answers: Mapping[int, Answer]) -> Part[None]:
    for gate in options.gates:
        left = [row for row in rows if row.reason is None]
        if not left:
            return
        checked: list[Checked] = yield [
            Check(gate.gate, subject(gate.gate, answers[row.candidate.number]), gate.value) for row in left
        ]
        for row, outcome in zip(left, checked, strict=True):
            if not outcome.passed:
                row.reject(outcome.category or gate.gate, outcome.message)


def _respond(responder: ResponderOptions, rows: Sequence[_Row]) -> Part[None]:
    """Answer the drafts of rows. One without any answer is rejected."""
    wanted = [(row, row.draft.text) for row in rows if row.draft is not None for _ in range(responder.n)]
    answers: list[Answer] = yield [_answer(responder, text) for _, text in wanted]
    failures: dict[int, Failure] = {}
    for (row, _), answer in zip(wanted, answers, strict=True):
        row.count(answer)
        failure = failure_of(answer)
        if failure is None:
            row.answers.append(_RatedText(answer.text, answer.seed))
        else:
            failures.setdefault(row.candidate.number, failure)
    for row in rows:
        if not row.answers:
            row.reject("not_answered", failures[row.candidate.number].message)


def _judge(judge: RaterOptions, rows: Sequence[_Row]) -> Part[None]:
    """Rate the answers of rows, or their drafts where there are none. Reject rows of which none is good."""
    rated: list[tuple[_Row, str | None, _RatedText]] = []
    for row in rows:
        if row.draft is not None:
            rated += [(row, row.draft.text, each) for each in row.answers] or [(row, None, row.draft)]
    ratings: list[Answer] = yield [_rate(judge, task, each.text) for _, task, each in rated]
    for (row, _, each), rating in zip(rated, ratings, strict=True):
        row.count(rating)
        number = _RATING.search(rating.text) if rating.ok else None
        each.rating = None if number is None else int(number[1])
    for row in rows:
        texts = row.answers or ([row.draft] if row.draft is not None else [])
        best = max((each.rating or 0 for each in texts), default=0)
        if best == 0:
            row.reject("not_rated", "The judge has given no rating from 1 to 10.")
        elif best < judge.least:
            row.reject("low_rating", f"The best rating is {best}, and {judge.least} is the least.")


@recipe(
    "generate-round",
    Drafts,
    stages=lambda options: [DRAFT, *([ANSWER] if options.answers else []), *([JUDGE] if options.judge else [])],
    probe=_probe,
    check=check,
    columns=_columns,
    finish=rounds.finish,
    main=rounds.KEPT,
)
def drafts(item: Item, options: Drafts) -> Flow:
    """Run one round of `generate`: draft, filter, answer and rate."""
    state = item.columns.get(STATE)
    if state is None:
        numbers = rounds.of_item(item.number - 1, item.total, options)
        seed, seeds = item.number, item.total
    elif "candidates" in state:
        numbers, seed, seeds = state["candidates"], state["seed"], state["seeds"]
    else:
        return Result(**state)  # what the rounds before have left, for the end of this one
    rows = []
    for number in numbers:
        candidate = rounds.candidate(number, seeds, options)
        rows.append(_Row(candidate, prompt_of(item.columns, options, candidate)))
    if not rows:
        return Result(seed=seed, rows=[])
    answers: list[Answer] = yield [_draft(options, row.prompt) for row in rows]
    for row, answer in zip(rows, answers, strict=True):
        row.count(answer)
        failure = failure_of(answer)
        if failure is None:
            row.draft = _RatedText(answer.text.strip(), answer.seed)
        else:
            row.unanswered = not answer.ok
            row.reject(failure.category, failure.message)
    yield from _filter(options, rows, {row.candidate.number: each for row, each in zip(rows, answers, strict=True)})
    if options.answers is not None and (left := [row for row in rows if row.reason is None]):
        yield from _respond(options.answers, left)
    if options.judge is not None and (left := [row for row in rows if row.reason is None]):
        yield from _judge(options.judge, left)
    good = sum(row.reason is None for row in rows)
    return Result(counters={"candidates": len(rows), "passed": good}, seed=seed, rows=[r.values(options) for r in rows])
