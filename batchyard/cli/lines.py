"""Changes lines of request files in place, as bytes: the server judges what a line is."""

import json
import re
from collections.abc import Iterator
from typing import NamedTuple

_TOKEN = re.compile(rb'"(?:[^"\\]|\\.)*"|[{}\[\],:]|[^\s{}\[\],:"]+')
_OPENING, _CLOSING = (b"{", b"["), (b"}", b"]")


class _Member(NamedTuple):
    """A member of an object: its key, and where its value begins and ends in the line."""

    depth: int
    key: object
    begin: int
    end: int


def first_value(raw: bytes) -> object:
    """Return the JSON value of a line; None for one that has none, which validation reports."""
    try:
        return json.loads(raw)
    except (ValueError, RecursionError):
        return None


def with_model(line: bytes, model: str) -> bytes:
    """Return the line of a request with another `body.model`, and not one other byte changed.

    A line that is no request stays as it is, and so does one that names body or model twice.
    """
    members = list(_members(line))
    bodies = [member for member in members if member.depth == 1 and member.key == "body"]
    if len(bodies) != 1 or line[bodies[0].begin : bodies[0].begin + 1] != b"{":
        return line
    (body,) = bodies
    models = [
        member
        for member in members
        if member.depth == 2 and member.key == "model" and body.begin < member.begin < body.end
    ]
    value = json.dumps(model).encode()
    if len(models) == 1:
        return line[: models[0].begin] + value + line[models[0].end :]
    if models:
        return line
    is_empty = line[body.begin + 1 : body.end - 1].strip() == b""
    return line[: body.begin + 1] + b'"model": ' + value + (b"" if is_empty else b", ") + line[body.begin + 1 :]


def _members(line: bytes) -> Iterator[_Member]:
    """Yield members of the line's object and of its direct child objects, without recursion."""
    depth, key, is_value = 0, b"", False
    begins: dict[int, tuple[bytes, int]] = {}
    for match in _TOKEN.finditer(line):
        token = match[0]
        if is_value and token in _OPENING:
            begins[depth] = key, match.start()
        elif is_value:
            yield _Member(depth, first_value(key), match.start(), match.end())
        is_value = token == b":" and depth <= 2
        if token in _OPENING:
            depth += 1
        elif token in _CLOSING:
            depth -= 1
            if depth in begins:
                name, begin = begins.pop(depth)
                yield _Member(depth, first_value(name), begin, match.end())
        elif token[:1] == b'"' and depth <= 2:
            key = token
