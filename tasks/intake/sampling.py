"""Samples: requests drawn at random and answered first, and the forecast from them."""

from __future__ import annotations

import functools
import itertools
import math
import random
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from fractions import Fraction
from statistics import NormalDist
from typing import IO, Any, NamedTuple

import numpy as np

from batchyard import json_lines, tariffs
from batchyard.comparing.shares import share_bounds
from batchyard.endpoints import output_lines, responses
from batchyard.endpoints.forms import Checks
from batchyard.models import ModelSpec, hosted
from batchyard.tariffs import TotalCost
from store import segments, speeds
from store.accounting import usage
from store.artifacts import Artifacts
from store.formats import chunks, plan
from store.formats.lines import numbered_lines
from store.records import Batch
from store.speeds import Throughput, work
from tasks.context import AppContext
from tasks.port import running_models
from tasks.scheduling.costs import Answered, relative_error, throughput_of
from tasks.steps import registry, score
from tasks.steps.score import ScoreOptions

CONFIDENCE = 0.9
_Z = NormalDist().inv_cdf((1 + CONFIDENCE) / 2)
MAX_ODD = 10
"""Maximum answers of each kind in a report."""
MAX_TEXT = 2_000
"""Characters of a shown answer."""
CHECK_SECONDS = 2.0
"""CPU time of checking whether a sample's answers have their form."""
FLAWS = ("failed", "cut_off", "refused", "empty", "invalid", "looped")
WRONG = "wrong"
"""The flaw of an answer that step `score` finds wrong."""
SEED = "plan"
"""The same for all batches: models that get the same rows are compared on the same sample."""
_SIZES = np.dtype([("size", "i8"), ("number", "i8")])


def lines(source: IO[bytes], rows: int, max_line_bytes: int, max_lines: int, seed: str = SEED) -> frozenset[int]:
    """Return the numbers of the lines that are sampled: one of each of `rows` equal strata of line lengths.

    Empty if the file has no more lines than that, or more than `max_lines`. The same seed gives the same lines, also if
    all lines are longer.
    """
    sizes = ((len(raw), number) for number, raw in numbered_lines(source, max_line_bytes))
    found = np.fromiter(itertools.islice(sizes, max_lines + 1), _SIZES)
    return frozenset() if len(found) > max_lines else _drawn(found, rows, seed)


def drawn(sizes: Iterable[tuple[int, int]], rows: int) -> frozenset[int]:
    """Return the numbers of a sample of (size, number), as `lines` does."""
    return _drawn(np.fromiter(sizes, _SIZES), rows, SEED)


def _drawn(found: np.ndarray, rows: int, seed: str) -> frozenset[int]:
    if len(found) <= rows:
        return frozenset()
    order = found["number"][np.argsort(found["size"], kind="stable")]
    chance = random.Random(seed)
    return frozenset(int(chance.choice(stratum)) for stratum in np.array_split(order, rows))


class SampledAnswer(NamedTuple):
    """An answer of a sample, or an item's. `flaws`: of FLAWS, and WRONG. `scored`: it can be wrong."""

    custom_id: str
    text: str | None
    error: tuple[str, str] | None
    flaws: frozenset[str]
    scored: bool
    input_tokens: int
    output_tokens: int
    seconds: float
    requests: int = 1


def answers(context: AppContext, batch: Batch) -> list[SampledAnswer]:
    """Return the answers of a batch's sample so far, by the length of their requests. Raises as chunks.read."""
    with context.database.read() as session:
        found = segments.sample_chunks(session, batch)
        places = segments.plans(session, batch.id)[: batch.sample_segments]  # all of a small file
    steps = [registry.request(entry) for entry in batch.post_process]
    scoring = next((ScoreOptions.model_validate(step) for step in steps if step["step"] == score.STEP.name), None)
    return _read(context.artifacts, tuple(found), tuple(places), None if scoring is None else scoring.method)


@functools.lru_cache(maxsize=8)
def _read(
    artifacts: Artifacts, sha256s: Sequence[str], places: Sequence[tuple[str, int]], method: score.Method | None
) -> list[SampledAnswer]:
    """Return the answers of result chunks, which never change, by the length of their requests."""
    requests = {
        line: body
        for table in plan.requests(artifacts, places, ["line", "body", "same_as"])
        for line, body in zip(
            table["line"].to_pylist(), table["body"].take(plan.body_rows(table)).to_pylist(), strict=True
        )
    }
    checks = Checks(CHECK_SECONDS)
    found = [
        (len(requests[line]), parsed(answer, seconds, requests[line], checks, method))
        for sha256 in sha256s
        for table in chunks.read(artifacts, sha256, ["line", "answer", "seconds"])
        for line, answer, seconds in zip(*(column.to_pylist() for column in table.columns), strict=True)
    ]
    return [one for _, one in sorted(found, key=lambda entry: (entry[0], entry[1].custom_id))]


def parsed(
    line: str, seconds: float | None, request: str, checks: Checks, method: score.Method | None = None
) -> SampledAnswer:
    """Return an answer of the sample. `request`: its body; empty if validation has refused it."""
    answer = json_lines.loads(line)
    body = (answer["response"] or {}).get("body")
    is_error = bool(responses.error(body) or answer["error"])
    text, usage = responses.output(body).text, responses.usage(body)
    found = {"failed": is_error} | dict.fromkeys([] if is_error else responses.flaws(body), True)
    if not is_error:
        with suppress(TimeoutError):
            found["invalid"] = checks.is_invalid(request, line)
    correct = None
    if method and request:
        correct = score.is_correct(json_lines.loads(request), None if is_error else text, method)
        found[WRONG] = correct is False
    return SampledAnswer(
        custom_id=answer["custom_id"],
        text=None if is_error else (text or "")[:MAX_TEXT],
        error=output_lines.reason(answer) if is_error else None,
        flaws=frozenset(name for name, is_found in found.items() if is_found),
        scored=correct is not None,
        input_tokens=usage.input_tokens or 0,
        output_tokens=usage.output_tokens or 0,
        seconds=seconds or 0.0,
    )


def report(context: AppContext, batch: Batch) -> dict[str, Any]:
    """Return the forecast from a batch's sample, with the cost of all and the time of the rest. Raises as `answers`."""
    sample = answers(context, batch)
    with context.database.read() as session:
        cost = usage.costs(session, [batch.id]).get(batch.id)
        throughputs = speeds.throughputs(session, running_models(context, session))
    throughput = throughput_of(batch.model or "", "decode", throughputs)
    used = batch.completed + batch.failed, batch.input_tokens, batch.output_tokens
    costs, seconds = cost_of(batch.models, cost, sample, batch.total, used), None
    if throughput is not None and sample:
        seconds = seconds_of(throughput, sample, batch.total, batch.total - batch.completed - batch.failed)
    found = summary_of(sample, batch.total)
    elsewhere = hosted_costs(context, sample, batch.total)
    forecast = found["forecast"] | {"cost": costs, "seconds": seconds, "hosted": elsewhere}
    return found | {"models": sorted(batch.models), "forecast": forecast}


def seconds_of(throughput: Throughput, sample: Sequence[SampledAnswer], total: int, rest: int) -> dict[str, float]:
    """Return the time of `rest` of all requests, by their work and the measured speed, with the errors of both."""
    speed, doubt = throughput.speed(rest)
    work_range = _sum([work(one.requests, one.input_tokens + one.output_tokens) for one in sample], total)
    least, seconds, most = (work_range[name] * rest / total / speed for name in ("low", "sum", "high"))
    # The sample says how much work there is: what is left is how far the speed is off.
    error = math.exp(doubt + _Z * relative_error(throughput, Answered(total, 0), max(rest, 1), seconds))
    low, high = (
        math.hypot(seconds - least, seconds - seconds / error),
        math.hypot(most - seconds, seconds * error - seconds),
    )
    return {"sum": seconds, "low": max(0.0, seconds - low), "high": seconds + high}


def hosted_costs(context: AppContext, sample: Sequence[SampledAnswer], total: int) -> dict[str, dict[str, str]]:
    """Return what the tokens of all requests would cost at the hosted services of models.toml, by their names."""
    document = {} if context.source is None else context.source.document
    found = {}
    for name, prices in hosted(context.settings.models, document).items():
        sums = _sum([prices.input * one.input_tokens + prices.output * one.output_tokens for one in sample], total)
        unit = tariffs.MICRO * tariffs.TOKENS
        amounts = {key: tariffs.decimal(Fraction(value) / unit) for key, value in sums.items()}
        found[name] = {"currency": prices.currency, **amounts}
    return found


def cost_of(
    models: Mapping[str, Any],
    cost: TotalCost | None,
    sample: Sequence[SampledAnswer],
    total: int,
    used: tuple[int, int, int],
) -> dict[str, str] | None:
    """Return the cost of all requests: that of the answers so far, in proportion to their priced tokens or work.

    `used`: the requests so far, their input and their output tokens.
    """
    document = None if cost is None or cost.unpriced_requests or not sample else cost.document
    if document is None:
        return None
    specs = [ModelSpec.model_validate(config) for config in models.values()]
    prices = specs[0].price.prices() if len(specs) == 1 and specs[0].price else None

    def weight(requests: int, input_tokens: int, output_tokens: int) -> float:
        tokens = prices.input * input_tokens + prices.output * output_tokens if prices else 0
        return tokens or work(requests, input_tokens + output_tokens)

    sums = _sum([weight(one.requests, one.input_tokens, one.output_tokens) for one in sample], total)
    paid = Fraction(document["amount"]) / Fraction(weight(*used))
    amounts = {name: tariffs.decimal(paid * Fraction(value)) for name, value in sums.items()}
    return {"currency": document["currency"], **amounts}


def summary_of(sample: Sequence[SampledAnswer], total: int, flaws: Sequence[str] = FLAWS) -> dict[str, Any]:
    """Return the forecast for `total` requests: shares of `flaws`, sums of tokens, and sample answers.

    Ranges hold with CONFIDENCE on average: of shares as of a uniform sample without replacement; of sums by Student's
    distribution and the skewness, with the variance of collapsed strata (Cochran, Sampling Techniques, 5A.12).
    """
    shares = {name: _share(sum(name in one.flaws for one in sample), len(sample), total) for name in flaws}
    if scored := sum(one.scored for one in sample):
        shares[WRONG] = _share(sum(WRONG in one.flaws for one in sample), scored, total * scored // len(sample))
    sums = {name: _sum([getattr(one, name) for one in sample], total) for name in ("input_tokens", "output_tokens")}
    odd = {name: [_shown(one) for one in sample if name in one.flaws][:MAX_ODD] for name in shares}
    slowest = sorted(sample, key=lambda one: -one.seconds)[:3]
    some = [_shown(one) for one in sample[:: max(1, len(sample) // MAX_ODD)]][:MAX_ODD]
    return {
        "requests": total,
        "sample": {
            "answered": len(sample),
            "errors": dict(Counter(one.error[0] for one in sample if one.error)),
            "odd": odd | {"slowest": [_shown(one) for one in slowest]},
            "answers": some,
        },
        "forecast": {"confidence": CONFIDENCE, "shares": shares, "tokens": sums},
    }


def _shown(answer: SampledAnswer) -> dict[str, Any]:
    shown = {name: getattr(answer, name) for name in ("custom_id", "text", "output_tokens", "seconds")}
    return shown | {"error": answer.error and ": ".join(answer.error)}


def _share(found: int, sample: int, total: int) -> dict[str, float]:
    low, high = share_bounds(found, sample, total, CONFIDENCE, mid=True) if sample else (0.0, 1.0)
    return {"share": found / sample if sample else 0.0, "low": low, "high": high}


def _sum(values: Sequence[float], total: int) -> dict[str, float]:
    """Return the sum of all requests' values, of a sample in the order of its strata, with its range."""
    count, ordered = len(values), np.array(values, float)
    whole = float(ordered.mean()) * total if count else 0.0
    pairs = ordered[: count // 2 * 2].reshape(-1, 2)
    variance = float((np.diff(pairs) ** 2).mean()) / 2 if len(pairs) else 0.0
    if not variance or count >= total:
        return {"sum": whole, "low": whole, "high": whole}
    error = math.sqrt(variance / count * (1 - count / total)) * total
    skew = float(((ordered - ordered.mean()) ** 3).mean()) / float(ordered.std()) ** 3 / math.sqrt(count)
    # Student's quantile, by the expansion of Abramowitz and Stegun, 26.7.5
    z, freedom = _Z, len(pairs)
    quantile = z + (z**3 + z) / (4 * freedom) + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * freedom**2)
    low, high = (whole - error * _unskewed(sign * quantile, skew) for sign in (1, -1))
    return {"sum": whole, "low": max(float(ordered.sum()), low), "high": high}


def _unskewed(quantile: float, skew: float) -> float:
    """Return the quantile of a mean with this skewness: the inverse of Hall's cubic transformation (1992)."""
    if abs(skew) < 1e-6:
        return quantile
    return 3 / skew * (math.cbrt(1 + skew * (quantile - skew / 6)) - 1)
