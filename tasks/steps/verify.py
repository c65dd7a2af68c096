"""Step `verify`: new answers to a sample of another batch's requests, compared with the first ones."""

import hashlib
import random
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict
from typing import Any, Literal

import orjson
from pydantic import BaseModel, Field

from batchyard import json_lines
from batchyard.comparing.differences import difference
from batchyard.comparing.shares import share_bounds
from store.formats.results import ResultRow
from tasks.steps.step import Results, Step, StepOptions

NAME = "verify"
REPORT = "verify-summary.json"
LOGPROBS = {"logprobs": True, "top_logprobs": 5}
MAY_DIFFER = ("model", *LOGPROBS)
"""Parameters of a request that may not be those of the first time. The report says if another model has answered."""


class SampleOptions(BaseModel):
    sample: int = Field(200, ge=1, le=10_000, description="most answers to compare")
    seed: int = Field(0, ge=0, lt=2**63, description="decides which, and in which order the requests run")
    tolerance: float = Field(
        0, ge=0, allow_inf_nan=False, description="how far numbers of vectors and scores may differ"
    )
    alone: bool = Field(False, strict=True, description="ask each while its engine has no other request")
    replica: int | None = Field(None, ge=0, lt=10_000, description="the only replica asked; null: all")


class VerifyOptions(SampleOptions, StepOptions):
    """The batch whose answers are compared, and which of them."""

    step: Literal["verify"]
    batch_id: str = Field(min_length=1, max_length=64, description="the earlier batch")


def sampled(rows: Iterable[ResultRow], answered: int, options: VerifyOptions) -> Iterator[ResultRow]:
    """Yield a uniform sample of a batch's `answered` requests with an answer."""
    numbers = set(random.Random(options.seed).sample(range(answered), min(options.sample, answered)))
    good = (row for row in rows if row.response is not None and row.failure is None)
    return (row for number, row in enumerate(good) if number in numbers)


def _digest(body: Mapping[str, Any]) -> bytes:
    """Return a hash of what a request asks: a sample of long requests must not fill the memory."""
    asked = {name: value for name, value in body.items() if name not in MAY_DIFFER}
    return hashlib.sha256(json_lines.dumps(asked, option=orjson.OPT_SORT_KEYS)).digest()


def verify(results: Results, options: VerifyOptions) -> Mapping[str, Any]:
    """Write `verify-summary.json`, with each answer that differs, and return its counts.

    `low` and `high` bound the share of all answers that would differ, with 95 % confidence. Raises ValueError: the
    requests are not the sample of the earlier batch, word for word.
    """
    earlier = results.earlier(options.batch_id)
    before = {
        row.custom_id: (_digest(row.body), row.body.get("model"), row.response or {})
        for row in sampled(earlier.rows, earlier.answered, options)
    }
    asked, differences, unanswered, models = len(before), [], [], set[str]()
    for row in results.rows():
        if row.custom_id not in before:
            continue
        digest, model, first = before.pop(row.custom_id)
        if _digest(row.body) != digest:
            raise ValueError(
                f"request {row.custom_id} is not that of {options.batch_id}: only {', '.join(MAY_DIFFER)} may differ"
            )
        if row.body.get("model") != model:
            models.add(f"{model} answered then, and {row.body.get('model')} now")
        if row.response is None or row.failure is not None:
            unanswered.append(row.custom_id)
        elif found := difference(row.custom_id, row.body, first, row.response, options.tolerance):
            differences.append(found)
    if before:
        missing = min(before)
        raise ValueError(f"request {missing} is missing, which `sample` and `seed` draw from {options.batch_id}")
    compared, changes = asked - len(unanswered), [*sorted(models), *earlier.changes]
    low, high = share_bounds(len(differences), compared, earlier.answered)
    counts = {
        "asked": asked,
        "equal": compared - len(differences),
        "different": len(differences),
        "failed": len(unanswered),
        "low": low,
        "high": high,
    }
    report = {
        "batch_id": options.batch_id,
        "requests": earlier.answered,
        "alone": options.alone,
        "replica": options.replica,
        **counts,
        "changes": changes,
        "differences": [asdict(one) for one in differences],
        "unanswered": unanswered,
    }
    with results.create() as file:
        file.write(json_lines.dumps(report) + b"\n")
    results.add(REPORT, file.sha256, file.size)
    return counts | {"changes": len(changes)}


STEP = Step(NAME, "compares the answers with those of an earlier batch to the same requests.", VerifyOptions, verify)
