"""The tasks the example models learn: problems with one right answer, drawn from a seeded generator.

Every problem belongs to exactly one split, decided by a hash of its content (not of its phrasing), so a held-out
problem never occurs in training, in any wording.
"""

import hashlib
import itertools
import json
import random
import string
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Literal

Split = Literal["train", "held_out"]

HELD_OUT_SHARE = 0.1

SUM_PHRASINGS = (
    "What is {a} + {b}?",
    "{a} + {b} =",
    "Add {a} and {b}.",
    "Calculate the sum of {a} and {b}.",
)
SORT_PHRASINGS = (
    "Sort these numbers: {numbers}",
    "Sort in ascending order: {numbers}",
    "Put these numbers in order, smallest first: {numbers}",
    "What is the ascending order of {numbers}?",
)
# The word is always quoted: a quoted word is spelled letter by letter by the tokenizer, see tokenizer.py.
REVERSE_PHRASINGS = (
    'Reverse the word "{word}".',
    'Spell "{word}" backwards.',
    'Write "{word}" in reverse.',
    'What is "{word}" backwards?',
)
SENTIMENT_PHRASINGS = (
    "Classify the sentiment of this review: {review}",
    "Is this review positive, negative or neutral? {review}",
    "What is the sentiment of the following review? Answer in JSON. {review}",
    "Review: {review}\nSentiment:",
)

POSITIVE = (
    "good", "great", "excellent", "wonderful", "fantastic", "lovely", "amazing", "perfect", "pleasant", "superb",
    "helpful", "impressive",
)  # fmt: skip
NEGATIVE = (
    "bad", "terrible", "awful", "horrible", "poor", "disappointing", "dreadful", "annoying", "useless", "unpleasant",
    "broken", "frustrating",
)  # fmt: skip
NEUTRAL = ("okay", "average", "acceptable", "ordinary", "standard", "unremarkable")
ASPECTS = (
    "food", "service", "room", "staff", "battery", "screen", "sound", "delivery", "price", "design", "camera",
    "keyboard", "breakfast", "location", "packaging", "software",
)  # fmt: skip
INTENSIFIERS = ("", "really ", "very ", "quite ", "so ")
NEGATIONS = ("was not {adjective}", "was never {adjective}", "was hardly {adjective}", "was anything but {adjective}")

# What follows the problem, as further messages of the user. An answer always begins a line, so that a reversed word is
# spelled letter by letter there, too.
CHECK_PHRASINGS = (
    "Check this answer:\n{answer}",
    "Is this answer right? Say PASS or FAIL.\n{answer}",
    "Review this answer. The first line is PASS or FAIL.\n{answer}",
    "Proposed answer:\n{answer}\nIs it right?",
)
FIX_PHRASINGS = (
    ("This answer is wrong:\n{answer}\n{remark}",),
    ("Your answer:\n{answer}\n{remark} Answer again.",),
    ("Your answer:\n{answer}", "{remark} Answer again."),
    ("Proposed answer:\n{answer}", "FAIL\n{remark}"),
)
REMARKS = ("It is wrong.", "That is not right.", "This answer is wrong.", "Check it again.")
DIGIT, ORDER, NUMBER, LETTER, LETTERS, MISSING, SENTIMENT, OTHER = MISTAKES = (
    "One digit is wrong.",
    "The order is wrong.",
    "One number is wrong.",
    "One letter is wrong.",
    "The letters are in the wrong order.",
    "Something is missing.",
    "The sentiment is wrong.",
    "It answers another question.",
)

SYSTEM_PROMPTS = (
    "You are a helpful assistant.",
    "Answer with the result only.",
    "You are a careful assistant. Answer briefly.",
    "You solve small problems. Give only the answer.",
    "Follow the instructions of the user.",
)
CHECK_SYSTEM_PROMPTS = (
    "You check answers. Say PASS or FAIL.",
    "You review the answers of others. The first line is PASS or FAIL.",
)


@dataclass(frozen=True)
class Problem:
    """One question with its only right answer.

    `content` is what the question is about, apart from its wording; it decides the split. `further` are messages of
    the user after the first. Of a problem that is checked or fixed, `about` is the task, which decides the split as if
    the problem stood alone, `proposed` the answer that the messages give, and `right` the right one.
    """

    task: str
    content: str
    prompt: str
    answer: str
    further: tuple[str, ...] = ()
    about: str | None = None
    proposed: str = ""
    right: str = ""

    @property
    def texts(self) -> tuple[str, ...]:
        """All messages of the user."""
        return self.prompt, *self.further

    @property
    def split(self) -> Split:
        """`held_out` for about a tenth of all contents, `train` for the rest."""
        digest = hashlib.blake2b(f"{self.about or self.task} {self.content}".encode(), digest_size=4).digest()
        return "held_out" if int.from_bytes(digest) < HELD_OUT_SHARE * 2**32 else "train"


def sum_problem(rng: random.Random) -> Problem:
    """Two numbers of 1 to 3 digits; the answer is their sum in decimal."""
    a, b = (rng.randrange(10 ** rng.choice((1, 2, 2, 3, 3, 3))) for _ in range(2))
    prompt = rng.choice(SUM_PHRASINGS).format(a=a, b=b)
    return Problem("sum", f"{min(a, b)} {max(a, b)}", prompt, str(a + b))


def sort_problem(rng: random.Random) -> Problem:
    """3 to 6 different numbers below 100; the answer lists them ascending, separated by a comma and a space."""
    numbers = rng.sample(range(100), rng.randint(3, 6))
    answer = ", ".join(map(str, sorted(numbers)))
    return Problem("sort", answer, rng.choice(SORT_PHRASINGS).format(numbers=", ".join(map(str, numbers))), answer)


def invented_word(rng: random.Random) -> str:
    """3 to 8 lower-case letters, half of the time pronounceable."""
    length = rng.randint(3, 8)
    if rng.random() < 0.5:
        return "".join(rng.choices("abcdefghijklmnopqrstuvwxyz", k=length))
    kinds = itertools.cycle(rng.choice((("bcdfghjklmnprstvwz", "aeiou"), ("aeiou", "bcdfghklmnprst"))))
    return "".join(rng.choice(next(kinds)) for _ in range(length))


def reverse_problem(rng: random.Random) -> Problem:
    """An invented word of 3 to 8 letters; the answer is the word from its last letter to its first."""
    word = invented_word(rng)
    return Problem("reverse", word, rng.choice(REVERSE_PHRASINGS).format(word=word), word[::-1])


def _clause(rng: random.Random) -> tuple[str, int]:
    """A statement about one aspect and its polarity: 1, 0 or -1."""
    polarity = rng.choice((1, 1, 0, -1, -1))
    adjective = rng.choice({1: POSITIVE, 0: NEUTRAL, -1: NEGATIVE}[polarity])
    if polarity and rng.random() < 0.4:
        polarity, verb = -polarity, rng.choice(NEGATIONS).format(adjective=adjective)
    else:
        verb = f"was {rng.choice(INTENSIFIERS)}{adjective}"
    return f"the {rng.choice(ASPECTS)} {verb}", polarity


def sentiment_problem(rng: random.Random) -> Problem:
    """A review of one or two clauses; the answer is a JSON object with the key `sentiment`.

    A negated adjective counts as its opposite. Two clauses that contradict each other make a neutral review; beside a
    neutral clause, the other one decides.
    """
    review, polarity = _clause(rng)
    if rng.random() < 0.6:
        second, other = _clause(rng)
        joint = " but " if polarity * other < 0 else rng.choice((" and ", ", and ", "; "))
        review, polarity = review + joint + second, polarity + other
    review = review.capitalize() + "."
    sentiment = "positive" if polarity > 0 else "negative" if polarity < 0 else "neutral"
    prompt = rng.choice(SENTIMENT_PHRASINGS).format(review=review)
    return Problem("sentiment", review, prompt, json.dumps({"sentiment": sentiment}))


TASKS: dict[str, Callable[[random.Random], Problem]] = {
    "sum": sum_problem,
    "sort": sort_problem,
    "reverse": reverse_problem,
    "sentiment": sentiment_problem,
}


def _any_problem(rng: random.Random) -> Problem:
    return TASKS[rng.choice(list(TASKS))](rng)


def _neighbours_swapped(parts: list[str], rng: random.Random) -> list[str]:
    """The parts with two neighbours in each other's place."""
    place = rng.randrange(len(parts) - 1)
    return [*parts[:place], parts[place + 1], parts[place], *parts[place + 2 :]]


def _one_replaced(parts: list[str], rng: random.Random, changed: Callable[[str], str]) -> list[str]:
    place = rng.randrange(len(parts))
    return [*parts[:place], changed(parts[place]), *parts[place + 1 :]]


def _one_missing(parts: list[str], rng: random.Random) -> list[str]:
    place = rng.randrange(len(parts))
    return [*parts[:place], *parts[place + 1 :]]


def _mistake(problem: Problem, rng: random.Random) -> tuple[str, str]:
    """An answer with a mistake, and a remark that says what it is; now and then the answer is the right one still."""
    if rng.random() < 0.1:
        return _any_problem(rng).answer, OTHER
    kind, right = rng.randrange(3), problem.answer
    if problem.task == "sum":
        if kind == 0 and len(right) > 1:
            return str(int("".join(_neighbours_swapped(list(right), rng)))), ORDER
        off = rng.choice((-1, 1)) * 10 ** rng.randrange(len(right))  # by one in some digit, as of a lost carry
        return str(abs(int(right) + off)), DIGIT
    if problem.task == "sort":
        numbers = right.split(", ")
        if kind == 0:
            return ", ".join(_one_missing(numbers, rng)), MISSING
        if kind == 1:
            numbers = _one_replaced(numbers, rng, lambda number: str(abs(int(number) + rng.choice((-1, 1)))))
            return ", ".join(numbers), NUMBER
        return ", ".join(_neighbours_swapped(numbers, rng)), ORDER
    if problem.task == "reverse":
        if kind == 0:
            return "".join(_one_missing(list(right), rng)), MISSING
        if kind == 1:
            return "".join(_one_replaced(list(right), rng, lambda _: rng.choice(string.ascii_lowercase))), LETTER
        return "".join(_neighbours_swapped(list(right), rng)), LETTERS
    return json.dumps({"sentiment": rng.choice(("positive", "negative", "neutral"))}), SENTIMENT


def wrong_answer(problem: Problem, rng: random.Random) -> tuple[str, str]:
    """A believable wrong answer to a problem of TASKS, and a remark that says what is wrong with it.

    Off by one in a digit, neighbours swapped, a letter or number changed or missing, another sentiment; one in ten is
    the answer to another problem.
    """
    while (mistake := _mistake(problem, rng))[0] == problem.answer:
        pass
    return mistake


def check_problem(rng: random.Random) -> Problem:
    """A problem of another task and an answer to it, wrong in half of the cases; PASS or FAIL."""
    problem = _any_problem(rng)
    wrong = rng.random() < 0.5
    answer = wrong_answer(problem, rng)[0] if wrong else problem.answer
    further = (rng.choice(CHECK_PHRASINGS).format(answer=answer),)
    return replace(
        problem,
        task="check",
        answer="FAIL" if wrong else "PASS",
        further=further,
        about=problem.task,
        proposed=answer,
        right=problem.answer,
    )


def fix_problem(rng: random.Random) -> Problem:
    """A problem of another task, a wrong answer and a remark: what is wrong, or only that it is, or strange words."""
    problem = _any_problem(rng)
    answer, mistake = wrong_answer(problem, rng)
    strange = " ".join(invented_word(rng) for _ in range(rng.randint(2, 6)))
    remark = rng.choice((mistake, mistake, rng.choice(REMARKS), rng.choice(REMARKS), strange))
    further = tuple(text.format(answer=answer, remark=remark) for text in rng.choice(FIX_PHRASINGS))
    return replace(problem, task="fix", further=further, about=problem.task, proposed=answer, right=problem.answer)


REVIEW_TASKS: dict[str, Callable[[random.Random], Problem]] = {"check": check_problem, "fix": fix_problem}
"""Tasks about an answer to a problem of TASKS."""


def draw(task: str, split: Split, rng: random.Random) -> Problem:
    """A random problem of one split. Raises KeyError for an unknown task."""
    make = (TASKS | REVIEW_TASKS)[task]
    while (problem := make(rng)).split != split:
        pass
    return problem


def held_out(task: str, count: int, seed: int) -> list[Problem]:
    """`count` held-out problems with different messages, the same for the same seed."""
    rng, problems = random.Random(f"{task} {seed}"), {}
    while len(problems) < count:
        problem = draw(task, "held_out", rng)
        problems[problem.texts] = problem
    return list(problems.values())


def frame_texts() -> Iterator[str]:
    """Every fixed text of the tasks, numbers and words to reverse left out: what the vocabulary is made of."""
    for phrasing in (*SUM_PHRASINGS, *SORT_PHRASINGS, *REVERSE_PHRASINGS, *SENTIMENT_PHRASINGS):
        yield phrasing.format(a="1", b="1", numbers="1, 1", word="x", review="")
    yield from (*SYSTEM_PROMPTS, *CHECK_SYSTEM_PROMPTS, *MISTAKES, *REMARKS, "PASS", "FAIL")
    for phrasing in (*CHECK_PHRASINGS, *itertools.chain(*FIX_PHRASINGS)):
        yield phrasing.format(answer="1", remark="1")
    for adjective in (*POSITIVE, *NEGATIVE, *NEUTRAL):
        yield f" was {adjective}."
    for text in (*ASPECTS, *INTENSIFIERS, *NEGATIONS):
        yield f" {text.format(adjective='')}"
    yield "The food; the food, and the food but. The"
    for sentiment in ("positive", "negative", "neutral"):
        yield json.dumps({"sentiment": sentiment})
