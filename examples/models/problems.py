"""The tasks the example models learn: problems with one right answer, drawn from a seeded generator.

Every problem belongs to exactly one split, decided by a hash of its content (not of its phrasing), so a held-out
problem never occurs in training, in any wording.
"""

import hashlib
import itertools
import json
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
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

SYSTEM_PROMPTS = (
    "You are a helpful assistant.",
    "Answer with the result only.",
    "You are a careful assistant. Answer briefly.",
    "You solve small problems. Give only the answer.",
    "Follow the instructions of the user.",
)


@dataclass(frozen=True)
class Problem:
    """One question with its only right answer.

    `content` is what the question is about, apart from its wording; it decides the split.
    """

    task: str
    content: str
    prompt: str
    answer: str

    @property
    def split(self) -> Split:
        """`held_out` for about a tenth of all contents, `train` for the rest."""
        digest = hashlib.blake2b(f"{self.task} {self.content}".encode(), digest_size=4).digest()
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


def draw(task: str, split: Split, rng: random.Random) -> Problem:
    """A random problem of one split. Raises KeyError for an unknown task."""
    while (problem := TASKS[task](rng)).split != split:
        pass
    return problem


def held_out(task: str, count: int, seed: int) -> list[Problem]:
    """`count` held-out problems with different prompts, the same for the same seed."""
    rng, problems = random.Random(f"{task} {seed}"), {}
    while len(problems) < count:
        problem = draw(task, "held_out", rng)
        problems[problem.prompt] = problem
    return list(problems.values())


def frame_texts() -> Iterator[str]:
    """Every fixed text of the tasks, numbers and words to reverse left out: what the vocabulary is made of."""
    for phrasing in (*SUM_PHRASINGS, *SORT_PHRASINGS, *REVERSE_PHRASINGS, *SENTIMENT_PHRASINGS):
        yield phrasing.format(a="1", b="1", numbers="1, 1", word="x", review="")
    yield from SYSTEM_PROMPTS
    for adjective in (*POSITIVE, *NEGATIVE, *NEUTRAL):
        yield f" was {adjective}."
    for text in (*ASPECTS, *INTENSIFIERS, *NEGATIONS):
        yield f" {text.format(adjective='')}"
    yield "The food; the food, and the food but. The"
    for sentiment in ("positive", "negative", "neutral"):
        yield json.dumps({"sentiment": sentiment})
