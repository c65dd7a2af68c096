"""Extracts: the part of an answer that is compared with those of other answers.

Numbers become one text for all that have one value: 95, 95.0 and 9.5e1 agree. Other texts are stripped.
"""

from collections import deque
from collections.abc import Callable, Iterable
from itertools import islice
from typing import Any

import orjson

from batchyard import json_lines
from batchyard.comparing import numbers
from batchyard.comparing.patterns import compiled
from batchyard.comparing.values import comparable
from batchyard.recipes import field_of
from batchyard.wording import quoted, suggestion

BOXED = "\\boxed{"
_FORMS = {"json": "json:<path>", "regex": "regex:<pattern>", "last_regex": "last_regex:<pattern>"}
"""How extracts with a parameter are written."""


def extract(how: str, text: str) -> str | None:
    """Return what `how` takes of a text, or None. Raises ValueError as `check` does."""
    check(how)
    name, _, parameter = how.partition(":")
    part = _EXTRACTS[name](text, parameter)
    return None if part is None else comparable(part)


def part(how: str | None, text: str) -> str:
    """Return what `how` takes of a text, "" for nothing; the text itself without an extract."""
    return text if how is None else extract(how, text) or ""


def check(how: str) -> None:
    """Raise ValueError if `how` is none of first_line, last_number, boxed or those of _FORMS."""
    name, colon, parameter = how.partition(":")
    if name not in _EXTRACTS:
        raise ValueError(f"No extract is named {quoted(name)}. {suggestion(name, _EXTRACTS, sentence=True)}")
    if (name in _FORMS) != bool(colon and parameter):
        form = _FORMS.get(name, name)
        raise ValueError(f"Extract {name} is written as {form}, not {quoted(how)}.")
    if name in ("regex", "last_regex"):
        compiled(parameter, groups=True)


def _boxed(text: str, _: str) -> str | None:
    r"""Return what the last `\boxed{…}` holds, braces within it in pairs."""
    begin = text.rfind(BOXED)
    depth = 0
    for at in range(begin + len(BOXED) - 1, len(text)) if begin >= 0 else ():
        depth += {"{": 1, "}": -1}.get(text[at], 0)
        if depth == 0:
            return text[begin + len(BOXED) : at]
    return None


def _json(text: str, path: str) -> str | None:
    """Return the value at a path of names and indices with dots between."""
    try:
        value = field_of(json_lines.loads(text), path)
    except (orjson.JSONDecodeError, KeyError):
        return None
    return value if isinstance(value, str) else json_lines.dumps(value, option=orjson.OPT_SORT_KEYS).decode()


def _matched(matches: Iterable[Any]) -> str | None:
    """Return the last of these matches: its first group, or the whole without groups."""
    match = next(iter(deque(matches, maxlen=1)), None)
    return None if match is None else match.group(1 if match.re.groups else 0)


_EXTRACTS: dict[str, Callable[[str, str], str | None]] = {
    "last_number": lambda text, _: None if (number := numbers.last(text)) is None else str(number),
    "first_line": lambda text, _: next((line for line in text.splitlines() if line.strip()), None),
    "boxed": _boxed,
    "json": _json,
    "regex": lambda text, pattern: _matched(islice(compiled(pattern, groups=True).finditer(text), 1)),
    "last_regex": lambda text, pattern: _matched(compiled(pattern, groups=True).finditer(text)),
}
