"""Estimate: what a batch would cost, from what the project's latest batches of the same models have used.

Input is estimated from bytes, output and time from requests. The range is that of these batches.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from fractions import Fraction
from itertools import islice
from typing import NamedTuple

import orjson
from sqlalchemy.orm import Session

from batchyard import json_lines, tariffs
from batchyard.endpoints.catalog import ENDPOINTS
from batchyard.tariffs import NOTHING, Amounts, Prices
from store.accounting import usage
from tasks.context import AppContext

BATCHES = 20
"""So many batches are looked at, the newest."""
FEW = 3
"""Of fewer batches the range says little: it is widened by DOUBT."""
DOUBT = 2
SAMPLE = 1000
"""So many requests of a file say what the others are like."""


class Part(NamedTuple):
    """The requests of an input to one model: number, bytes, and most output tokens if all limit them."""

    requests: int
    bytes: int
    limit: int | None

    def plus(self, other: Part) -> Part:
        limit = None if self.limit is None or other.limit is None else self.limit + other.limit
        return Part(self.requests + other.requests, self.bytes + other.bytes, limit)


@dataclass(frozen=True)
class PriceEstimate:
    """What a batch would cost, from `batches` batches. The amounts are None if nothing was measured."""

    currency: str
    amount: Fraction | None
    least: Fraction | None
    most: Fraction | None
    batches: int


def parts(endpoint: str, lines: Iterable[bytes]) -> dict[str, Part]:
    """Return what lines of a batch file ask of each model. Lines that are no requests are left out."""
    by_model: dict[str, Part] = {}
    for line in lines:
        try:
            body = json_lines.read(line)["body"]
            model, size, limit = body["model"], len(json_lines.dumps(body)), ENDPOINTS[endpoint].output_limit(body)
        except (orjson.JSONDecodeError, KeyError, TypeError, AttributeError):
            continue
        if isinstance(model, str) and (limit is None or isinstance(limit, int)):
            by_model[model] = by_model.get(model, Part(0, 0, 0)).plus(Part(1, size, limit))
    return by_model


def of_file(context: AppContext, endpoint: str, sha256: str) -> tuple[int, dict[str, Part]]:
    """Return a batch file's requests, and by its first SAMPLE what they ask of each model."""
    with context.artifacts.open(sha256) as content:
        lines = (line for line in content if not json_lines.is_blank(line))
        sample = list(islice(lines, SAMPLE))
        requests = len(sample) + sum(1 for _ in lines)
    return requests, scaled(parts(endpoint, sample), requests / len(sample)) if sample else {}


def estimate(context: AppContext, session: Session, project_id: str, of: Mapping[str, Part]) -> PriceEstimate | None:
    """Return what requests would cost; None if one of their models has no tariff, or there are none."""
    specs = [spec for name, spec in context.models.items() if name in of]
    prices = {spec.name: spec.price.prices() for spec in specs if spec.price is not None}
    if not of or prices.keys() != of.keys():
        return None
    currency = next(iter(prices.values())).currency
    sums, batches = (Fraction(0), Fraction(0), Fraction(0)), BATCHES
    for model, part in of.items():
        past = [amounts for amounts in usage.recent(session, project_id, model, BATCHES) if _computed(amounts)]
        if not past:
            return PriceEstimate(currency, None, None, None, 0)
        batches = min(batches, len(past))
        of_model = _range(part, prices[model], past)
        sums = (sums[0] + of_model[0], sums[1] + of_model[1], sums[2] + of_model[2])
    return PriceEstimate(currency, *sums, batches)


def scaled(of: Mapping[str, Part], factor: float) -> dict[str, Part]:
    return {
        model: Part(
            round(part.requests * factor),
            round(part.bytes * factor),
            None if part.limit is None else round(part.limit * factor),
        )
        for model, part in of.items()
    }


def _range(part: Part, prices: Prices, past: list[Amounts]) -> tuple[Fraction, Fraction, Fraction]:
    """Return a part's cost at the mean, the lowest and the highest of these batches' costs."""
    whole = NOTHING
    for amounts in past:
        whole = whole.plus(amounts)
    amount = _like(part, prices, whole)
    each = [_like(part, prices, amounts) for amounts in past]
    if len(past) < FEW:
        each += [amount / DOUBT, amount * DOUBT]
    return amount, min(each), max(each)


def _like(part: Part, prices: Prices, past: Amounts) -> Fraction:
    """Return a part's cost if its bytes and requests used what past ones did."""
    per_request = Fraction(part.requests, _computed(past))
    per_byte = Fraction(part.bytes, past.bytes)
    output = round(past.output_tokens * per_request)
    used = NOTHING._replace(
        input_tokens=round(past.input_tokens * per_byte),
        cached_tokens=round(past.cached_tokens * per_byte),
        output_tokens=output if part.limit is None else min(output, part.limit),
        milliseconds=round(past.milliseconds * per_request),
    )
    return tariffs.cost(prices, used)


def _computed(amounts: Amounts) -> int:
    return amounts.requests - amounts.shared_requests
