"""What of two texts is not compared: case, punctuation, articles, numbers, or the matches of a pattern."""

from __future__ import annotations

import re
import string
from collections.abc import Sequence
from typing import Any

from batchyard.comparing.patterns import compiled
from batchyard.comparing.values import comparable
from batchyard.wording import quoted, suggestion
from recipes.rewards.overlap import ARTICLE, NO_PUNCTUATION

_DIGITS = str.maketrans("", "", string.digits)
_KINDS = ("case", "punctuation", "articles", "numbers")
_PATTERN = "regex:"
_BLANKS = re.compile(r"\s+")


def check(ignore: Sequence[str]) -> None:
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
