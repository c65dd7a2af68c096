"""Lines keep their physical numbers, whatever is between them."""

from __future__ import annotations

import io

from hypothesis import given
from hypothesis import strategies as st

from store.formats import lines


@given(st.lists(st.sampled_from([b"", b"  ", b"\r", b"{}", b"a b", "ü".encode()])), st.booleans())
def test_lines_that_are_not_blank_come_with_their_numbers(texts: list[bytes], ended: bool) -> None:
    source = io.BytesIO(b"\n".join(texts) + b"\n" * ended)
    numbered = [(number, raw.rstrip(b"\n")) for number, raw in lines.numbered_lines(source)]
    assert numbered == [(number, text) for number, text in enumerate(texts, 1) if text.strip()]


def test_a_line_that_is_too_long_is_cut_and_the_next_keeps_its_number() -> None:
    source = io.BytesIO(b"x" * 10 + b"\n" + b"y" * 95 + b"\n" + b"z\n")
    assert list(lines.numbered_lines(source, 10)) == [(1, b"x" * 10 + b"\n"), (2, b"y" * 11), (3, b"z\n")]


def test_a_line_of_too_many_blanks_is_too_long_as_any_other() -> None:
    source = io.BytesIO(b" " * 9 + b"\n" + b" " * 95 + b"\n" + b" " * 95 + b"z\n")
    assert list(lines.numbered_lines(source, 10)) == [(2, b" " * 11), (3, b" " * 11)]
