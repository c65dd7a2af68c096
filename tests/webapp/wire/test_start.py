"""POST /start: a form's texts are what the JSON body has."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from webapp.wire.start import PARAMETERS, Start, StartForm


def test_a_form_says_in_texts_what_json_says_in_values() -> None:
    body: dict[str, Any] = {
        "model": "echo",
        "max_tokens": 5,
        "stop": ["a", "b"],
        "sampling": {"top_k": 3},
        "metadata": {"team": "a"},
        "post_process": [{"step": "score"}],
        "null_values": ["NA"],
    }
    texts = {
        "model": "echo",
        "max_tokens": "5",
        "stop": '["a", "b"]',
        "sampling": '{"top_k": 3}',
        "metadata": '{"team": "a"}',
        "post_process": '[{"step": "score"}]',
        "null_values": '["NA"]',
    }
    assert StartForm.model_validate(texts).model_dump() == Start.model_validate(body).model_dump()


def test_every_parameter_of_requests_is_a_field() -> None:
    assert set(PARAMETERS) <= Start.model_fields.keys()


@pytest.mark.parametrize("values", [{"modell": "echo"}, {"sampling": "{"}, {"priority": "urgent"}])
def test_what_cannot_be_meant_is_refused(values: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        StartForm.model_validate(values)
