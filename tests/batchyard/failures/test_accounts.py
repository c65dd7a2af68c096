"""Errors that every request of a key gets, told from those of one request or of one moment."""

from __future__ import annotations

import pytest

from batchyard.failures import accounts


@pytest.mark.parametrize(
    ("status", "error", "is_refused"),
    [
        (401, {}, True),
        (402, {"message": "pay"}, True),
        (429, {"code": "insufficient_quota", "type": "insufficient_quota"}, True),
        (429, {"code": None, "type": "insufficient_quota"}, True),
        (429, {"code": "billing_hard_limit_reached"}, True),
        (404, {"code": "model_not_found"}, True),
        (403, {"code": "invalid_api_key"}, True),
        (429, {"code": "rate_limit_exceeded", "type": "tokens"}, False),
        (429, {}, False),
        (403, {"code": "content_policy"}, False),
        (404, {"code": 404}, False),
        (400, {"code": "context_length_exceeded"}, False),
        (500, {"code": "billing"}, False),
        (None, {"code": "insufficient_quota"}, False),
    ],
)
def test_a_refused_account_is_told_from_other_errors(
    status: int | None, error: dict[str, object], is_refused: bool
) -> None:
    assert accounts.refused(status, error) is is_refused
