"""Refusals of an account: what an endpoint answers to every request of a key, and no other attempt mends."""

import re
from collections.abc import Mapping
from typing import Any

_STATUSES = (401, 402)
_CODES = re.compile(
    r"insufficient_(quota|balance|funds|credits?)|billing|payment_required|credit_balance|account_(deactivated|disabled)"
    r"|(invalid|incorrect)_api_key|model_not_found|access_terminated"
)
"""Parts of a code or type. `rate_limit_exceeded` and `quota_exceeded` are none: these pass."""


def refused(status: int | None, error: Mapping[str, Any]) -> bool:
    """Return True if a key, a quota, a bill or a model's name is refused, and not this request."""
    if status is None or not 400 <= status < 500:
        return False
    return status in _STATUSES or any(_CODES.search(str(error.get(name) or "")) for name in ("code", "type"))
