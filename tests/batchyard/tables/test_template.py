"""A template has columns in braces, and says what is wrong with it before anything runs."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from batchyard.tables.cells import CellError
from batchyard.tables.template import Template, TemplateError

TEXTS = st.text(st.characters(exclude_categories=["Cs"]))
NAMES = st.text(st.characters(exclude_characters="{}", exclude_categories=["Cs"]), min_size=1).filter(
    lambda name: name != "*"
)


@given(parts=st.lists(st.tuples(TEXTS, NAMES, TEXTS.filter(bool))), end=TEXTS)
def test_each_column_is_replaced_and_doubled_braces_are_braces(parts: list[tuple[str, str, str]], end: str) -> None:
    cells = {name: cell for _, name, cell in parts}

    def literal(text: str) -> str:
        return text.replace("{", "{{").replace("}", "}}")

    written = "".join(f"{literal(text)}{{{name}}}" for text, name, _ in parts) + literal(end)
    template = Template(written)
    assert template.columns == tuple(cells)
    assert template.fill(cells) == "".join(text + cells[name] for text, name, _ in parts) + end


def test_a_cell_with_braces_is_text() -> None:
    assert Template("{a}{b}").fill({"a": "{b}", "b": "{{"}) == "{b}{{"


@pytest.mark.parametrize(
    ("template", "message"),
    [
        ("Translate {txt}", "no column 'txt'; did you mean 'text'?"),
        ("Translate {quite other}", "no column 'quite other'; available: text, lang;"),
        ('Answer {"label": 1}', "Write literal braces twice: {{ and }}"),
        ("Translate {text", "a '{' without '}' at character 11; close it behind the column's name, or write {{ if"),
        ("Translate text}", "a '}' without '{' at character 15; open it before the name, or write }} if it is text"),
        ("{}", "no column ''"),
        ("{*} {*:per-row}", "a second {*:per-row}; name a column by itself"),
        ('{*["text", "txt"]}', "no column 'txt'; did you mean 'text'?"),
        ('{*["text", 1]}', "no column '*[\"text\", 1]'"),
    ],
)
def test_a_wrong_template_names_what_is_wrong_and_the_remedy(template: str, message: str) -> None:
    with pytest.raises(TemplateError, match=re.escape(message)):
        Template(template).check(["text", "lang"])


def test_an_empty_table_is_said_to_be_empty() -> None:
    with pytest.raises(TemplateError, match=r"^no column 'text': the table is empty$"):
        Template("{text}").check([])


@pytest.mark.parametrize("template", ["{*}", "{*:per-row}"])
def test_all_columns_are_without_an_index_of_pandas_unless_it_is_named(template: str) -> None:
    row = {"title": "a", "__index_level_0__": 7, "": 0, "text": "b"}
    for ordered in (Template(template), Template(template).ordered([row])):
        assert sorted(str(ordered.fill(row)).splitlines()) == ["text: b", "title: a"]
    assert Template("{__index_level_0__}: {title}").ordered([row]).fill(row) == "7: a"


def test_columns_in_an_order_are_lines_and_can_be_written_again() -> None:
    rows = [{"a {b}": "1", "c": "2"}]
    template = Template("Of {{x}}:\n{*}\n").ordered(rows)
    assert template.text == 'Of {{x}}:\n{*["a \\u007bb\\u007d", "c"]}\n'
    assert template.fill(rows[0]) == Template(template.text).fill(rows[0]) == "Of {x}:\na {b}: 1\nc: 2\n"
    assert Template('{*["c"]}').fill(rows[0]) == "c: 2"


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"text": None}, "column text is empty"),
        ({"text": ""}, "column text is empty"),
        ({"test": "a"}, "column text is missing; did you mean 'test'?"),
        ({"prompt": "a"}, "column text is missing; available: prompt"),
        ({"text": "\ud83d"}, "column text has half of a character (a lone surrogate), which is no text"),
    ],
)
def test_a_row_that_cannot_fill_a_template_is_refused_by_its_column(row: dict[str, object], message: str) -> None:
    with pytest.raises(CellError) as refusal:
        Template("Translate {text}").fill(row)
    assert (str(refusal.value), refusal.value.column) == (message, "text")
