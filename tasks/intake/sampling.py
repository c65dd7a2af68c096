"""Samples: a batch's first requests, drawn at random, and what they say of all of it."""

from __future__ import annotations

import math
import random
from collections.abc import Mapping, Sequence
from fractions import Fraction
from statistics import NormalDist
from typing import IO, Any, NamedTuple

import numpy as np

from batchyard import json_lines, tariffs
from batchyard.comparing.shares import share_bounds
from batchyard.endpoints import output_lines, responses
from batchyard.tariffs import TotalCost
from store import segments, speeds
from store.accounting import usage
from store.formats import chunks
from store.formats.lines import numbered_lines
from store.records import Batch
from store.speeds import work
from tasks.context import AppContext
from tasks.port import running_models
from tasks.scheduling.costs import throughput_of

CONFIDENCE = 0.9
MAX_ODD = 10
"""Answers of each kind that a plan names."""
MAX_TEXT = 2_000
"""Characters of a shown answer."""
FLAWS = ("failed", "cut_off", "empty")


def lines(source: IO[bytes], rows: int, max_line_bytes: int, seed: str) -> frozenset[int]:
    """Return the numbers of the lines that are sampled: one of each of `rows` equal strata of line lengths.

    Empty if the file has no more lines than that. The same seed gives the same lines.
    """
    found = [(len(raw), number) for number, raw in numbered_lines(source, max_line_bytes)]
    if len(found) <= rows:
        return frozenset()
    order = np.array(sorted(found))[:, 1]
    chance = random.Random(seed)
    return frozenset(int(chance.choice(stratum)) for stratum in np.array_split(order, rows))


class SampledAnswer(NamedTuple):
    """An answer of the sample."""

    custom_id: str
    text: str | None
    error: str | None
    cut_off: bool
    empty: bool
    input_tokens: int
    output_tokens: int
    seconds: float

    @property
    def failed(self) -> bool:
        return self.error is not None


def answers(context: AppContext, batch: Batch) -> list[SampledAnswer]:
    """Return the answers of a batch's sample so far, in the order of their input tokens.

    Raises as store.formats.chunks.read.
    """
    with context.database.read() as session:
        found = segments.sample_chunks(session, batch)
    parsed = [
        _parsed(answer, seconds)
        for sha256 in found
        for table in chunks.read(context.artifacts, sha256, ["answer", "seconds"])
        for answer, seconds in zip(table["answer"].to_pylist(), table["seconds"].to_pylist(), strict=True)
    ]
    return sorted(parsed, key=lambda one: (one.input_tokens, one.custom_id))


def _parsed(line: str, seconds: float | None) -> SampledAnswer:
    answer = json_lines.loads(line)
    body = (answer["response"] or {}).get("body")
    is_error = responses.error(body) or answer["error"]
    usage = responses.usage(body)
    return SampledAnswer(
        custom_id=answer["custom_id"],
        text=None if is_error else (responses.output(body).text or "")[:MAX_TEXT],
        error=": ".join(output_lines.reason(answer)) if is_error else None,
        cut_off=not is_error and responses.is_cut_off(body),
        empty=not is_error and bool(responses.outputs(body)) and responses.is_empty(body),
        input_tokens=usage.input_tokens or 0,
        output_tokens=usage.output_tokens or 0,
        seconds=seconds or 0.0,
    )


def report(context: AppContext, batch: Batch) -> dict[str, Any]:
    """Return what the sample of a batch says of it, with the cost of all and the time of the rest.

    Raises as store.formats.chunks.read.
    """
    found = summary_of(answers(context, batch), batch.total)
    with context.database.read() as session:
        cost = usage.costs(session, [batch.id]).get(batch.id)
        throughputs = speeds.throughputs(session, running_models(context, session))
    throughput = throughput_of(batch.model or "", "decode", throughputs)
    seconds = None
    if throughput is not None and found["answered"]:
        rest = batch.total - batch.completed - batch.failed
        tokens = sum(one["sum"] for one in found["tokens"].values()) * rest / batch.total
        seconds = work(rest, tokens) / throughput.speed(rest)[0]
    return found | {"cost": _cost(batch, cost, found["tokens"]["output_tokens"]), "seconds": seconds}


def _cost(batch: Batch, cost: TotalCost | None, tokens: Mapping[str, float]) -> dict[str, str] | None:
    """Return the cost of all requests: that of the answers so far, in proportion to their output tokens."""
    document = None if cost is None or cost.unpriced_requests or not batch.output_tokens else cost.document
    if document is None:
        return None
    paid = Fraction(document["amount"]) / batch.output_tokens
    amounts = {name: tariffs.decimal(paid * Fraction(value)) for name, value in tokens.items()}
    return {"currency": document["currency"], **amounts}


def summary_of(sample: Sequence[SampledAnswer], total: int) -> dict[str, Any]:
    """Return what a sample says of `total` requests: shares of flaws, sums of tokens, and answers to look at.

    Ranges hold with CONFIDENCE: of shares exactly, for a uniform sample without replacement; of sums by the normal
    approximation, with the variance of collapsed strata (Cochran, Sampling Techniques, 5A.12).
    """
    shares = {name: _share(sum(getattr(one, name) for one in sample), len(sample), total) for name in FLAWS}
    sums = {name: _sum([getattr(one, name) for one in sample], total) for name in ("input_tokens", "output_tokens")}
    odd = {name: [_shown(one) for one in sample if getattr(one, name)][:MAX_ODD] for name in FLAWS}
    slowest = sorted(sample, key=lambda one: -one.seconds)[:3]
    return {
        "requests": total,
        "answered": len(sample),
        "confidence": CONFIDENCE,
        "shares": shares,
        "tokens": sums,
        "odd": odd | {"slowest": [_shown(one) for one in slowest]},
        "answers": [_shown(one) for one in sample[:: max(1, len(sample) // MAX_ODD)]][:MAX_ODD],
    }


def _shown(answer: SampledAnswer) -> dict[str, Any]:
    return {name: getattr(answer, name) for name in ("custom_id", "text", "error", "output_tokens", "seconds")}


def _share(found: int, sample: int, total: int) -> dict[str, float]:
    low, high = share_bounds(found, sample, total, CONFIDENCE) if sample else (0.0, 1.0)
    return {"share": found / sample if sample else 0.0, "low": low, "high": high}


def _sum(values: Sequence[int], total: int) -> dict[str, float]:
    """Return the sum of all requests' values, of a sample in the order of its strata, with its range."""
    count = len(values)
    if not count:
        return {"sum": 0.0, "low": 0.0, "high": 0.0}
    mean = sum(values) / count
    pairs = list(zip(values[::2], values[1::2], strict=False))
    if count == total or not pairs:
        return {"sum": mean * total, "low": mean * total, "high": mean * total}
    variance = sum((one - other) ** 2 for one, other in pairs) / (2 * len(pairs)) / count * (1 - count / total)
    half = _quantile(len(pairs)) * math.sqrt(variance) * total
    return {"sum": mean * total, "low": max(float(sum(values)), mean * total - half), "high": mean * total + half}


def _quantile(freedom: int) -> float:
    """Return Student's quantile, by the expansion of Abramowitz and Stegun, 26.7.5."""
    z = NormalDist().inv_cdf((1 + CONFIDENCE) / 2)
    return z + (z**3 + z) / (4 * freedom) + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * freedom**2)
