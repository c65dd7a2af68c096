"""Gates over the text as it is: equals, contains, regex, levenshtein and their like.

Their values may name the item's columns: `{{answer}}`, or `{{reward_model.ground_truth}}` for a field within.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from rapidfuzz.distance import Levenshtein

from batchyard.comparing.patterns import compiled, escaped
from batchyard.recipes import Failure, Gate, Item, field_of, gate

PLACE = re.compile(r"\{\{ *([^{} ]+) *\}\}")


def filled(text: str, item: Item, quote: Callable[[str], str] = str) -> str:
    """Return the text with columns for `{{column}}`, escaped by `quote`. Raises KeyError for an unknown one."""
    return PLACE.sub(lambda place: quote(str(_value(item.columns, place[1]))), text)


def named_columns(value: Any) -> list[str]:
    """Return the columns that a gate's value names: in a text, a list, or an object's `text`."""
    if isinstance(value, str):
        return PLACE.findall(value)
    inner = [value.get("text")] if isinstance(value, Mapping) else value if isinstance(value, list) else []
    return [name for element in inner for name in named_columns(element)]


def _value(columns: Mapping[str, Any], path: str) -> Any:
    try:
        return field_of(columns, path)
    except KeyError:
        there = ", ".join(columns) or "none"
        raise KeyError(f"the item has no column {path!r}; its columns: {there}") from None


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


def edits(value: Any) -> tuple[int, str]:
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
    return most, text


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
