"""All columns of a table stand in a prompt once, in an order in which sorted prompts share most."""

from __future__ import annotations

import itertools
import os
import random
import subprocess
import sys
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from batchyard.tables import columns
from batchyard.tables.cells import CellError
from batchyard.tables.template import Template

Rows = Sequence[dict[str, str]]
ONE, PER_ROW = "{*}", "{*:per-row}"
TEXTS = st.text(st.characters(exclude_characters="\n", exclude_categories=["Cs"]), min_size=1, max_size=9)
NAMES = TEXTS.filter(lambda name: name != "custom_id")


@st.composite
def tables(draw: st.DrawFn) -> Rows:
    """Tables with few cells and many rows, so that cells repeat."""
    names = draw(st.lists(NAMES, min_size=1, max_size=5, unique=True))
    cells = draw(st.lists(TEXTS, min_size=1, max_size=4))
    row = st.tuples(*(st.sampled_from(cells) for _ in names))
    return [dict(zip(names, values, strict=True)) for values in draw(st.lists(row, min_size=1, max_size=12))]


def texts(template: str, rows: Rows) -> list[str]:
    ordered = Template(template).ordered(rows)
    return [str(ordered.fill(row)) for row in rows]


def order(rows: Rows) -> tuple[str, ...]:
    order = Template(ONE).ordered(rows).order
    assert order is not None
    return order


def computed(prompts: Sequence[str]) -> int:
    """The characters that a cache without end computes."""
    prompts = sorted(prompts)
    shared = sum(
        len(list(itertools.takewhile(lambda letters: letters[0] == letters[1], zip(*pair, strict=False))))
        for pair in itertools.pairwise(prompts)
    )
    return sum(map(len, prompts)) - shared


@given(rows=tables(), template=st.sampled_from([ONE, PER_ROW]))
def test_every_prompt_holds_each_column_exactly_once(rows: Rows, template: str) -> None:
    for row, text in zip(rows, texts(template, rows), strict=True):
        assert sorted(text.split("\n")) == sorted(f"{name}: {cell}" for name, cell in row.items())


@given(rows=tables(), template=st.sampled_from([ONE, PER_ROW]))
def test_equal_tables_have_equal_prompts(rows: Rows, template: str) -> None:
    assert texts(template, rows) == texts(template, [dict(row) for row in rows])
    equal: dict[tuple[str, ...], str] = {}
    for row, text in zip(rows, texts(template, rows), strict=True):
        assert equal.setdefault(tuple(row.values()), text) == text


@given(rows=tables(), seed=st.integers(0, 9))
def test_the_same_rows_in_another_order_have_the_same_columns_first(rows: Rows, seed: int) -> None:
    others = list(rows)
    random.Random(seed).shuffle(others)
    assert order(rows) == order(others)


def test_the_order_is_the_same_in_another_process() -> None:
    program = (
        "from batchyard.tables.template import Template\n"
        "rows = [{'a': str(n % 7), 'b': str(n % 3), 'c': str(n % 5)} for n in range(60)]\n"
        "for text in ('{*}', '{*:per-row}'):\n"
        "    template = Template(text).ordered(rows)\n"
        "    print([template.fill(row) for row in rows])\n"
    )
    outputs = {
        subprocess.run(
            [sys.executable, "-c", program],
            env={**os.environ, "PYTHONHASHSEED": seed},
            stdout=subprocess.PIPE,
            check=True,
        ).stdout
        for seed in ("1", "2")
    }
    assert len(outputs) == 1


def test_constants_come_first_then_what_saves_most_and_what_is_different_in_each_row_last() -> None:
    rows = [
        {
            "id": f"row {n}",
            "stars": str(n % 5),
            "film": f"{n % 9} {'a long story ' * 9}",
            "lang": "en",
            "code": f"f{n % 9}",
        }
        for n in range(180)
    ]
    assert order(rows) == ("lang", "film", "code", "stars", "id")


def test_one_order_computes_as_little_as_the_best_of_all() -> None:
    chance = random.Random(3)
    rows = []
    for number in range(200):
        product = min(int(chance.expovariate(0.1)), 30)
        rows.append(
            {
                "review": f"{number} it was {'so ' * chance.randrange(9)}good",
                "product": f"product {product} {'of steel ' * 5}",
                "maker": f"maker {product % 6}",
                "stars": str(chance.randrange(1, 6)),
                "verified": chance.choice(["yes", "yes", "yes", "no"]),
            }
        )
    best = min(
        computed(["\n".join(f"{name}: {row[name]}" for name in names) for row in rows])
        for names in itertools.permutations(rows[0])
    )
    assert computed(texts(ONE, rows)) <= 1.01 * best


def test_rows_that_share_different_columns_have_orders_of_their_own_only_if_asked_for() -> None:
    long = "a text of some length "
    rows = [{"a": long * 3, "b": f"{n} {long}"} for n in range(20)] + [
        {"a": f"{n} {long}", "b": long * 3} for n in range(20)
    ]
    firsts = {text.partition(":")[0] for text in texts(PER_ROW, rows)}
    assert firsts == {"a", "b"}
    assert len({text.partition(":")[0] for text in texts(ONE, rows)}) == 1
    assert computed(texts(PER_ROW, rows)) < 0.8 * computed(texts(ONE, rows))


def test_columns_that_stand_elsewhere_and_the_name_of_a_row_are_left_out() -> None:
    rows = [{"custom_id": f"r{n}", "question": f"why {n}?", "text": "so"} for n in range(3)]
    assert texts("{*}\n{question}", rows)[0] == "text: so\nwhy 0?"
    assert Template("{*}").ordered(rows, without=["text"]).order == ("question",)


def test_an_empty_cell_is_the_name_alone_and_a_row_without_any_is_refused() -> None:
    rows = [{"a": "x", "b": None, "c": 1.0}, {"a": "x", "c": 2}, {"b": ""}]
    template = Template(ONE).ordered(rows, uniform=False)
    assert template.order is not None and set(template.order) == {"a", "b", "c"}
    assert sorted(str(template.fill(rows[0])).split("\n")) == ["a: x", "b:", "c: 1"]
    assert sorted(str(template.fill(rows[1])).split("\n")) == ["a: x", "b:", "c: 2"]
    with pytest.raises(CellError, match="all columns are empty"):
        template.fill(rows[2])


@pytest.mark.parametrize("template", [ONE, PER_ROW])
def test_rows_beyond_those_that_decide_keep_all_their_columns(template: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(columns, "CELLS", 20)
    rows = [{"a": str(n), "b": "same"} for n in range(50)] + [{"a": "late", "new": "one"}]
    ordered = Template(template).ordered(iter(rows), uniform=False)
    assert sorted(str(ordered.fill(rows[-1])).split("\n")) == ["a: late", "b:", "new: one"]
    assert sorted(str(ordered.fill(rows[40])).split("\n")) == ["a: 40", "b: same", "new:"]


def test_no_more_rows_are_read_than_decide_if_all_have_the_same_columns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(columns, "CELLS", 20)
    rows = iter([{"a": str(n), "b": "same"} for n in range(50)])
    assert Template(ONE).ordered(rows).order == ("b", "a")
    assert next(rows) == {"a": "10", "b": "same"}
