"""Wording of messages: quote users' text, cut to a length, and suggest the nearest valid name."""

import difflib
import re
from collections.abc import Iterable, Mapping
from typing import Any

MAX_MESSAGE = 350
"""Characters of one message in a batch's `errors`."""
MAX_NAME = 100
"""Characters of a name, a parameter or a value that a message repeats."""
MAX_LIST = 200
"""Characters of a list of names that a message repeats."""
CLOSE = 0.6
"""How alike two names are at least if one is suggested for the other, from 0 to 1."""
_SHORT = 3
"""Characters of the shortest beginning of a name that is taken for the name."""
PLACE = re.compile(r"\{([^{}]+)\}")
"""A name in braces, in a template of prompts."""
NEWER = "models.toml names it, but it is not in force: run `batchyard models reload`, or add it again if it was removed"
"""The remedy for a model that a server does not serve, though its models.toml names it."""

AFTER_DEATH = {
    "starts_again": "The engine starts again.",
    "runs_again": "They run again.",
    "runs_alone": "They run again, with nothing else in the engine, in halves until the one that kills it is found.",
    "request_fails": "That request killed it each time, so it is answered with an error.",
    "ends_run": "The run ended. It is tried again after a pause.",
}
"""What happens after the death of an engine, by `batchyard.statuses.AfterDeath`."""


def cut(text: str, limit: int) -> str:
    """Return the text, its end replaced by `...` if it has more than `limit` characters."""
    return text if len(text) <= limit else f"{text[: limit - 3]}..."


def quoted(text: str) -> str:
    """Return the text as a Python literal, without control characters, of at most MAX_NAME characters."""
    return cut(repr(text[:MAX_NAME]), MAX_NAME)


def nearest(name: str, candidates: Iterable[str], cutoff: float = CLOSE) -> str | None:
    """Return the candidate most similar to `name`, ignoring case; None if none is similar.

    `cutoff`: how alike the two are at least, from 0 to 1. A candidate that begins with `name` is similar, too.
    """
    folded, by_folded = name.casefold(), {candidate.casefold(): candidate for candidate in candidates}
    matches = difflib.get_close_matches(folded, by_folded, n=1, cutoff=cutoff)
    if not matches and len(folded) >= _SHORT:
        matches = [candidate for candidate in by_folded if candidate.startswith(folded)]
    return by_folded[matches[0]] if matches else None


def suggestion(name: str, candidates: Iterable[str], form: str = "{!r}", *, sentence: bool = False) -> str:
    """Return the remedy for an unknown name: the candidate that is probably meant, else all of them.

    `form`: how a candidate is written, a format string. `sentence`: begin with a capital letter, and punctuate the end.
    """
    names = list(candidates)
    close = nearest(name, names)
    if close is not None:
        return f"{'D' if sentence else 'd'}id you mean {form.format(close)}?"
    return f"{'A' if sentence else 'a'}vailable: {cut(', '.join(names), MAX_LIST) or 'none'}{'.' if sentence else ''}"


def hint(name: str, candidates: Iterable[str], cutoff: float = CLOSE) -> str:
    """Return the end of a message about an unknown name: the nearest candidate; empty if none reaches `cutoff`."""
    close = nearest(name, candidates, cutoff)
    return "" if close is None else f"; did you mean {close!r}?"


def unsupported(name: str, value: Any, choices: Iterable[str]) -> str:
    """Return OpenAI's message about a parameter that has none of the supported values."""
    return f"Invalid {name}: {cut(str(value), MAX_NAME)}. Supported values: {', '.join(map(repr, choices))}."


def with_code(message: str, code: object) -> str:
    """Return a message that names its code: exceptions of clients show an error's message and nothing else of it."""
    if not isinstance(code, str) or code.replace("_", " ") in message.lower().replace("_", " "):
        return message
    return f"{message} ({code})"


def without_code(message: str, code: object) -> str:
    """Return a message without the code that `with_code` has added."""
    return message.removesuffix(f" ({code})")


FLAWS = {
    "cut_off": "cut off at their limit of tokens",
    "empty": "empty",
    "invalid": "not in the form that was asked for",
    "looped": "ended because they repeated themselves",
}
"""What may be wrong with an answer, by the name of its count, and how it is said."""
REMEDIES = {
    "batch_expired": "Retry it with a longer completion window or a higher priority.",
    "batch_cancelled": "Retry it.",
    "request_timeout": "Lower max_tokens or raise BATCHYARD_REQUEST_TIMEOUT, then retry.",
    "engine_died": "It ended its engine each time: shorten the prompt or lower max_tokens, then retry it corrected.",
    "engine_unavailable": "Repair the engine (`batchyard doctor`, `batchyard logs`), then retry.",
    "model_not_found": "Add the model to models.toml and retry, or name another model and retry it corrected.",
    "context_length_exceeded": "Shorten the prompt, lower max_tokens or raise the model's max_model_len, then retry.",
    "invalid_json_line": "Write each request as one JSON object on one line.",
    "line_too_long": "Shorten the line or raise BATCHYARD_MAX_LINE_BYTES.",
    "unsupported_parameter": "Remove the parameter or choose a model that supports it.",
    "duplicate_custom_id": "Give each request its own custom_id.",
}
"""What people do about a failed request, by its code."""
PLAN_SHARES = {
    "failed": "failed",
    "stuck": "stuck",
    "cut_off": "cut off",
    "refused": "refused",
    "empty": "empty",
    "invalid": "not in the form asked for",
    "looped": "repeating",
    "wrong": "wrong",
}
"""The shares that a plan forecasts, and how they are said."""


def flaws(counted: Mapping[str, int], before: str = "") -> str:
    """Return what is said of answers with flaws; empty if there are none."""
    said = ", ".join(f"{number:,} {what}" for name, what in FLAWS.items() if (number := counted.get(name)))
    return said and before + said


def remedy(code: str | None, passing: bool) -> str:
    """Return what to do about a failed request. `passing`: another try may succeed."""
    default = "Retry: another try may succeed." if passing else "Correct the request as the message says, then retry."
    return REMEDIES.get(code or "", default)


def column_order(names: Iterable[str]) -> str:
    """Return what is said of the order in which all columns of a table stand in prompts."""
    return f"columns of {{*}}: {', '.join(names)}"


def fill(template: str, values: Mapping[str, Any]) -> str:
    """Replace each name in braces by its value. Raises KeyError for one without."""
    return PLACE.sub(lambda match: str(values[match[1]]), template)


def count(number: int, noun: str) -> str:
    """Return the number with its noun, such as "1 segment" or "no segments"."""
    return f"{f'{number:,}' if number else 'no'} {noun}{'' if number == 1 else 's'}"


def live_share(model: str, share: float) -> str:
    """Say what live requests take of a model's engines, as people read it on a batch that shares them."""
    part = "less than 1" if share < 0.01 else f"about {100 * share:.0f}"
    return f"live requests take {part} % of {model}'s time"
