"""How two answers of one request differ."""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import Any

from batchyard.endpoints import responses

SNIPPET = 60
"""Characters that a report shows of two texts from where they differ."""
_VOLATILE = ("id", "created", "created_at", "completed_at", "usage", "system_fingerprint", "batchyard", "model")
"""Members of a response's body that differ from answer to answer."""


@dataclass(frozen=True)
class AnswerDifference:
    """How the second answer of a request differs from the first.

    `gap`: by how much the log-probability of the second answer's first other token is above that of the first's token
    in its place; None if the answers have no log-probabilities.
    """

    custom_id: str
    what: str
    before: str
    after: str
    gap: float | None = None


def difference(
    custom_id: str, request: Mapping[str, Any], before: Mapping[str, Any], after: Mapping[str, Any], tolerance: float
) -> AnswerDifference | None:
    """Return how two answers of a request differ; None if they are equal."""
    vectors = [responses.vectors(body, request) for body in (before, after)]
    if any(vectors):
        most = _apart(*vectors)
        same = most is not None and most <= tolerance
        what = "vectors of other lengths" if most is None else f"vectors {most:.3g} apart"
        return None if same else AnswerDifference(custom_id, what, "", "")
    pairs = list(zip_longest(responses.outputs(before), responses.outputs(after)))
    for number, (old, new) in enumerate(pairs):
        place = f" of output {number}" if len(pairs) > 1 else ""
        if old is None or new is None:
            return AnswerDifference(custom_id, "number of outputs", "", "")
        for name in ("text", "reasoning", "refusal", "tool_calls", "finish_reason"):
            one, other = _plain(getattr(old, name)), _plain(getattr(new, name))
            if one != other:
                start = next(
                    (place for place, pair in enumerate(zip(one, other, strict=False)) if pair[0] != pair[1]),
                    min(len(one), len(other)),
                )
                gap = _gap(new.logprobs, one) if name == "text" else None
                return AnswerDifference(
                    custom_id,
                    f"{name.replace('_', ' ')}{place} from character {start + 1}",
                    one[start : start + SNIPPET],
                    other[start : start + SNIPPET],
                    gap,
                )
    if pairs:
        return None
    first, second = ({key: value for key, value in body.items() if key not in _VOLATILE} for body in (before, after))
    distance = _apart([list(_numbers(first))], [list(_numbers(second))])
    if _shape(first) == _shape(second) and distance is not None and distance <= tolerance:
        return None
    return AnswerDifference(custom_id, "response", json.dumps(first)[:SNIPPET], json.dumps(second)[:SNIPPET])


def _plain(value: Any) -> str:
    """Return a part of an output as text, tool calls without their ids, which are new each time."""
    if isinstance(value, Sequence) and not isinstance(value, str):
        calls = [{key: part for key, part in call.items() if key != "id"} for call in value]
        return json.dumps(calls, sort_keys=True) if calls else ""
    return value or ""


def _gap(logprobs: Any, before: str) -> float | None:
    """Return how much likelier the second answer's first other token was than the first answer's in its place."""
    text = ""
    for token in (logprobs or {}).get("content") or []:
        if not before.startswith(text + token["token"]):
            others = [
                one["logprob"] for one in token.get("top_logprobs") or [] if before.startswith(text + one["token"])
            ]
            return float(token["logprob"] - max(others)) if others else None
        text += token["token"]
    return None


def _apart(before: Sequence[Sequence[float]], after: Sequence[Sequence[float]]) -> float | None:
    """Return the largest distance of two numbers at the same place; None if the lengths differ."""
    if [len(one) for one in before] != [len(one) for one in after]:
        return None
    pairs = (pair for rows in zip(before, after, strict=True) for pair in zip(*rows, strict=True))
    return max((abs(one - other) for one, other in pairs), default=0.0)


def _numbers(value: Any) -> Iterator[float]:
    if isinstance(value, Mapping | list):
        for part in value.values() if isinstance(value, Mapping) else value:
            yield from _numbers(part)
    elif isinstance(value, int | float) and not isinstance(value, bool):
        yield float(value)


def _shape(value: Any) -> Any:
    """Return a JSON value with 0 for each number."""
    if isinstance(value, Mapping):
        return {key: _shape(part) for key, part in value.items()}
    if isinstance(value, list):
        return [_shape(part) for part in value]
    return 0 if isinstance(value, int | float) and not isinstance(value, bool) else value
