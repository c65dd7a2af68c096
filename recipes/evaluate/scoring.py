"""The scores of a question's answers: rewards, gates, graders and the judge, each kind in one turn."""

import re
import string
from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, Literal, TypeAlias

from batchyard.comparing.patterns import compiled
from batchyard.comparing.values import comparable
from batchyard.recipes import Answer, Check, Checked, InvalidItem, Item, Score, Scored
from batchyard.wording import quoted, suggestion
from recipes import extracts
from recipes.evaluate.judging import STAGE, Judge
from recipes.evaluate.options import ASSERTS, JUDGE, Evaluate, MetricOptions
from recipes.gates import parse, subject
from recipes.options import column_of
from recipes.registry import Catalogue
from recipes.rewards.overlap import ARTICLE, NO_PUNCTUATION
from recipes.rollout.options import data_source_of

Part: TypeAlias = Generator[Any, Any, None]
"""A part of the program, which yields turns as the whole does."""
Kind: TypeAlias = Literal["reward", "gate", "model"]
_DIGITS = str.maketrans("", "", string.digits)
_KINDS = ("case", "punctuation", "articles", "numbers")
_PATTERN = "regex:"
_BLANKS = re.compile(r"\s+")


@dataclass
class ScoredAnswer:
    """An answer with its scores by metric. What failed has 0 and stands in `errors`."""

    answer: Answer
    scores: dict[str, float] = field(default_factory=dict)
    accs: dict[str, float | None] = field(default_factory=dict)
    values: dict[str, float] = field(default_factory=dict)
    errors: dict[str, str] = field(default_factory=dict)
    pred: str | None = None

    def add(self, label: str, scored: Scored) -> None:
        self.scores[label], self.accs[label] = scored.score, scored.acc
        if scored.error is not None:
            self.errors[label] = scored.error


def kind_of(metric: MetricOptions, rewards: Catalogue) -> Kind:
    """Return who measures: a model, a reward, or a gate for any other name."""
    if metric.grader is not None:
        return "model"
    return "reward" if metric.metric.startswith("{") or metric.metric in rewards.rewards else "gate"


def check_ignored(ignore: Sequence[str]) -> None:
    """Raise ValueError for what is none of case, punctuation, articles, numbers, regex:<pattern>."""
    for kind in ignore:
        if kind.startswith(_PATTERN):
            compiled(kind.removeprefix(_PATTERN))
        elif kind not in _KINDS:
            raise ValueError(f"{quoted(kind)} cannot be ignored. {suggestion(kind, _KINDS, sentence=True)}")


def normalized(text: str, ignore: Sequence[str]) -> str:
    """Return a text without what is not compared. Patterns come first, then the others in any order."""
    if not ignore:
        return text
    for kind in ignore:
        if kind.startswith(_PATTERN):
            text = compiled(kind.removeprefix(_PATTERN)).sub("", text)
    if "case" in ignore:
        text = text.lower()
    if "punctuation" in ignore:
        text = text.translate(NO_PUNCTUATION)
    if "articles" in ignore:
        text = ARTICLE.sub(" ", text)
    if "numbers" in ignore:
        text = text.translate(_DIGITS)
    return _BLANKS.sub(" ", text).strip()


def normalized_truth(truth: Any, ignore: Sequence[str]) -> Any:
    """Return a right answer without what is not compared; each of a list of them."""
    if not ignore:
        return truth
    if isinstance(truth, list | tuple):
        return [normalized(comparable(each), ignore) for each in truth]
    return normalized(comparable(truth), ignore)


def solution(options: Evaluate, metric: MetricOptions, answer: Answer) -> str:
    """Return the part of an answer that a reward gets."""
    return normalized(extracts.part(metric.extract or options.extract, answer.text), metric.ignore)


def asserts_of(columns: Mapping[str, Any], column: str) -> list[dict[str, Any]]:
    """Return the gates of a row, with value and weight. Raises InvalidItem."""
    entries = columns.get(column)
    if entries is None:
        return []
    asserts = []
    for entry in entries if isinstance(entries, list) else [entries]:
        if isinstance(entry, str):
            gate, value = parse(entry)
            entry = {"gate": gate, "value": value}
        if not isinstance(entry, Mapping) or not isinstance(entry.get("gate"), str):
            raise InvalidItem("invalid_assert", f"The column '{column}' has what is no gate: {entry!r}.")
        asserts.append({"gate": entry["gate"], "value": entry.get("value"), "weight": float(entry.get("weight", 1))})
    return asserts


def score(item: Item, options: Evaluate, rewards: Catalogue, answers: Sequence[ScoredAnswer]) -> Part:
    """Score the answers of a question by all metrics but the judge."""
    kinds = {kind: [m for m in options.metrics if kind_of(m, rewards) == kind] for kind in ("reward", "gate", "model")}
    yield from _rewarded(item, options, kinds["reward"], answers)
    yield from _checked(item, options, kinds["gate"], answers)
    yield from _graded(item, options, kinds["model"], answers)


def _score(item: Item, options: Evaluate, metric: MetricOptions, answer: Answer) -> Score:
    extra = item.columns.get("extra_info")
    by_columns = metric.metric.startswith("{") or not isinstance(extra, Mapping)
    truth = column_of(item.columns, metric.ground_truth or options.ground_truth)
    return Score(
        metric.metric,
        data_source_of(item.columns),
        solution(options, metric, answer),
        "" if truth is None else normalized_truth(truth, metric.ignore),
        dict(item.columns) if by_columns else extra,
    )


def _rewarded(item: Item, options: Evaluate, metrics: Sequence[MetricOptions], answers: Sequence[ScoredAnswer]) -> Part:
    pairs = [(metric, each) for metric in metrics for each in answers]
    if not pairs:
        return
    outcomes: list[Scored] = yield [_score(item, options, metric, each.answer) for metric, each in pairs]
    for (metric, each), scored in zip(pairs, outcomes, strict=True):
        each.add(metric.label, scored)
        if metric is options.metrics[0]:
            each.pred = scored.pred
        for name, value in scored.values.items():
            if name not in ("score", "acc", "pred") and isinstance(value, int | float):
                each.values[f"{metric.label}/{name}"] = float(value)


def _checked(item: Item, options: Evaluate, metrics: Sequence[MetricOptions], answers: Sequence[ScoredAnswer]) -> Part:
    """Check gates, each a metric, and the row's own, which are one."""
    asserts = asserts_of(item.columns, options.asserts) if options.asserts else []
    wanted = [(metric.metric, metric.value) for metric in metrics]
    wanted += [(entry["gate"], entry["value"]) for entry in asserts]
    if not wanted or not answers:
        return
    outcomes: list[Checked] = yield [
        Check(gate, subject(gate, each.answer), value) for each in answers for gate, value in wanted
    ]
    for number, each in enumerate(answers):
        checks = outcomes[number * len(wanted) :][: len(wanted)]
        for metric, checked in zip(metrics, checks, strict=False):
            passed = float(checked.passed)
            each.add(metric.label, Scored(passed, acc=passed, error=_error(checked)))
        if asserts:  # the share of the weights that passed; the answer is right if all have
            own = checks[len(metrics) :]
            passed = sum(entry["weight"] for entry, checked in zip(asserts, own, strict=True) if checked.passed)
            total, acc = sum(entry["weight"] for entry in asserts), float(all(checked.passed for checked in own))
            error = next((reason for checked in own if (reason := _error(checked))), None)
            each.add(ASSERTS, Scored(passed / total if total else acc, acc=acc, error=error))


def _error(checked: Checked) -> str | None:
    """Return why a gate failed by itself, None if it has judged."""
    return checked.message if checked.category == "gate_error" else None


def _graded(item: Item, options: Evaluate, metrics: Sequence[MetricOptions], answers: Sequence[ScoredAnswer]) -> Part:
    pairs = [
        (metric, grader, each, grader.messages(item.columns, solution(options, metric, each.answer)))
        for metric in metrics
        for grader in [metric.grader]
        if grader is not None
        for each in answers
    ]
    asks = [grader.ask(STAGE, content) for _, grader, _, content in pairs if content is not None]
    grades = iter((yield asks) if asks else [])
    for metric, grader, each, content in pairs:
        each.add(metric.label, Scored(0.0) if content is None else grader.scored(next(grades)))


def judge(judge: Judge, answers: Sequence[ScoredAnswer], agreement: dict[str, float]) -> Part:
    """Let the judge mark the answers, and the one that people have judged; `agreement` gets both verdicts on that."""
    judged = [(each, asks) for each in answers if (asks := judge.asks(each.answer.text))]
    by_people = judge.by_people()
    groups = [asks for _, asks in judged] + ([] if by_people is None else [by_people[0]])
    if not groups:
        return
    replies: list[Answer] = yield [ask for asks in groups for ask in asks]
    left = iter(replies)
    scores = [judge.scored([*islice(left, len(asks))]) for asks in groups]
    for (each, _), scored in zip(judged, scores, strict=False):
        each.add(JUDGE, scored)
        each.values |= {f"{JUDGE}/{name}": float(value) for name, value in scored.values.items()}
    if by_people is not None and scores[-1].error is None:
        agreement |= {"judge": scores[-1].score, "people": by_people[1]}
