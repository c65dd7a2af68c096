"""A cell is the same text of a prompt, whatever kind of table it comes from."""

from __future__ import annotations

import datetime
import decimal
import math
import uuid
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from batchyard.tables import cells
from batchyard.tables.cells import CellError

DAY = datetime.date(2026, 11, 25)
NOON = datetime.datetime(2026, 11, 25, 12, 30)
CELLS = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.binary() | st.dates() | st.decimals(),
    lambda children: st.lists(children, max_size=3) | st.dictionaries(st.text(), children, max_size=3),
    max_leaves=8,
)


@pytest.mark.parametrize(
    ("cell", "text"),
    [
        ("two\nlines", "two\nlines"),
        ("NA", "NA"),
        (" ", " "),
        (3, "3"),
        (10**30, str(10**30)),
        (1.5, "1.5"),
        (1.0, "1"),
        (1e300, "1e+300"),
        (True, "true"),
        (decimal.Decimal("1.50"), "1.50"),
        (DAY, "2026-11-25"),
        (NOON, "2026-11-25T12:30:00"),
        (pd.Timestamp(NOON), "2026-11-25T12:30:00"),
        (datetime.time(12, 30), "12:30:00"),
        (datetime.timedelta(minutes=1), "0:01:00"),
        (pd.Timedelta("1min"), "0:01:00"),
        (uuid.UUID(int=1), "00000000-0000-0000-0000-000000000001"),
        (["a", 1, None, math.nan], '["a", 1, null, null]'),
        ({"ä": (1.0, DAY)}, '{"ä": [1, "2026-11-25"]}'),
        ([], "[]"),
        (np.float32(1.5), "1.5"),
        (np.int8(3), "3"),
        (np.bool_(True), "true"),
        (np.str_("a"), "a"),
        (np.datetime64(NOON, "ns"), "2026-11-25T12:30:00"),
        (np.datetime64(DAY), "2026-11-25"),
        (np.array([1.0, math.nan]), "[1, null]"),
        (np.array(["2026-11-25", "NaT"], "datetime64[ns]"), '["2026-11-25T00:00:00", null]'),
        ({"sizes": np.array([40, 41])}, '{"sizes": [40, 41]}'),
    ],
)
def test_a_text_stays_as_it_is_and_all_else_is_json(cell: Any, text: str) -> None:
    assert cells.text(cell, "c") == text


def test_a_long_array_is_written_whole() -> None:
    assert cells.text(np.arange(5000), "c") == str(list(range(5000)))


@pytest.mark.parametrize(
    "cell",
    [None, math.nan, "", pd.NA, pd.NaT, np.float32("nan"), np.datetime64("NaT", "ns"), decimal.Decimal("NaN")],
)
def test_what_is_missing_is_empty(cell: Any) -> None:
    with pytest.raises(CellError, match=r"^column c is empty$") as refusal:
        cells.text(cell, "c")
    assert refusal.value.code == "empty_value"
    assert cells.optional(cell, "c") is None


def too_deep() -> list[Any]:
    value: list[Any] = []
    for _ in range(3000):
        value = [value]
    return value


@pytest.mark.parametrize(
    ("cell", "reason"),
    [
        (b"\x89PNG", "holds binary data"),
        ([{"bytes": b"\x89PNG"}], "holds binary data"),
        (np.array([b"a"], object), "holds binary data"),
        ("cut \ud83d", "has half of a character"),
        (["cut \ud83d"], "has half of a character"),
        (math.inf, "is infinite"),
        ([decimal.Decimal("-Infinity")], "is infinite"),
        ({1, 2}, "holds a set, which is neither text nor JSON"),
        (too_deep(), "is nested too deep"),
    ],
)
def test_what_no_prompt_can_have_is_refused_by_its_column(cell: Any, reason: str) -> None:
    with pytest.raises(CellError) as refusal:
        cells.text(cell, "photo")
    assert str(refusal.value).startswith(f"column photo {reason}")
    assert refusal.value.code == "invalid_value"


def test_a_picture_is_refused_as_one() -> None:
    images = pytest.importorskip("PIL.Image")
    with pytest.raises(CellError, match="column photo holds an image, which is no text"):
        cells.text(images.new("RGB", (1, 1)), "photo")


@given(CELLS)
def test_whatever_a_cell_holds_it_is_a_text_or_a_refusal(cell: Any) -> None:
    try:
        cells.text(cell, "c").encode()
    except CellError as error:
        assert str(error).startswith("column c ")
