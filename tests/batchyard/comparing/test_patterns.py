"""Regular expressions of clients match in linear time, or are refused with the reason."""

from __future__ import annotations

import pytest

from batchyard.comparing import patterns


@pytest.mark.parametrize("pattern", ["(", r"(a)\1", "(?=a)", "a{2000}", "*"])
def test_what_is_no_pattern_of_re2_is_refused(pattern: str) -> None:
    with pytest.raises(patterns.InvalidPattern, match=r"\S"):
        patterns.compiled(pattern)


def test_a_match_has_its_groups_only_if_they_are_kept() -> None:
    assert patterns.compiled("a(b+)", groups=True).search("xabbx")[1] == "bb"
    with pytest.raises(IndexError):
        patterns.compiled("a(b+)").search("xabbx")[1]


def test_an_escaped_text_matches_itself_alone() -> None:
    text = "a.b*(c)$ é"
    assert patterns.compiled(patterns.escaped(text)).fullmatch(text)
    assert patterns.compiled(patterns.escaped("a.b")).search("axb") is None
