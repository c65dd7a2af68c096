"""Asking a sample of a batch's requests again, and comparing the answers."""

import json
import random
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from batchyard import json_lines
from batchyard.client.api import ApiClient, uploaded
from batchyard.client.verification.differences import AnswerDifference, difference
from batchyard.client.verification.folder import MANIFEST
from batchyard.comparing.shares import share_bounds
from batchyard.errors import ConfigurationError
from batchyard.statuses import TERMINAL

LOGPROBS = 5


@dataclass
class Comparison:
    """What became of the requests that were asked again. `low` and `high` bound the share of all that would differ."""

    batch_id: str
    again_id: str
    requests: int
    asked: int
    equal: int = 0
    differences: list[AnswerDifference] = field(default_factory=list)
    failed: list[str] = field(default_factory=list)
    changes: list[str] = field(default_factory=list)
    low: float = 0.0
    high: float = 1.0


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

    Raises ConfigurationError: nothing of the second batch ran, or its answers were not computed anew.
    """
    if not any(one["name"] == MANIFEST for one in again["batchyard"]["artifacts"]):
        reasons = "; ".join(one["message"] for one in (again["errors"] or {}).get("data") or [])
        raise ConfigurationError(f"{again['id']} is {again['status']}: {reasons or 'nothing of it ran'}")
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
    manifest: Mapping[str, Any] = json.loads(server.content(files[MANIFEST]))
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
