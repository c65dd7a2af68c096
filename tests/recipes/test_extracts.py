"""What of an answer is compared with other answers."""

from __future__ import annotations

import pytest

from recipes.extracts import check, extract


@pytest.mark.parametrize(
    ("how", "texts", "value"),
    [
        ("last_number", ["95", " 95.", "95.0", "9 or 95", "= 95.00 apples"], "95"),
        ("last_number", ["1,234.50"], "1234.5"),
        ("last_number", ["10", "10.0", "1E+1"], "10"),
        ("last_number", ["950", "9.5e2", "9.5E+2"], "950"),
        ("last_number", ["0.00000001", "1e-8"], "0.00000001"),
        ("last_number", ["0", "-0.0", "0E+3"], "0"),
        ("last_number", ["1e999999"], "1E+999999"),
        ("last_number", ["none", ""], None),
        ("first_line", ["\n  yes \nno", "yes"], "yes"),
        ("first_line", ["7.0\nso", "7", "7.", " 7.0. "], "7"),
        ("first_line", ["1.2.3."], "1.2.3."),
        ("first_line", ["", " \n"], None),
        ("boxed", [r"so \boxed{1} and \boxed{\frac{1}{2}}."], r"\frac{1}{2}"),
        ("boxed", [r"\boxed{95.0}", r"\boxed{ 95 }"], "95"),
        ("boxed", [r"\boxed{1,000}"], "1000"),
        ("boxed", ["95", r"\boxed{95"], None),
        ("json:answer.0.name", ['{"answer": [{"name": "x"}]}'], "x"),
        ("json:answer", ['{"answer": 3.0}', '{"answer": 3}', '{"answer": "3"}'], "3"),
        ("json:answer", ["{}", "[]", "{", '{"answer": '], None),
        (r"regex:answer: (\w+)", ["the answer: yes, it is"], "yes"),
        (r"regex:\d+%", ["up to 50% or 60%"], "50%"),
        (r"regex:(\d+)?%", ["%"], None),
        (r"regex:\d", ["none"], None),
    ],
)
def test_answers_of_one_value_are_one_text(how: str, texts: list[str], value: str | None) -> None:
    check(how)
    assert [extract(how, text) for text in texts] == [value] * len(texts)


@pytest.mark.parametrize(
    ("how", "reason"),
    [
        ("last_numbr", "No extract is named 'last_numbr'. Did you mean 'last_number'?"),
        ("json", "Extract json is written as json:<path>, not 'json'."),
        ("regex:", "Extract regex is written as regex:<pattern>, not 'regex:'."),
        ("boxed:x", "Extract boxed is written as boxed, not 'boxed:x'."),
        ("regex:(", "missing ): ("),
    ],
)
def test_an_extract_that_cannot_be_is_refused_with_the_reason(how: str, reason: str) -> None:
    with pytest.raises(ValueError) as error:
        check(how)
    assert str(error.value) == reason
