"""The fingerprint of a request, by which requests with the same answer are deduplicated and cached."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any

import orjson

from batchyard import json_lines
from batchyard.endpoints.catalog import ENDPOINTS
from inference.requests import media


def fingerprint(endpoint: str, body: Mapping[str, Any]) -> bytes | None:
    """Return a digest (16 bytes) that requests with the same answer share.

    None if sampling is random, or if media come from a URL, where they may change. Null values and parameters without
    effect do not count. A negative seed asks for another answer each time, as in vLLM.
    """
    seed = body.get("seed")
    if ENDPOINTS[endpoint].generates and body.get("temperature") != 0 and (seed is None or seed < 0):
        return None
    if any(media.remote(body)):
        return None
    without_effect = ENDPOINTS[endpoint].without_effect
    parameters = {name: value for name, value in body.items() if value is not None and name not in without_effect}
    text = json_lines.dumps([endpoint, parameters], option=orjson.OPT_SORT_KEYS)
    return hashlib.blake2b(text, digest_size=16).digest()
