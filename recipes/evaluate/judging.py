"""The judge of recipe `evaluate`: marks, comparisons in both orders, and what people say of the same answers."""

from collections.abc import Sequence
from typing import Any

from batchyard.recipes import Answer, Ask, Item, Messages, Scored
from batchyard.tables.cells import CellError
from batchyard.tables.template import Template, parsed
from batchyard.wording import PLACE, fill
from recipes.answers import integer_of, mark_of
from recipes.evaluate.options import EvaluationJudge
from recipes.options import column_of, option

STAGE = "judge"
MARK = (
    "Grade an answer to a task.\n\nTask:\n{task}\n\n{reference}{rubric}Answer to grade:\n{answer}\n\n"
    "How good is the answer? Reply with one integer from {low} (worst) to {high} (best)."
)
COMPARE = (
    "Two answers to one task are compared.\n\nTask:\n{task}\n\n{reference}{rubric}Answer 1:\n{first}\n\nAnswer 2:\n"
    "{second}\n\nWhich answer is better? Reply with 1 or 2."
)
PLACES = {
    False: ("task", "reference", "rubric", "answer", "low", "high"),
    True: ("task", "reference", "rubric", "first", "second"),
}
"""What a prompt may name in braces: one for marks, one for comparisons."""
WIN, TIE, LOSS = 1.0, 0.5, 0.0
_WORDS = {
    **dict.fromkeys(("win", "won", "better", "wins"), WIN),
    **dict.fromkeys(("tie", "tied", "equal", "both"), TIE),
    **dict.fromkeys(("loss", "lost", "worse", "loses"), LOSS),
}
_PASSES = {
    **dict.fromkeys(("pass", "passed", "true", "yes", "right", "correct", "good"), 1.0),
    **dict.fromkeys(("fail", "failed", "false", "no", "wrong", "incorrect", "bad"), 0.0),
}


def check(judge: EvaluationJudge) -> None:
    """Raise ValueError, with the path of the option, for a judge that cannot be."""
    low, high = judge.range
    if low >= high:
        raise ValueError(f"judge.range: the lowest mark comes first, and is less than the highest, not {[low, high]}")
    if judge.passing is not None and not low < judge.passing <= high:
        raise ValueError(f"judge.passing: a mark above {low} and up to {high}, not {judge.passing}")
    if judge.passing is not None and judge.against is not None:
        raise ValueError("judge.passing: comparisons have no marks; leave it out, or `against`")
    if judge.rubric is not None:
        with option("judge.rubric"):
            Template(judge.rubric)
    places = PLACES[judge.against is not None]
    for name in PLACE.findall(judge.prompt or ""):
        if name not in places:
            raise ValueError(f"judge.prompt: {{{name}}} is none of {', '.join(places)}")


class Judge:
    """The judge of one row."""

    def __init__(self, options: EvaluationJudge, item: Item, task: Messages, ground_truth: str) -> None:
        self._options = options
        self._columns = item.columns
        self._task = "\n\n".join(str(message.get("content") or "") for message in task)
        self._truth = str(reference) if (reference := column_of(item.columns, ground_truth)) is not None else ""

    def by_people(self) -> tuple[list[Ask], float] | None:
        """Return what to ask about the answer that people have judged, with their verdict; None without one."""
        people = self._options.people
        if people is None or self._columns.get(people.answer) is None:
            return None
        verdict = verdict_of(self._columns.get(people.verdict), self._options)
        asks = self.asks(str(self._columns[people.answer]))
        return None if verdict is None or not asks else (asks, verdict)

    def asks(self, answer: str) -> list[Ask]:
        """Return the requests about an answer: one for a mark, two to compare it; none if the row lacks a column."""
        options, (low, high), rubric = self._options, self._options.range, self._rubric()
        other = None if options.against is None else self._columns.get(options.against)
        if rubric is None or (options.against is not None and other is None):
            return []
        common = {
            "task": self._task,
            "reference": f"A right answer:\n{self._truth}\n\n" if self._truth else "",
            "rubric": f"What counts:\n{rubric}\n\n" if rubric else "",
        }
        form: dict[str, Any]
        if options.against is None:
            form = {"json": mark_of(low, high)}
            texts = [fill(options.prompt or MARK, {**common, "answer": answer, "low": low, "high": high})]
        else:
            form = {"choice": ["1", "2"]}
            orders = ((answer, str(other)), (str(other), answer))
            texts = [fill(options.prompt or COMPARE, {**common, "first": one, "second": two}) for one, two in orders]
        form = form if options.structured else {}
        return [
            Ask(STAGE, text, model=options.model, temperature=0.0, max_tokens=options.max_tokens, **form)
            for text in texts
        ]

    def scored(self, answers: Sequence[Answer]) -> Scored:
        """Return the score that the judge's answers give, with its mark or the places of the winners as values.

        Of two answers both orders have to agree, as a judge may prefer what it reads first.
        """
        if len(answers) > 1:
            first, second = (integer_of(answer, 1, 2) for answer in answers)
            if first is None or second is None:
                return Scored(TIE, error=f"the judge did not choose: {_reason(answers)}")
            wins = (first == 1, second == 2)
            score = TIE if wins[0] != wins[1] else WIN if wins[0] else LOSS
            values = {"consistent": float(wins[0] == wins[1]), "first": ((first == 1) + (second == 1)) / 2}
            return Scored(score, values=values)
        mark = integer_of(answers[0], *self._options.range)
        if mark is None:
            return Scored(0.0, error=f"the judge gave no mark: {_reason(answers)}")
        return Scored(score_of(mark, self._options), values={"mark": mark})

    def _rubric(self) -> str | None:
        """Return the rubric of the row, "" without one; None if the row lacks a column of it."""
        if self._options.rubric is None:
            return ""
        template = parsed(self._options.rubric)
        if any(self._columns.get(name) in (None, "") for name in template.columns):
            return None
        try:
            return str(template.fill(self._columns))
        except CellError:
            return None


def _reason(answers: Sequence[Answer]) -> str:
    errors = [answer.error or {} for answer in answers if not answer.ok]
    return str(errors[0].get("message") or errors[0].get("code")) if errors else "its answer cannot be read"


def score_of(mark: float, options: EvaluationJudge) -> float:
    """Return the score of a mark: whether it passes, or its place in the range."""
    low, high = options.range
    return float(mark >= options.passing) if options.passing is not None else (mark - low) / (high - low)


def verdict_of(value: Any, options: EvaluationJudge) -> float | None:
    """Return people's verdict as a score of the judge's kind; None if it cannot be read as one."""
    word = str(value).strip().lower()
    if options.against is not None and word in _WORDS:
        return _WORDS[word]
    if options.passing is not None and word in _PASSES:
        return _PASSES[word]
    try:
        mark = float(word)
    except ValueError:
        return None
    if options.against is not None:
        return mark if mark in (LOSS, TIE, WIN) else None
    low, high = options.range
    return score_of(mark, options) if low <= mark <= high else None
