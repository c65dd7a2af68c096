"""Replies to an item: exactly one thing is said."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from webapp.wire.items import ItemReply

VERDICT = {"gate": "house", "passed": False}


@pytest.mark.parametrize(
    "body", [{"text": ""}, {"text": "so", "by": "ann"}, {"verdict": VERDICT | {"by": "ann"}}, {"requeue": {}}]
)
def test_one_of_text_verdict_and_requeue_is_taken(body: dict[str, Any]) -> None:
    assert ItemReply.model_validate(body).model_dump(exclude_unset=True) == body


@pytest.mark.parametrize(
    ("body", "says"),
    [
        ({}, "send one of"),
        ({"text": "so", "requeue": {}}, "send one of"),
        ({"verdict": VERDICT, "by": "ann"}, "a verdict has its own"),
        ({"verdict": {"gate": "house", "passed": "no"}}, "passed"),
        ({"verdict": VERDICT | {"turn": -1}}, "turn"),
        ({"requeue": {"hints": "shorter"}}, "hints"),
    ],
)
def test_nothing_several_things_and_unknown_fields_are_refused(body: dict[str, Any], says: str) -> None:
    with pytest.raises(ValidationError, match=says):
        ItemReply.model_validate(body)
