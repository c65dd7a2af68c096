"""Asking a sample of a batch's requests again, and comparing the answers."""

import json
import random
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from itertools import zip_longest
from pathlib import Path
from typing import Any

from batchyard import json_lines
from batchyard.client.api import ApiClient, uploaded
from batchyard.endpoints import responses
from batchyard.errors import ConfigurationError
from batchyard.shares import share_bounds
from batchyard.statuses import TERMINAL

LOGPROBS = 5
SNIPPET = 60
"""Characters that a report shows of two texts from where they differ."""
_VOLATILE = ("id", "created", "created_at", "completed_at", "usage", "system_fingerprint", "batchyard", "model")
"""Members of a response's body that differ from answer to answer."""


@dataclass(frozen=True)
class Difference:
    """How the second answer of a request differs from the first.

    `gap`: by how much the log-probability of the second answer's first other token is above that of the first's token
    in its place; None if the answers have no log-probabilities.
    """

    custom_id: str
    what: str
    before: str
    after: str
    gap: float | None = None


@dataclass
class Comparison:
    """What became of the requests that were asked again. `low` and `high` bound the share of all that would differ."""

    batch_id: str
    again_id: str
    requests: int
    asked: int
    equal: int = 0
    differences: list[Difference] = field(default_factory=list)
    failed: list[str] = field(default_factory=list)
    changes: list[str] = field(default_factory=list)
    low: float = 0.0
    high: float = 1.0

    @property
    def document(self) -> dict[str, Any]:
        return asdict(self)


def begin(
    server: ApiClient,
    batch: Mapping[str, Any],
    *,
    sample: int,
    seed: int,
    model: str | None = None,
    logprobs: bool = False,
    **fields: Any,
) -> dict[str, Any]:
    """Create a batch of a uniform sample of the requests with an answer, in another order, and return it.

    Args:
        sample: how many requests; all if the batch has fewer answers.
        model: ask this one; None for those that have answered.
        logprobs: ask for log-probabilities, too, for chat completions.
        fields: others of POST /v1/batches.

    Raises ConfigurationError: the batch has not ended, has no answers, or its files are gone.
    """
    answered = batch["request_counts"]["completed"]
    if batch["status"] not in TERMINAL or not batch["output_file_id"] or not answered:
        raise ConfigurationError(f"{batch['id']} is {batch['status']} and has no answers to verify")
    if server.find_file(batch["input_file_id"]) is None:
        raise ConfigurationError(f"the input of {batch['id']} was deleted or has expired")
    chance = random.Random(seed)
    chosen = set(chance.sample(range(answered), min(sample, answered)))
    lines = enumerate(server.lines(batch["output_file_id"]))
    custom_ids = {json_lines.loads(line)["custom_id"] for number, line in lines if number in chosen}
    requests = []
    for line in server.lines(batch["input_file_id"]):
        if (request := _request(line)).get("custom_id") in custom_ids:
            if model is not None:
                request["body"]["model"] = model
            if logprobs:
                request["body"] |= {"logprobs": True, "top_logprobs": LOGPROBS}
            requests.append(json_lines.dumps(request) + b"\n")
    chance.shuffle(requests)
    with tempfile.TemporaryDirectory(prefix="batchyard-") as folder:
        file = Path(folder) / f"verify-{batch['id']}.jsonl"
        file.write_bytes(b"".join(requests))
        metadata = {"verifies": batch["id"]}
        with uploaded(server, server.upload(file)) as file_id:
            return server.create(file_id, endpoint=batch["endpoint"], metadata=metadata, **fields)


def _request(line: bytes) -> dict[str, Any]:
    try:
        request = json_lines.loads(line)
    except ValueError:
        return {}
    return request if isinstance(request, dict) else {}


def compare(
    server: ApiClient, batch: Mapping[str, Any], again: Mapping[str, Any], *, tolerance: float = 0.0
) -> Comparison:
    """Compare the answers of an ended batch of `begin` with those of the first batch.

    `tolerance`: by how much numbers of embeddings and scores may differ.

    Raises ConfigurationError: answers of the second batch were not computed anew.
    """
    requests = dict(_asked(server, again))
    copies = len(requests) - len({json_lines.dumps(body) for body in requests.values()})
    if again["batchyard"]["shared"]["requests"] > copies:
        remedy = "it gives the first answers again, so switch it off and verify again"
        raise ConfigurationError(f"answers of {again['id']} came from the project's result cache: {remedy}")
    result = Comparison(
        batch_id=batch["id"],
        again_id=again["id"],
        requests=batch["request_counts"]["completed"],
        asked=len(requests),
        changes=_changes(_manifest(server, batch), _manifest(server, again)),
    )
    after = dict(_bodies(server, again["output_file_id"])) if again["output_file_id"] else {}
    for custom_id, body in _bodies(server, batch["output_file_id"]):
        if custom_id not in requests:
            continue
        if custom_id not in after:
            result.failed.append(custom_id)
        elif (found := difference(custom_id, requests[custom_id], body, after[custom_id], tolerance)) is None:
            result.equal += 1
        else:
            result.differences.append(found)
    answered = result.equal + len(result.differences)
    result.low, result.high = share_bounds(len(result.differences), answered, result.requests)
    return result


def difference(
    custom_id: str, request: Mapping[str, Any], before: Mapping[str, Any], after: Mapping[str, Any], tolerance: float
) -> Difference | None:
    """Return how two answers of a request differ; None if they are equal."""
    vectors = [responses.vectors(body, request) for body in (before, after)]
    if any(vectors):
        most = _apart(*vectors)
        same = most is not None and most <= tolerance
        what = "vectors of other lengths" if most is None else f"vectors {most:.3g} apart"
        return None if same else Difference(custom_id, what, "", "")
    pairs = list(zip_longest(responses.outputs(before), responses.outputs(after)))
    for number, (old, new) in enumerate(pairs):
        place = f" of output {number}" if len(pairs) > 1 else ""
        if old is None or new is None:
            return Difference(custom_id, "number of outputs", "", "")
        for name in ("text", "reasoning", "refusal", "tool_calls", "finish_reason"):
            one, other = _plain(getattr(old, name)), _plain(getattr(new, name))
            if one != other:
                start = _first_difference(one, other)
                gap = _gap(new.logprobs, one) if name == "text" else None
                return Difference(
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
    return Difference(custom_id, "response", json.dumps(first)[:SNIPPET], json.dumps(second)[:SNIPPET])


def _plain(value: Any) -> str:
    """Return a part of an output as text, tool calls without their ids, which are new each time."""
    if isinstance(value, Sequence) and not isinstance(value, str):
        calls = [{key: part for key, part in call.items() if key != "id"} for call in value]
        return json.dumps(calls, sort_keys=True) if calls else ""
    return value or ""


def _first_difference(one: str, other: str) -> int:
    return next(
        (place for place, pair in enumerate(zip(one, other, strict=False)) if pair[0] != pair[1]),
        min(len(one), len(other)),
    )


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


def _bodies(server: ApiClient, file_id: str) -> Iterator[tuple[str, Mapping[str, Any]]]:
    for line in server.lines(file_id):
        answer = json_lines.loads(line)
        yield answer["custom_id"], answer["response"]["body"]


def _asked(server: ApiClient, batch: Mapping[str, Any]) -> Iterator[tuple[str, Mapping[str, Any]]]:
    for line in server.lines(batch["input_file_id"]):
        request = json_lines.loads(line)
        yield request["custom_id"], request["body"]


def _manifest(server: ApiClient, batch: Mapping[str, Any]) -> Mapping[str, Any]:
    files = {one["name"]: one["file_id"] for one in batch["batchyard"]["artifacts"]}
    manifest: Mapping[str, Any] = json.loads(server.content(files["manifest.json"]))
    return manifest


def _changes(before: Mapping[str, Any], after: Mapping[str, Any]) -> list[str]:
    """Return what answers depend on that is not as it was: configuration, weights, engine and their versions."""
    changes = []
    for model, then in before["models"].items():
        now = after["models"].get(model)
        if now is None:
            changes.append(f"{model} answered then, and {', '.join(after['models'])} now")
            continue
        for key in sorted(then["config"].keys() | now["config"].keys()):
            if then["config"].get(key) != now["config"].get(key):
                changes.append(f"{model}: {key} is {now['config'].get(key)!r}, and was {then['config'].get(key)!r}")
        for key in sorted({key for one in (*then["engines"], *now["engines"]) for key in one}):
            values = [sorted({str(one.get(key)) for one in side["engines"]}) for side in (then, now)]
            if values[0] != values[1] and all(values):
                changes.append(f"{model}: {key} is {', '.join(values[1])}, and was {', '.join(values[0])}")
    return changes
