"""Reward `choice`: the letter that an answer chooses."""

import re
from collections.abc import Mapping
from typing import Any

from batchyard.comparing.values import comparable
from batchyard.recipes import reward
from recipes.rewards.comparing import GROUND_TRUTH

CHOICES = "choices"
"""Column with the texts of the choices, if a row has them: the ground truth may be the text, or its place from 0."""
_CAPITAL = r"[A-HJ-Z](?![A-Za-z'\u2019])"
_SMALL = r"[b-hj-z](?!['\u2019\w]|[-.]\w)"
_WORD = r"[aiI](?=[).:\]}*;!?%s]+(?:\s|$)|\s?$| is\b)"
"""A letter that is a word as well, unless something ends behind it."""
_LETTER = rf"[(\[*]* ?({_CAPITAL}|{_SMALL}|{_WORD})"
_FIRST = re.compile(rf"{_LETTER % ''} ?(?:[).:\]*,]|$)")
_SAYING = r"(?i:\b(?:answer|choice|option)\b(?!\()(?: (?:is|would be)){0,2}) ?:? ?"
_SAYS = re.compile(_SAYING + _LETTER % ",")
_BRACKETED = re.compile(
    r"(?<!\w)(?:[(\[]{1,3}([A-Za-hj-z])[)\]]|\*{1,3}([B-HJ-Zb-hj-z])[.:]?\*|(?<![(\[])([b-hj-z])\))(?!\w)"
)
_ALONE = re.compile(r"(?<![A-Za-z'\u2019])([B-HJ-Z])(?![A-Za-z'\u2019])")  # A and I are words
_BLANKS = re.compile(r"\s+")


def chosen(text: str) -> str | None:
    r"""Return the letter that a text chooses; None without one.

    What says so comes first ("the answer is (C)", `\boxed{C}`), then a letter at the beginning, then one in brackets or
    alone. The last of a form counts, since models think before they answer.
    """
    first_line = _BLANKS.sub(" ", text.strip().partition("\n")[0])
    plain = _BLANKS.sub(" ", text.replace("\\boxed{", "answer: ("))
    said = _SAYS.findall(plain)
    first = _FIRST.match(first_line)
    bracketed = ["".join(forms) for forms in _BRACKETED.findall(plain)]
    letters = said or ([first[1]] if first else []) or bracketed or _ALONE.findall(plain)
    if letters:
        return str(letters[-1]).upper()
    bare = plain.strip("().:*[] ").upper()
    return bare if len(bare) == 1 and bare.isalpha() else None


def letter_of(ground_truth: Any, choices: Any) -> str:
    """Return the letter of a right answer: it is one, or with choices the text or the place of one of these."""
    if isinstance(choices, list | tuple):
        texts = [comparable(text) for text in choices]
        place = ground_truth if isinstance(ground_truth, int | float) and not isinstance(ground_truth, bool) else None
        if place in range(len(texts)):  # 1.0 too: pandas makes it of a whole number beside an empty cell
            return chr(ord("A") + int(place or 0))
        if comparable(ground_truth) in texts:
            return chr(ord("A") + texts.index(comparable(ground_truth)))
    return comparable(ground_truth).strip("().").upper()


@reward("choice", columns=GROUND_TRUTH)
def choice(
    data_source: str, solution_str: str, ground_truth: Any, extra_info: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """1 if the answer chooses the letter of the ground truth."""
    choices = (extra_info or {}).get(CHOICES)
    letter = chosen(solution_str)
    return {"score": float(letter is not None and letter == letter_of(ground_truth, choices)), "pred": letter}
