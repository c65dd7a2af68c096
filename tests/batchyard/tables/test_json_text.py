"""What is not JSON is said with its place; what is broken otherwise is left to who reads the line."""

from __future__ import annotations

import pytest

from batchyard.tables.json_text import half_character, not_a_number


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ('{"a": NaN}', 'NaN at "a"'),
        ('{"a": {"b": [1, {"c": -Infinity}]}}', '-Infinity at "a.b[1].c"'),
        ("[0, [Infinity]]", 'Infinity at "[1][0]"'),
        ('{"a": 1e999}', None),
        ('{"a": "NaN"}', None),
        ('{"a": NaN', None),
        ("[" * 100_000, None),
    ],
)
def test_a_constant_that_is_no_json_is_named_with_its_place(line: str, message: str | None) -> None:
    words = not_a_number(line)
    if message is None:
        assert words is None
    else:
        assert words is not None and words.replace("'", '"').startswith(message)
        assert words.endswith("is not JSON; write null or leave it out")


def test_half_of_a_surrogate_pair_is_named_with_its_column() -> None:
    assert (half_character('{"ok": "\\ud83d\\ude00", "bad": {"x": ["\\ud83d"]}}') or "").startswith("column bad ")
    assert (half_character('"\\ud83d"') or "").startswith("column prompt ")
    assert half_character('{"ok": "\\ud83d\\ude00"}') is None
    assert half_character('{"bad": "\\ud83d"') is None
