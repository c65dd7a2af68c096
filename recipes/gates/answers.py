"""Gates over what is known of an answer beside its text: finish-reason, latency, external.

The Check of the first two has that as its text: the finish reason, or the seconds in the engine
(`recipes.gates.subject`). With `external` someone else decides, a CI or a person. Recipe refine waits for the verdict;
no process can.
"""

import re
from typing import Any

from batchyard.recipes import Failure, Item, gate
from recipes.gates.texts import several

MAX_NAME = 100
"""Characters of the name of an external gate."""
_TIME = re.compile(r"(\d+(?:\.\d+)?) *(ms|s)")


def seconds(value: Any) -> float:
    """Return the seconds of a time with its unit, `500ms` or `2s`. Raises ValueError for anything else.

    promptfoo counts in ms, and all else here in seconds, so a number alone could mean either.
    """
    match = _TIME.fullmatch(value.strip()) if isinstance(value, str) else None
    if match is None:
        raise ValueError(f"needs a time with its unit, as in 500ms or 2s, not {value!r}")
    return float(match[1]) / (1000 if match[2] == "ms" else 1)


@gate("finish-reason", several)
def finish_reason(text: str, item: Item, value: Any) -> Failure | None:
    """Pass an answer that has ended for one of these reasons: `stop`, `length`."""
    allowed = several(value)
    if text in allowed:
        return None
    return Failure("finish-reason", f"The answer ended with {text or 'no reason'}, not with {' or '.join(allowed)}.")


@gate("latency", seconds)
def latency(text: str, item: Item, value: Any) -> Failure | None:
    """Pass an answer that took at most this time in the engine."""
    most = seconds(value)
    if not text:
        return Failure("latency", "How long the answer took is not known.")
    return None if float(text) <= most else Failure("latency", f"The answer took {float(text):.3g} s, not {most:g} s.")


def external_name(value: Any) -> str:
    """Return the name of an external gate. Raises ValueError if the value is none."""
    if not isinstance(value, str) or not value.strip() or len(value) > MAX_NAME:
        raise ValueError(f"needs the name of what gives the verdict, as in external:ci, not {value!r}")
    return value.strip()


@gate("external", external_name)
def external(text: str, item: Item, value: Any) -> Failure | None:
    """Refuse to decide."""
    raise ValueError(f"only a Wait gets the verdict of {value!r}")


GATES = (finish_reason, latency)
