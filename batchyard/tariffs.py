"""Tariffs: what amounts of tokens and of a model's time cost, in exact sums. batchyard.models reads the prices.

Prices have at most PLACES decimal places. Sums are fractions of a currency, and are rounded only where they are shown.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from decimal import Decimal, InvalidOperation
from fractions import Fraction
from typing import Any, NamedTuple

PLACES = 6
MICRO = 10**PLACES
TOKENS = 10**6
"""Prices of tokens are for so many."""
HOUR = 3_600_000
"""Milliseconds of an hour, for which the price of time is."""
MOST = 10**12
"""An amount that is set is less than this."""
SHOWN_PLACES = 12
"""A token costs a whole number of these decimals."""
CURRENCY = re.compile(r"[A-Z]{3}")


class Prices(NamedTuple):
    """Prices in millionths of a currency, for a million tokens or for an hour."""

    currency: str
    input: int
    cached: int
    output: int
    hour: int


class Amounts(NamedTuple):
    """What was used. Tokens and milliseconds are of the requests that an engine computed.

    `cached_tokens` are those of the input tokens that were in the prefix cache; `bytes` those of request bodies, of
    equal ones once;
    `milliseconds` are the model's time, which its segments share.
    """

    requests: int
    failed: int
    shared_requests: int
    input_tokens: int
    cached_tokens: int
    output_tokens: int
    bytes: int
    milliseconds: int

    def plus(self, other: Amounts) -> Amounts:
        return Amounts(*(one + another for one, another in zip(self, other, strict=True)))


NOTHING = Amounts(*[0] * len(Amounts._fields))


@dataclass(frozen=True)
class TotalCost:
    """What something has cost, by currency. `unpriced_requests` were answered by models without a tariff."""

    amounts: Mapping[str, Fraction]
    unpriced_requests: int = 0

    @property
    def document(self) -> dict[str, Any] | None:
        """The amount, exact as a text, and its currency; None without a tariff, and in several currencies."""
        if len(self.amounts) != 1:
            return None
        ((currency, amount),) = self.amounts.items()
        return {"amount": decimal(amount), "currency": currency, "unpriced_requests": self.unpriced_requests}


def cost(prices: Prices, amounts: Amounts) -> Fraction:
    tokens = (
        (amounts.input_tokens - amounts.cached_tokens) * prices.input
        + amounts.cached_tokens * prices.cached
        + amounts.output_tokens * prices.output
    )
    return Fraction(tokens, MICRO * TOKENS) + Fraction(amounts.milliseconds * prices.hour, MICRO * HOUR)


def total(lines: Iterable[tuple[Prices | None, Amounts]]) -> TotalCost:
    """Add up what amounts cost, each with its prices, or without any."""
    sums: dict[str, Fraction] = {}
    unpriced = 0
    for prices, amounts in lines:
        if prices is None:
            unpriced += amounts.requests
        else:
            sums[prices.currency] = sums.get(prices.currency, Fraction(0)) + cost(prices, amounts)
    return TotalCost(sums, unpriced)


def decimal(amount: Fraction) -> str:
    """Return an amount with 2 to SHOWN_PLACES decimals; exact but for prices of time."""
    whole, rest = divmod(round(amount * 10**SHOWN_PLACES), 10**SHOWN_PLACES)
    return f"{whole}.{f'{rest:0{SHOWN_PLACES}d}'.rstrip('0'):0<2}"


def text(amount: Fraction, currency: str) -> str:
    """Return an amount for people, with two decimals, or below 1 with two digits: `1,204.50 EUR`, `0.0012 EUR`."""
    places = 2 if amount >= 1 or not amount else min(SHOWN_PLACES, max(2, 1 - math.floor(math.log10(amount))))
    return f"{float(amount):,.{places}f} {currency}"


def parse_money(value: str) -> tuple[Decimal, str]:
    """Return the amount and the currency of a text such as `100 EUR`."""
    number, _, currency = value.strip().rpartition(" ")
    try:
        amount = Decimal(number)
    except InvalidOperation:
        amount = Decimal("nan")
    places = amount.as_tuple().exponent
    exact = isinstance(places, int) and places >= -PLACES
    if not CURRENCY.fullmatch(currency) or not exact or not 0 <= amount < MOST:
        raise ValueError(f"'{value}' is no amount; write a number, a space and a currency, such as 100 EUR")
    return amount, currency
