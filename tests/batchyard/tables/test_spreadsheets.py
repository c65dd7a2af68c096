"""Cells of csv files that spreadsheets might run."""

from __future__ import annotations

import pytest

from batchyard.tables.spreadsheets import harmless


@pytest.mark.parametrize(
    "cell", ["-3", "-7", "+5", "-1.5e-3", "-1,000.50", "-.5", "-20%", -3, None, "a=1", "", "3 - 4"]
)
def test_numbers_and_harmless_texts_stay(cell: object) -> None:
    assert harmless(cell) == cell


@pytest.mark.parametrize(
    "cell",
    [
        "=1+1",
        "- first",
        "-1+1",
        "+43 1 000 00 00",
        "@SUM(A1)",
        "-cmd|'/C calc'!A0",
        "\t=1",
        "-",
        " =1",
        "\n=1",
        "\uff1d1+1",
    ],
)
def test_a_text_that_may_be_a_formula_is_quoted(cell: str) -> None:
    assert harmless(cell) == f"'{cell}"
