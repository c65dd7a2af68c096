"""Each entry is whole: its example is a valid body, and the keys that it names are those of its body."""

from __future__ import annotations

import pytest

from batchyard.endpoints.base import Endpoint
from batchyard.endpoints.bodies.validation import validation_error
from batchyard.endpoints.catalog import CHAT, COMPLETIONS, ENDPOINTS, GENERATE

ENTRIES = [pytest.param(entry, id=path) for path, entry in ENDPOINTS.items()]


@pytest.mark.parametrize("entry", ENTRIES)
def test_the_example_of_an_endpoint_is_a_body_that_it_takes(entry: Endpoint) -> None:
    assert validation_error(entry.path, {"model": "m", **entry.example}) is None


@pytest.mark.parametrize("entry", ENTRIES)
def test_a_body_without_its_prompt_is_refused(entry: Endpoint) -> None:
    rest = {key: value for key, value in entry.example.items() if key not in entry.content}
    assert validation_error(entry.path, {"model": "m", **rest}) is not None


@pytest.mark.parametrize("entry", ENTRIES)
def test_all_keys_that_an_entry_names_are_those_of_its_body(entry: Endpoint) -> None:
    limits = {key.partition(".")[0] for key in entry.output_limits}
    assert {*entry.content, *entry.leading, *limits} <= entry.body.model_fields.keys()


@pytest.mark.parametrize("entry", ENTRIES)
def test_an_endpoint_that_generates_has_a_limit_and_no_other_has_output(entry: Endpoint) -> None:
    assert bool(entry.output_limits) == entry.generates
    if not entry.generates:
        assert entry.output_limit({"max_tokens": 5}) == 0


def test_the_first_limit_that_is_set_counts() -> None:
    assert CHAT.output_limit({"max_tokens": 5, "max_completion_tokens": 7}) == 7
    assert CHAT.output_limit({"max_tokens": 5, "max_completion_tokens": None}) == 5
    assert COMPLETIONS.output_limit({}) is None


def test_a_limit_may_stand_in_an_object_of_the_body() -> None:
    body = {"sampling_params": {"max_tokens": 3}}
    assert (GENERATE.output_limit(body), GENERATE.limit_key(body)) == (3, "sampling_params.max_tokens")
    assert GENERATE.output_limit({"sampling_params": None}) is None
