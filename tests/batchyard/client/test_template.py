"""A template has columns in braces, and says what is wrong with it before anything runs."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from batchyard.client.template import Template
from batchyard.errors import ConfigurationError

NAMES = st.text(st.characters(exclude_characters="{}", exclude_categories=["Cs"]), min_size=1)


@given(parts=st.lists(st.tuples(st.text(), NAMES, st.text())), end=st.text())
def test_each_column_is_replaced_and_doubled_braces_are_braces(parts: list[tuple[str, str, str]], end: str) -> None:
    cells = {name: cell for _, name, cell in parts}

    def literal(text: str) -> str:
        return text.replace("{", "{{").replace("}", "}}")

    written = "".join(f"{literal(text)}{{{name}}}" for text, name, _ in parts) + literal(end)
    template = Template(written, cells)
    assert template.columns == tuple(cells)
    assert template.fill(cells) == "".join(text + cells[name] for text, name, _ in parts) + end


def test_a_cell_with_braces_is_text() -> None:
    assert Template("{a}{b}", ["a", "b"]).fill({"a": "{b}", "b": "{{"}) == "{b}{{"


@pytest.mark.parametrize(
    ("template", "message"),
    [
        ("Translate {txt}", "no column 'txt'; did you mean 'text'?"),
        ("Translate {quite other}", "no column 'quite other'; there are text, lang;"),
        ('Answer {"label": 1}', "Braces that are text are doubled: {{ and }}"),
        ("Translate {text", "a single '{' at character 11; double it"),
        ("Translate text}", "a single '}' at character 15; double it"),
        ("{}", "no column ''"),
    ],
)
def test_a_wrong_template_names_what_is_wrong_and_the_remedy(template: str, message: str) -> None:
    with pytest.raises(ConfigurationError, match=re.escape(message)):
        Template(template, ["text", "lang"])


@pytest.mark.parametrize(
    ("cell", "text"), [(1, "1"), (2.5, "2.5"), (["a", 1], '["a", 1]'), ({"ä": None}, '{"ä": null}'), (True, "True")]
)
def test_cells_that_are_no_text_are_written_as_python_does_and_nested_ones_as_json(cell: object, text: str) -> None:
    assert Template("{cell}", ["cell"]).fill({"cell": cell}) == text
