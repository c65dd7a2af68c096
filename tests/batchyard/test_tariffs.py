"""Costs are exact sums, and shown so that small ones can be read, too."""

from __future__ import annotations

import random
from fractions import Fraction

import pytest

from batchyard import tariffs
from batchyard.tariffs import NOTHING, Amounts, Prices

PRICES = Prices("EUR", input=150_000, cached=75_000, output=600_000, hour=0)


def used(**amounts: int) -> Amounts:
    return NOTHING._replace(**amounts)


def test_each_kind_of_token_and_an_hour_have_their_price() -> None:
    amounts = used(input_tokens=1_000_000, cached_tokens=400_000, output_tokens=500_000, milliseconds=1_800_000)
    assert tariffs.cost(PRICES, amounts) == Fraction("0.6") * Fraction("0.15") + Fraction("0.03") + Fraction("0.3")
    assert tariffs.cost(Prices("EUR", 0, 0, 0, 2_500_000), amounts) == Fraction("1.25")


def test_the_sum_of_many_small_costs_is_the_cost_of_their_sum() -> None:
    chance = random.Random(1)
    parts = [
        used(input_tokens=chance.randrange(99), output_tokens=1, milliseconds=chance.randrange(7)) for _ in "x" * 999
    ]
    prices = PRICES._replace(hour=1_999_999)
    whole = NOTHING
    for part in parts:
        whole = whole.plus(part)
    assert sum(tariffs.cost(prices, part) for part in parts) == tariffs.cost(prices, whole)


def test_requests_without_a_tariff_are_counted_and_cost_nothing_known() -> None:
    cost = tariffs.total([(PRICES, used(output_tokens=1_000_000)), (None, used(requests=7, output_tokens=9))])
    assert cost.document == {"amount": "0.60", "currency": "EUR", "unpriced_requests": 7}
    assert tariffs.total([(None, used(requests=7))]).document is None
    several = tariffs.total([(PRICES, used()), (PRICES._replace(currency="USD"), used())])
    assert several.document is None, "they have no sum"


@pytest.mark.parametrize(
    ("amount", "exact", "shown"),
    [
        ("0", "0.00", "0.00 EUR"),
        ("1204.5", "1204.50", "1,204.50 EUR"),
        ("0.5", "0.50", "0.50 EUR"),
        ("0.000000123456", "0.000000123456", "0.00000012 EUR"),
        ("12345678.000000000001", "12345678.000000000001", "12,345,678.00 EUR"),
        ("0.0000000000001", "0.00", "0.000000000000 EUR"),
    ],
)
def test_an_amount_is_exact_for_programs_and_readable_for_people(amount: str, exact: str, shown: str) -> None:
    assert (tariffs.decimal(Fraction(amount)), tariffs.text(Fraction(amount), "EUR")) == (exact, shown)


def test_money_is_written_as_an_amount_and_a_currency() -> None:
    amount, currency = tariffs.parse_money(" 100.50 EUR ")
    assert (str(amount), currency) == ("100.50", "EUR")


@pytest.mark.parametrize("text", ["", "100", "EUR", "100 eur", "-1 EUR", "nan EUR", "1e999999 EUR", "0.0000001 EUR"])
def test_anything_else_is_no_money(text: str) -> None:
    with pytest.raises(ValueError, match="such as 100 EUR"):
        tariffs.parse_money(text)
