"""Files of CSV have all digits and the same line ends everywhere."""

from __future__ import annotations

from recipes.reports.csv_files import text_of


def test_numbers_have_all_digits_and_nothing_is_empty() -> None:
    rows = iter([[0.1 + 0.2, None], ['say "x", y', True]])
    assert text_of(("a", "b"), rows) == 'a,b\n0.30000000000000004,\n"say ""x"", y",True\n'
