"""What a stranger sends is read, or refused with a message: no parser ends in another error."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.fuzzing.parsers import PARSERS, fuzz

INPUTS = st.sampled_from(list(PARSERS)).flatmap(lambda name: st.tuples(st.just(name), PARSERS[name].inputs))


@settings(max_examples=1000)
@given(INPUTS)
@pytest.mark.long
def test_no_parser_fails_otherwise_than_with_a_message(given: tuple[str, Any]) -> None:
    name, value = given
    PARSERS[name].check(value)


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", PARSERS)
def test_a_parser_is_fuzzed_for_a_minute(name: str) -> None:
    assert fuzz(name, 60) >= 1000
