"""Tables in Markdown hold any text in one cell."""

from __future__ import annotations

from batchyard.recipes import Table
from recipes.reports.markdown import interval, number, section, table


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
