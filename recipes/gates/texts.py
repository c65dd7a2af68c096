"""Gates over the text as it is: equals, contains, regex, levenshtein and their like."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from rapidfuzz.distance import Levenshtein

from batchyard.comparing.patterns import compiled, escaped
from batchyard.recipes import Failure, Gate, Item, gate
from recipes.gates.columns import PLACE, filled


def one(value: Any) -> str:
    """Return a gate's value as its one text. Raises ValueError if it is none."""
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        raise ValueError(f"needs a text, not {value!r}")
    return str(value)


def several(value: Any) -> list[str]:
    """Return a gate's value as texts: a list, or split at commas. Raises ValueError.

    An empty text is refused: every answer contains it.
    """
    values = value.split(",") if isinstance(value, str) else value
    if not isinstance(values, Sequence) or not values:
        raise ValueError(f"needs texts with commas between, or a list of texts, not {value!r}")
    texts = [one(element).strip() for element in values]
    if "" in texts:
        raise ValueError(f"needs texts that are not empty, not {value!r}")
    return texts


class Edits(NamedTuple):
    """A text, and how many insertions, deletions and replacements another may be away from it."""

    most: int
    text: str


def edits(value: Any) -> Edits:
    """Return the value of levenshtein: `<most edits>:<text>` or {"most", "text"}. Raises ValueError if it is none."""
    most: Any = None
    text: Any = None
    if isinstance(value, str):
        number, _, text = value.partition(":")
        most = int(number) if number.strip().isdecimal() else None
    elif isinstance(value, dict):
        most, text = value.get("most"), value.get("text")
    if isinstance(most, bool) or not isinstance(most, int) or most < 0 or not isinstance(text, str):
        raise ValueError(f"needs the most edits and a text, as in 3:hello, not {value!r}")
    return Edits(most, text)


def pattern(value: Any) -> None:
    """Raise ValueError if the value is no regular expression of RE2."""
    try:
        compiled(PLACE.sub("x", one(value)))
    except ValueError as error:
        raise ValueError(f"is no regular expression of RE2: {error}") from error


@gate("equals", one)
def equals(text: str, item: Item, value: Any) -> Failure | None:
    """Pass the text itself."""
    expected = filled(one(value), item)
    return None if text == expected else Failure("equals", f"The answer is not {expected!r}.")


def _within(name: str, holds: Callable[[str, str], bool], reason: str) -> Gate:
    """Return a gate that passes a text for which `holds(text, value)`."""

    def function(text: str, item: Item, value: Any) -> Failure | None:
        expected = filled(one(value), item)
        return None if holds(text, expected) else Failure(name, f"The answer does not {reason} {expected!r}.")

    return Gate(name, function, one)


contains = _within("contains", lambda text, part: part in text, "contain")
icontains = _within("icontains", lambda text, part: part.casefold() in text.casefold(), "contain, in any case,")
starts_with = _within("starts-with", str.startswith, "start with")


@gate("contains-any", several)
def contains_any(text: str, item: Item, value: Any) -> Failure | None:
    """Pass a text with one of the parts."""
    parts = [filled(part, item) for part in several(value)]
    if any(part in text for part in parts):
        return None
    return Failure("contains-any", f"The answer contains none of {', '.join(map(repr, parts))}.")


@gate("contains-all", several)
def contains_all(text: str, item: Item, value: Any) -> Failure | None:
    """Pass a text with all of the parts."""
    missing = [part for part in (filled(part, item) for part in several(value)) if part not in text]
    return Failure("contains-all", f"The answer does not contain {', '.join(map(repr, missing))}.") if missing else None


@gate("regex", pattern)
def regex(text: str, item: Item, value: Any) -> Failure | None:
    """Pass a text in which the regular expression matches somewhere."""
    expression = filled(one(value), item, escaped)
    if compiled(expression).search(text) is not None:
        return None
    return Failure("regex", f"The answer does not match the regular expression {expression!r}.")


@gate("levenshtein", edits)
def levenshtein(text: str, item: Item, value: Any) -> Failure | None:
    """Pass a text that is at most so many edits away."""
    most, expected = edits(value)
    expected = filled(expected, item)
    if Levenshtein.distance(text, expected, score_cutoff=most) <= most:
        return None
    return Failure("levenshtein", f"The answer is more than {most} edits away from {expected!r}.")


GATES = (equals, contains, icontains, contains_any, contains_all, regex, starts_with, levenshtein)
