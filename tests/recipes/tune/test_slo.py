"""An SLO is read as people write it, and one that cannot be read is refused with the place and the remedy."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from recipes.tune.results import Medians
from recipes.tune.slo import PRESETS, Bound, parse


def test_the_seeds_objectives_are_those_that_it_named() -> None:
    assert parse("seed") == parse(PRESETS["seed"])
    assert parse("seed").bounds == (
        Bound("p95", "<=", 5),
        Bound("errors", "<=", 0.05),
        Bound("tokens", ">=", 1000),
        Bound("rows", ">=", 5),
    )


@pytest.mark.parametrize(
    ("text", "bound"),
    [
        ("p99<250ms", Bound("p99", "<", 0.25)),
        (" p50 <= 2m ", Bound("p50", "<=", 120)),
        ("rows>=90/min", Bound("rows", ">=", 1.5)),
        ("errors<=7%", Bound("errors", "<=", 0.07)),
        ("tokens>.5/s", Bound("tokens", ">", 0.5)),
    ],
)
def test_a_bound_has_its_unit(text: str, bound: Bound) -> None:
    assert parse(text).bounds == (bound,)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("p95<=5s,eror<=5%", r"column 9: 'eror' is no metric; did you mean errors\?"),
        ("p95<=5", r"column 6: '5' is not a number with ms or s or m; write p95<=5s"),
        ("tokens<=1000/s", r"column 7: tokens is better the higher it is; write tokens>=5/s"),
        ("p95<=5s, p95>=1s", r"column 13: p95 is better the lower it is"),
        ("p95<=5s, p95<=6s", r"column 10: p95 is bounded twice"),
        ("errors==5%", r"column 7: errors is better the lower it is"),
        ("sed", r"column 1: 'sed' is no bound; did you mean 'seed'\?"),
        ("p95", r"column 1: 'p95' has no operator; write p95<=5s"),
        ("p95<=5s,", r"column 9: a bound is missing"),
        ("", r"column 1: a bound is missing"),
        ("rows>=0/s", r"column 7: rows is never below 0"),
        ("p95<=-5s", r"column 6: '-5s' is not a number"),
    ],
)
def test_an_slo_that_cannot_be_read_says_where_and_what_to_write(text: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        parse(text)


def test_a_value_at_the_bound_meets_it_unless_the_bound_is_strict() -> None:
    assert parse("p95<=5s").bounds[0].holds(5) and not parse("p95<5s").bounds[0].holds(5)
    assert parse("rows>=5/s").bounds[0].holds(5) and not parse("rows>5/s").bounds[0].holds(5)
    assert not parse("p95<=5s").bounds[0].holds(None)


def test_what_breaks_a_bound_is_said_with_both_numbers_though_they_are_close() -> None:
    bound = parse("p95<=5s").bounds[0]
    assert bound.broken_by(7.25) == "7.25 s breaks p95 <= 5 s"
    assert bound.broken_by(5.000001) == "5.000001 breaks p95 <= 5 s"
    assert bound.broken_by(None) == "unknown breaks p95 <= 5 s"


@given(st.text(alphabet="p95<=>s,% ./0ertoknsw", max_size=20))
def test_any_text_is_an_slo_or_is_refused_with_a_column(text: str) -> None:
    try:
        slo = parse(text)
    except ValueError as error:
        assert str(error).startswith("column ")
    else:
        assert slo.bounds


FIGURES = st.none() | st.floats(0, 1e6).map(lambda value: round(value, 3))


@given(p95=FIGURES, errors=st.integers(0, 1000).map(lambda value: value / 1000), tokens=FIGURES, rows=FIGURES)
def test_a_cell_is_beyond_a_bound_just_when_it_breaks_the_slo(
    p95: float | None, errors: float, tokens: float | None, rows: float | None
) -> None:
    medians = Medians(rows=rows, tokens=tokens, errors=errors, p50=p95, p95=p95, p99=p95)
    slo = parse("seed")
    assert bool(slo.broken(medians)) == (slo.excess(medians) > 1)
