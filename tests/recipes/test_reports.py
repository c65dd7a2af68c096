"""Reports hold any text: tables in Markdown, files of CSV, drawings."""

from __future__ import annotations

from xml.etree import ElementTree

from batchyard.recipes import Table
from recipes.reports import LABEL, csv_text, drawing, interval, number, section, shortened, table


def test_numbers_of_csv_have_all_digits_and_nothing_is_empty() -> None:
    rows = iter([[0.1 + 0.2, None], ['say "x", y', True]])
    assert csv_text(("a", "b"), rows) == 'a,b\n0.30000000000000004,\n"say ""x"", y",True\n'


def test_a_cell_holds_any_text_and_nothing_is_a_dash() -> None:
    block = Table(columns=["a", "b"], rows=[["x|y\nz", None], ["<b>", ""]])
    assert table(block) == ["| a | b |", "| --- | --- |", r"| x\|y z | - |", "| &lt;b> | - |", ""]


def test_a_section_has_the_title_of_its_block_or_another_and_a_remark() -> None:
    block = Table(title="Cells", columns=["a"], rows=[])
    assert section(block) == ["## Cells", "", "| a |", "| --- |", ""]
    assert section(block, "Others", remark="Few.")[:4] == ["## Others", "", "Few.", ""]


def test_numbers_have_four_digits_unless_they_are_whole() -> None:
    assert [number(value) for value in (None, 12345, 0.123456, 2.0)] == ["-", "12345", "0.1235", "2"]
    assert (interval(None), interval([0, 0.5])) == ("-", "0 to 0.5")


def test_a_title_is_text_in_the_drawing_and_for_readers_of_screens() -> None:
    root = ElementTree.fromstring(drawing('a "b" <c> & d', ['<circle r="4"/>'], 50))
    assert root.get("aria-label") == 'a "b" <c> & d'
    assert (root.get("height"), root.findtext("{*}text")) == ("50", 'a "b" <c> & d')
    assert root.find("{*}circle") is not None


def test_a_long_label_ends_with_an_ellipsis() -> None:
    assert shortened("a" * LABEL) == "a" * LABEL
    assert shortened("a" * 50) == "a" * (LABEL - 1) + "…"
