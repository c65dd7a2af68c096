"""Messages quote what somebody wrote without growing long, and name what they may have meant."""

from __future__ import annotations

import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from batchyard import wording


@given(text=st.text(), limit=st.integers(3, 50))
def test_a_cut_text_never_exceeds_its_limit_and_begins_as_before(text: str, limit: int) -> None:
    short = wording.cut(text, limit)
    assert len(short) <= limit
    assert short == text or (short.endswith("...") and text.startswith(short[:-3]))


@given(text=st.text(max_size=300))
def test_a_quoted_text_is_short_and_has_no_control_character(text: str) -> None:
    quoted = wording.quoted(text)
    assert len(quoted) <= wording.MAX_NAME
    assert not any(unicodedata.category(character) in ("Cc", "Cs") for character in quoted)


@pytest.mark.parametrize(
    ("name", "nearest"),
    [("temprature", "temperature"), ("TOP_P", "top_p"), ("Temperature", "temperature"), ("zzz", None)],
)
def test_the_nearest_name_is_the_most_alike_in_any_case(name: str, nearest: str | None) -> None:
    assert wording.nearest(name, ["temperature", "top_p", "max_tokens"], cutoff=0.6) == nearest


@pytest.mark.parametrize(
    ("name", "remedy"),
    [
        ("txt", "did you mean 'text'?"),
        ("lan", "did you mean 'language'?"),
        ("price", "available: text, language"),
    ],
)
def test_a_name_that_is_like_none_gets_all_there_are_and_no_guess(name: str, remedy: str) -> None:
    assert wording.suggestion(name, ["text", "language"]) == remedy


def test_the_nearest_name_keeps_its_own_case() -> None:
    assert wording.nearest("europe/berlin", ["Europe/Paris", "Europe/Berlin"]) == "Europe/Berlin"


def test_there_is_no_nearest_name_among_none() -> None:
    assert wording.nearest("anything", []) is None


def test_a_count_has_its_noun_in_the_right_form() -> None:
    assert [wording.count(number, "segment") for number in (0, 1, 2)] == ["no segments", "1 segment", "2 segments"]


@pytest.mark.parametrize(
    ("message", "code", "shown"),
    [
        ("Nothing by that name.", "model_not_found", "Nothing by that name. (model_not_found)"),
        ("Missing required parameter: 'model'.", "missing_required_parameter", "Missing required parameter: 'model'."),
        ("Code batch_closed, as said.", "batch_closed", "Code batch_closed, as said."),
        ("No batch found.", None, "No batch found."),
        ("A server's own.", 400, "A server's own."),
    ],
)
def test_a_message_for_clients_names_its_code_once(message: str, code: object, shown: str) -> None:
    assert wording.with_code(message, code) == shown
    assert wording.with_code(shown, code) == shown
    assert wording.without_code(shown, code) == message
