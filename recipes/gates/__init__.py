"""The built-in gates: whether a text passes, decided without a model. Their names are promptfoo's.

Each but `external` has a twin `not-<name>`, which fails what the other passes. In texts, and in lists of them,
`{{column}}` stands for a column of the item: `equals:{{answer}}`. Gates import neither Celery, Ray nor the store.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from batchyard.comparing.patterns import escaped
from batchyard.recipes import Answer, Failure, Gate, Item
from recipes.gates import answers, json_texts, texts
from recipes.gates.texts import filled


def parse(text: str) -> tuple[str, str | None]:
    """Return name and value of `name` or `name:value`. The value is all that follows the first colon."""
    name, colon, value = text.partition(":")
    return name.strip(), value if colon else None


def _one(verb: str) -> Callable[[Any, Item], str]:
    return lambda value, item: f"{verb} {filled(texts.one(value), item)!r}"


def _several(verb: str) -> Callable[[Any, Item], str]:
    return lambda value, item: f"{verb} {', '.join(repr(filled(part, item)) for part in texts.several(value))}"


def _json(verb: str) -> Callable[[Any, Item], str]:
    return lambda value, item: verb if value is None else f"{verb} that follows the schema"


def _edits(value: Any, item: Item) -> str:
    most, text = texts.edits(value)
    return f"be within {most} edits of {filled(text, item)!r}"


_FORBIDDEN: dict[str, Callable[[Any, Item], str]] = {
    "equals": _one("be"),
    "contains": _one("contain"),
    "icontains": _one("contain, in any case,"),
    "contains-any": _several("contain any of"),
    "contains-all": _several("contain all of"),
    "regex": lambda value, item: f"match the regular expression {filled(texts.one(value), item, escaped)!r}",
    "starts-with": _one("start with"),
    "levenshtein": _edits,
    "is-json": _json("be JSON"),
    "contains-json": _json("contain a JSON object or list"),
    "finish-reason": lambda value, item: f"end with {' or '.join(texts.several(value))}",
    "latency": lambda value, item: f"take {answers.seconds(value):g} s or less",
}
"""What the answer must not do, by the gate whose twin fails."""


def _negated(gate: Gate) -> Gate:
    name = f"not-{gate.name}"

    def function(text: str, item: Item, value: Any) -> Failure | None:
        if gate(text, item, value) is not None:
            return None
        return Failure(name, f"The answer must not {_FORBIDDEN[gate.name](value, item)}.")

    return replace(gate, name=name, function=function)


def subject(gate: str, answer: Answer) -> str:
    """Return what a gate judges of an answer: finish reason, engine seconds, or text."""
    name = gate.removeprefix("not-")
    if name == answers.finish_reason.name:
        return answer.finish_reason or ""
    if name == answers.latency.name:
        return "" if answer.seconds is None else str(answer.seconds)
    return answer.text


_GATES = (*texts.GATES, *json_texts.GATES, *answers.GATES)
BUILT_IN: dict[str, Gate] = {gate.name: gate for plain in _GATES for gate in (plain, _negated(plain))}
BUILT_IN[answers.external.name] = answers.external
"""All of them by name."""
LINEAR = frozenset(
    f"{prefix}{gate.name}"
    for gate in (*texts.GATES, *answers.GATES)
    if gate is not texts.levenshtein
    for prefix in ("", "not-")
)
"""Those whose time grows with the text's length alone, so that no other process has to judge them."""
OF_ANSWERS = frozenset(f"{prefix}{gate.name}" for gate in answers.GATES for prefix in ("", "not-")) | {
    answers.external.name
}
"""Those for which a text is not enough."""
